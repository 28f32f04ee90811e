"""What most bodies are is read in a shorter way, and says the same as the long one, which takes anything."""

from __future__ import annotations

import json

import pytest

from penstock.gateway.openai.body import BadBody, Peek, peek, read_large
from penstock.gateway.openai.fields import Fields, Plain, Text
from tests.gateway.conftest import run
from tests.gateway.openai.peeked import told

SET_BY_ALL = [name for name in Plain.__struct_fields__ if name not in Text.__struct_fields__]
VALUES = [
    None, True, False, 0, 1, 7, -3, 2.5, 10**18, 10**30, "", "x", "7", [], {}, [1], {"n": 2}, {"max_new_tokens": 5},
    {"include_usage": True}, "y" * 4000,
]  # fmt: skip


def _either_way(body: bytes) -> tuple[object, object]:
    ways: list[object] = []
    for way in (peek, lambda raw: run(read_large(raw, pooled=False)).peek):
        try:
            ways.append(told(way(body)))
        except BadBody as problem:
            ways.append((str(problem), problem.param))
    return ways[0], ways[1]


def test_both_ways_know_the_same_fields() -> None:
    assert Plain.__struct_fields__ == Fields.__struct_fields__


@pytest.mark.parametrize("name", SET_BY_ALL)
def test_the_short_form_equals_the_long_one(name: str) -> None:
    for value in VALUES:
        short, long = _either_way(json.dumps({"model": "m", "messages": [], name: value}).encode())
        assert short == long, value


def test_the_short_way_is_the_one_that_most_bodies_go() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5, "user": "u"}
    body |= {"stream_options": {"include_usage": True}, "temperature": 0.5, "tools": []}
    found = peek(json.dumps(body).encode())
    assert type(found.text) is Plain
    assert found.stream_options == {"include_usage": True}
    assert told(found) == told(
        Peek("m", stream=True, output_tokens_max=5, stream_options={"include_usage": True}, user="u")
    )


@pytest.mark.parametrize(
    ("values", "stream", "whole"),
    [
        ((True, "true", "True", "TRUE", 1, 1.0, "1", "yes", "on", "t", "Y"), True, False),
        ((False, "false", "False", 0, 0.0, "0", "no", "off", "f", "N"), False, True),
        ((None, "", "maybe", 2, "truetrue", "2", [True], {"a": 1}), False, False),
    ],
    ids=["true", "false", "neither"],
)
def test_a_stream_is_asked_for_as_engines_read_flags(values: tuple[object, ...], stream: bool, whole: bool) -> None:
    for value in values:
        found = peek(json.dumps({"model": "m", "stream": value}).encode())
        assert (found.stream, found.whole) == (stream, whole), value


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 9, "max_completion_tokens": 5, "max_output_tokens": 7}, 9),
        ({"max_tokens": 5, "n_predict": 9}, 9),
        ({"max_tokens": 5, "n_predict": -1}, 5),
        ({"sampling_params": [{"max_new_tokens": 5}, {"max_new_tokens": 9}]}, 9),
        ({"sampling_params": {"max_tokens": 9}}, 9),
        ({"parameters": {"max_new_tokens": 5}, "options": {"num_predict": 9}}, 9),
        ({"max_tokens": 2**31 - 1}, 2**31 - 1),
        ({"max_tokens": 2**31}, 2**31),
        ({"max_tokens": 10**30}, 2**31),
        ({"max_tokens": 5, "max_output_tokens": 2**64}, 2**31),
        ({"max_completion_tokens": -(10**30)}, None),
        ({"sampling_params": {"max_new_tokens": 2**64}, "n": 10**30}, 2**31),
    ],
)
def test_of_several_lengths_the_largest_counts(body: dict[str, object], most: int | None) -> None:
    assert peek(json.dumps({"model": "m", **body}).encode()).output_tokens_max == most
