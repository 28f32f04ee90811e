"""Which events of a stream are tokens, in each API that engines speak."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.values.request import Usage
from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.gateway.openai.answers.events import Meaning, meaning, meaning_of_line
from penstock.gateway.openai.answers.opening import Opening


def choice(**delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def finish(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def named(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(value)


ASIDES = {
    "a comment": b": keep-alive\n\n",
    "an empty comment": b":\n\n",
    "Anthropic's ping": named("ping", {"type": "ping"}),
    "a ping without a name": data({"type": "ping"}),
    "a reconnection time": b"retry: 3000\n\n",
}
EMPTY = {
    "a role": choice(role="assistant"),
    "a role and an empty text": choice(role="assistant", content=""),
    "a role and a null": choice(role="assistant", content=None, tool_calls=None),
    "an empty legacy text": {"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": None}]},
    "Azure's filter of the prompt": {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
    "an announced response": {"type": "response.created", "response": {"id": "r", "output": []}},
    "a response in progress": {"type": "response.in_progress", "response": {"id": "r"}},
    "an announced text": {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
    "an announced part": {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
    "an announced message": {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5}}},
    "an announced block": {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    "llama.cpp's progress": {"content": "", "tokens": [], "stop": False, "prompt_progress": {}},
    "SGLang's first event": {"text": "", "meta_info": {"finish_reason": None, "completion_tokens": 0}},
}
TOKENS = {
    "a text": choice(content="a"),
    "a reasoning": choice(content=None, reasoning_content="so"),
    "a refusal": choice(refusal="no"),
    "a tool call": choice(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]),
    "a sound": choice(audio={"data": "AAAA"}),
    "a legacy text": {"choices": [{"index": 0, "text": "a", "finish_reason": None}]},
    "an end": finish("stop"),
    "usage": {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}},
    "an error": {"error": {"message": "no"}},
    "a text of a response": {"type": "response.output_text.delta", "delta": "a"},
    "an announced tool": {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
    "the end of a response": {"type": "response.completed", "response": {"id": "r"}},
    "a text of a message": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
    "an announced tool of a message": {
        "type": "content_block_start",
        "content_block": {"type": "tool_use", "name": "f"},
    },
    "the end of a message": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    "llama.cpp's text": {"content": "a", "stop": False},
    "SGLang's text": {"text": "a", "meta_info": {"finish_reason": None}},
    "TGI's token": {"token": {"id": 5, "text": "a"}, "generated_text": None},
    "an unknown event": {"something": "else"},
}


@pytest.mark.parametrize("name", ASIDES)
def test_comments_and_pings_say_nothing_of_an_answer(name: str) -> None:
    assert meaning(ASIDES[name]) is Meaning.ASIDE


@pytest.mark.parametrize("name", EMPTY)
def test_an_announcement_is_no_token(name: str) -> None:
    assert meaning(data(EMPTY[name])) is Meaning.EMPTY


@pytest.mark.parametrize("name", TOKENS)
def test_content_and_an_end_are_tokens(name: str) -> None:
    assert meaning(data(TOKENS[name])) is Meaning.TOKEN


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"message": {"role": "assistant", "content": ""}, "done": False}, Meaning.EMPTY),
        ({"response": "", "done": False}, Meaning.EMPTY),
        ({"message": {"role": "assistant", "content": "a"}, "done": False}, Meaning.TOKEN),
        ({"message": {"role": "assistant", "content": "", "thinking": "a"}, "done": False}, Meaning.TOKEN),
        ({"response": "", "done": True}, Meaning.TOKEN),
        ({"error": "no"}, Meaning.TOKEN),
    ],
)
def test_ollamas_lines_are_tokens_by_their_fields(line: dict[str, Any], expected: Meaning) -> None:
    assert meaning_of_line(json.dumps(line).encode() + b"\n") is expected


def test_asides_pass_at_once_and_announcements_with_the_first_token() -> None:
    opening = Opening(lines=False)
    role, text = data(EMPTY["a role"]), data(TOKENS["a text"])
    assert opening.take(b": a\n\n" + role + b": b\n\n") == (b": a\n\n: b\n\n", None)
    assert opening.take(text[:9]) == (b"", None)
    assert opening.take(text[9:] + b": c\n\n") == (b"", role + text + b": c\n\n")


def test_announcements_are_held_up_to_256_kib() -> None:
    opening = Opening(lines=False)
    half = data({"type": "response.created", "response": {"instructions": "x" * 128_000}})
    rest = data({"type": "response.created", "x": ""})
    rest = rest.replace(b'""', b'"%b"' % (b"x" * (256 * 1024 - len(half) - len(rest))))
    assert opening.take(half) == opening.take(rest) == (b"", None)
    assert opening.take(b"d") == (b"", half + rest + b"d")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_an_event_in_several_lines_is_one_event(end: bytes) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100}}
    events = [
        b"".join(b"data: " + line.encode() + end for line in json.dumps(value, indent=1).split("\n")) + end
        for value in (TOKENS["a text"], finish("stop"), usage)
    ]
    done = b"data: [DONE]" + end + end
    for size in (7, 10_000):
        reader = AnswerReader(streamed=True, hides_usage=True)
        whole = b"".join(events) + done
        passed = b"".join(reader.take(whole[at : at + size]) for at in range(0, len(whole), size)) + reader.rest()
        assert passed == events[0] + events[1] + done
        found = reader.usage()
        assert found is not None
        assert (found.prompt_tokens, found.completion_tokens) == (70, 30)
        assert reader.ended_well("/v1/chat/completions")


def test_comments_beside_an_event_in_several_lines_do_not_hide_that_it_is_one() -> None:
    reader = AnswerReader(streamed=True, hides_usage=True)
    usage = b'data: {"choices": [], "usage":\ndata: {"prompt_tokens": 70,\ndata: "completion_tokens": 30}}\n\n'
    assert reader.take(b": one\n\n: two\n\n: three\n\n" + usage) == b": one\n\n: two\n\n: three\n\n"
    assert reader.usage() == Usage(70, 30)
    assert reader.tokens == 1
