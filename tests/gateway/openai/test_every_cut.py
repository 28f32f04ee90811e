"""A large body is read in steps, which end anywhere: each place where one may end, the same is read as in one go."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.gateway.openai.body import BadBody, read, read_large
from penstock.gateway.openai.splice import Spliced
from tests.gateway.conftest import run
from tests.gateway.openai.peeked import told

BYTES = 140_000  # two of the usual steps
LONG_BYTES = {
    "characters of several bytes": 300_000,
    "one long string": 1_100_000,
}  # that take longer
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

#: A piece of a body, as often as it takes, between a beginning and an end. However long the steps are, moving all of it
#: by a byte as often as the piece is long puts the end of a step at each of the piece's bytes.
BODIES: dict[str, tuple[bytes, bytes, bytes]] = {
    "escaped pairs": (b'"prompt":"', b"a\\ud83d\\ude00", b'"'),
    "escaped pairs after backslashes": (b'"prompt":"', b"\\\\\\\\\\ud83d\\ude00", b'"'),
    "escapes that look like halves": (b'"prompt":"', b"\\\\ud83d\\u00d8\\ud7ff", b'"'),
    "other escapes": (b'"prompt":"', b'\\"\\\\\\n\\/\\u00e9 ', b'"'),
    "characters of several bytes": (b'"prompt":"', "aé€\U0001f600".encode(), b'"'),
    "one long string": (b'"prompt":"', b"abc", b'"'),
    "backslashes": (b'"prompt":"', b"\\\\", b'"'),
    "strings": (b'"stop":["', b'a\\\\","b\\"]', b'"]'),
    "numbers and literals": (b'"x":[', b"-1.25e-7,true, null ,false,", b"0]"),
    "deep values": (b'"x":[', b'{"a":[[[[[["\\\\]"]]],{"b":{"c":1}}]]]},', b"0]"),
    "keys in a value": (b'"x":{', b'"k\\"\\ud83d\\ude00":"v",', b'"":0}'),
    "fields": (b"", b'"k\\u00e9": 1 ,' + b" " * 190, b'"z":1'),
    "spaces around a colon": (b'"stream"', b" \n", b':true,"max_tokens":7'),
    "token ids": (b'"prompt":[', b"1234567, ", b"8]"),
    "lists of token ids": (b'"input":[', b"[12,34], ", b"[5]]"),
    "texts": (b'"input":[', b'"a\\",\\"[1]", ', b'"z"]'),
    "token ids and texts": (b'"prompt":[', b'77,"a\\", 8]",', b"9]"),
}


def _written(name: str, moved: int) -> bytes:
    begin, piece, end = BODIES[name]
    body = b'{"model":"m","a":"%b",%b%b%b}' % (
        b"x" * moved,
        begin,
        piece * (LONG_BYTES.get(name, BYTES) // len(piece)),
        end,
    )
    json.loads(body)
    return body


@pytest.mark.parametrize("name", BODIES)
def test_whatever_a_step_cuts_the_same_is_read(name: str) -> None:
    for moved in range(len(BODIES[name][1])):
        body = _written(name, moved)
        small, large = read(body, pooled=False), run(read_large(body, pooled=False))
        assert isinstance(large.body, Spliced)
        assert large.contents == small.contents
        assert told(large.peek) == told(small.peek)
        fields = {field: bytes(value) for field, value in _decode(body).items()}
        assert dict(large.body.values(large.body.names())) == fields


def test_a_part_that_a_step_cuts_is_a_part() -> None:
    begin, part = b'{"model":"m","messages":[{"content":[{"text":"', b'"},{"type":"image_url"}]}]}'
    for moved in range(len(part)):
        body = begin + b" " * (1_048_576 - moved - len(begin)) + part
        assert run(read_large(body, pooled=False)).contents.pictures == 1


@pytest.mark.parametrize("half", [b"\\ud83d", b"\\ude00", b"\\ud83d\\ud83d\\ude00", b"\\uDBFFx"])
@pytest.mark.parametrize("step", [65_536, 131_072])
def test_half_a_pair_is_refused_with_its_place_wherever_it_is(half: bytes, step: int) -> None:
    for moved in range(-1, len(half) + 1):
        at = step - moved
        begin = b'{"model":"m","prompt":"'
        body = begin + b"x" * (at - len(begin)) + half + b"x" * 200_000 + b'"}'
        with pytest.raises(BadBody, match=rf"half of a surrogate pair, .*\(byte {at}\)"):
            run(read_large(body, pooled=False))


@pytest.mark.parametrize("broken", [b"\xff", b"\xe2\x82", b"\xed\xa0\xbd", b"\xf0\x9f\x98"])
def test_bytes_that_are_no_character_are_refused_with_their_place_wherever_they_are(broken: bytes) -> None:
    for moved in range(-1, len(broken) + 1):
        at = 262_144 - moved
        begin = b'{"model":"m","prompt":"\xc3\xa9'
        body = begin + b"x" * (at - len(begin)) + broken + b"x" * 200_000 + b'"}'
        with pytest.raises(BadBody, match=rf"not valid UTF-8 \(byte {at}\)"):
            run(read_large(body, pooled=False))


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_ends_too_soon_is_refused_wherever_it_ends(name: str) -> None:
    body = _written(name, 0)
    for size in range(len(body) - 25, len(body)):
        with pytest.raises(BadBody):
            run(read_large(body[:size], pooled=False))


def test_a_name_that_is_too_long_to_be_looked_for_is_named() -> None:
    body = b'{"model":"m","%b":1,"prompt":"%b"}' % (b"k" * 2000, b"x" * 300_000)
    with pytest.raises(BadBody, match=r"the name of a field is longer than 1024 bytes \(byte 13\)"):
        run(read_large(body, pooled=False))
