"""Where did the prompts of earlier turns end? Hashes by which the next turn of a conversation is known.

A chat's client repeats the conversation with each turn. A prompt is a list of pieces that were *asked* (instructions,
texts of users, results of tools) with the answers in between, and it *ends* with an asked piece that is followed by an
answer, or by nothing. So each end of an earlier prompt is an end of the later one, too.

Model: the *root* is the hash of the instructions and of all that is asked before the first answer; an end is the hash
of the root and of the last two pieces asked there. Answers are left out: clients drop reasoning from older ones, and
write `null` or nothing beside calls of tools. Left out are also cache marks, which move from message to message, ids of
calls, the form of a text (a string, or a list with one text), and the spaces and the order of fields. The bytes between
a text's quotes are hashed as they came. `seed` is secret, and the same in all processes of a group (`prefix_keys.py`).

Only the texts at the last `ENDS_LATE` ends and those of the root are hashed, however long the prompt is. A prompt that
is one text has the end of the whole alone: nobody knows where the one before it ended.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgspec
from msgspec.structs import astuple
from xxhash import xxh3_64_intdigest

from penstock.gateway.openai.fields import NOTHING, Text

BYTES_MIN: Final = 4096  # a shorter prompt is computed again in no time, wherever it goes
BYTES_MAX: Final = 8 << 20  # finding the messages takes half a millisecond a megabyte, in one go
BRACES_MAX: Final = 20_000  # a message or part has one, and takes half a microsecond; texts of code have some, too
ENDS_LATE: Final = 4  # beside the whole: turns that a client takes back
LOOK_MAX: Final = 64  # of the last messages: answers and results of several calls side by side
ROOT_MAX: Final = 16  # of the first messages
DEPTH_MAX: Final = 4  # a message, a tool's result in it, the parts of that

_BILLING: Final = b'"x-anthropic-billing-header'  # changes with each request
_QUOTE: Final = 0x22
_BRACKET: Final = 0x5B
_two: Final = Struct("<QQ").pack
_RAW: Final = ("text", "content", "output", "image_url", "source", "input_audio", "file")
#: A message, or a part of one. Calls of tools and their ids are not looked at.
_PIECE: Final = msgspec.defstruct(
    "PromptPiece",
    [("role", str | None, None), ("type", str | None, None), *[(name, msgspec.Raw, NOTHING) for name in _RAW]],
    gc=False,
)
_pieces: Final = msgspec.json.Decoder(list[_PIECE]).decode  # type: ignore[valid-type]


def ends_of(text: Text, seed: int) -> tuple[int, ...]:
    """Returns a prompt's first end, its last ones, and that of the whole.

    Empty if it is short, has too many parts, or can't be read.

    `seed`: 64 secret bits. Ends are equal only among processes that have the same.
    """
    messages = text.input if text.messages is NOTHING else text.messages
    system = text.instructions if text.system is NOTHING else text.system
    whole = memoryview(messages)
    if not whole or not BYTES_MIN <= len(whole) + len(memoryview(system)) <= BYTES_MAX:
        return ()
    if len(whole) > BRACES_MAX and bytes(messages).count(b"}") > BRACES_MAX:
        return ()
    try:
        root = _hash(system, seed, 0)
        if whole[0] == _QUOTE:
            asked = _hash(messages, seed, 0)
            return (_end(_end(root, 0, asked), 0, asked),)
        return _of_list(_pieces(messages), root, seed)
    except (msgspec.DecodeError, RecursionError):
        return ()


def _of_list(pieces: list[Any], root: int, seed: int) -> tuple[int, ...]:
    before = asked = first = 0
    for piece in pieces[:ROOT_MAX]:
        if _is_answer(piece):
            first = asked
            break
        before, asked = asked, _hash_piece(piece, seed, 0)
        root = _end(root, 0, asked)
    else:
        if len(pieces) <= ROOT_MAX:  # nothing is answered yet
            return (_end(root, before, asked),) if pieces else ()
    found = _late(pieces, root, seed)
    if first and (end := _end(root, before, asked)) not in found:
        found.append(end)
    return tuple(found[::-1])


def _late(pieces: list[Any], root: int, seed: int) -> list[int]:
    """Returns the last ends, the last one first."""
    found: list[int] = []
    at_end, asked = True, 0  # what follows is no question; the piece of an end whose piece before it is not known yet
    for piece in pieces[: -LOOK_MAX - 1 : -1]:
        if _is_answer(piece):
            at_end = True
        elif asked or at_end:
            value = _hash_piece(piece, seed, 0)
            if asked:
                found.append(_end(root, value, asked))
                if len(found) > ENDS_LATE:
                    return found
            asked = value if at_end else 0
            at_end = False
    if asked and len(pieces) <= LOOK_MAX:
        found.append(_end(root, 0, asked))
    return found


def _is_answer(piece: Any) -> bool:
    """True for what a model wrote: an assistant's message, or an item without a role that is no tool's result."""
    if piece.role is not None:
        return piece.role in ("assistant", "model")
    return piece.type is not None and not piece.type.endswith("_output")


def _end(root: int, before: int, asked: int) -> int:
    return xxh3_64_intdigest(_two(before, asked), root)


def _hash(value: msgspec.Raw, key: int, depth: int) -> int:
    """The hash of a text, of the pieces of a list, or of another value as it came."""
    whole = memoryview(value)
    if not whole:
        return key
    if whole[0] == _BRACKET and depth < DEPTH_MAX:
        for piece in _pieces(value):
            key = _hash_piece(piece, key, depth + 1)
        return key
    return xxh3_64_intdigest(whole[1:-1] if whole[0] == _QUOTE else whole, key)


def _hash_piece(piece: Any, key: int, depth: int) -> int:
    if piece.text is not NOTHING and bytes(memoryview(piece.text)[: len(_BILLING)]) == _BILLING:
        return key
    for value in astuple(piece)[-len(_RAW) :]:
        if value is not NOTHING:
            key = _hash(value, key, depth)
    return key
