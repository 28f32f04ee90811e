"""Which events of a stream are tokens, in each API that engines speak."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    "an event without data": b"event: heartbeat\ndata:\n\n",
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
    "an empty text after others": choice(content=""),
    "an empty tool call": choice(tool_calls=[{"index": 0, "type": "function", "function": {"arguments": ""}}]),
    "an empty text of a response": {"type": "response.output_text.delta", "delta": ""},
    "an empty text of a message": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
    "a response kept alive": {"type": "keepalive", "sequence_number": 3},
    "a heartbeat": {"type": "response.heartbeat"},
    "a chunk that keeps alive": {"object": "chat.completion.keep-alive"},
    "no choices": {"object": "chat.completion.chunk", "choices": None, "usage": None},
    "a chunk without choices": {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"},
    "nothing": {},
    "a null": None,
    "SGLang's first event": {"text": "", "meta_info": {"finish_reason": None, "completion_tokens": 0}},
}
TOKENS = {
    "a text": choice(content="a"),
    "a reasoning": choice(content=None, reasoning_content="so"),
    "a refusal": choice(refusal="no"),
    "a tool call": choice(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]),
    "a sound": choice(audio={"data": "AAAA"}),
    "a legacy text": {"choices": [{"index": 0, "text": "a", "finish_reason": None}]},
    "a text with its end": {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]},
    "a text of the second of two": {"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "a"}}]},
    "token ids whose text has not come": {"choices": [{"index": 0, "delta": {"content": ""}, "token_ids": [5]}]},
    "a text of a response": {"type": "response.output_text.delta", "delta": "a"},
    "an announced tool": {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
    "a text of a message": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
    "an announced tool of a message": {
        "type": "content_block_start",
        "content_block": {"type": "tool_use", "name": "f"},
    },
    "llama.cpp's text": {"content": "a", "stop": False},
    "SGLang's text": {"text": "a", "meta_info": {"finish_reason": None}},
    "TGI's token": {"token": {"id": 5, "text": "a"}, "generated_text": None},
    "an unknown event": {"something": "else"},
}


ENDS = {
    "an end": finish("stop"),
    "an end in two words": {"choices": [{"delta": {}, "finish_reason": "stop", "native_finish_reason": "STOP"}]},
    "an end beside an empty text": {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]},
    "usage": {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}},
    "usage without choices": {"choices": None, "usage": {"prompt_tokens": 1, "completion_tokens": 0}},
    "an error": {"error": {"message": "no"}},
    "an error of vLLM": {"object": "error", "message": "no"},
    "the end of a text of a response": {"type": "response.output_text.done", "text": "all of it"},
    "the end of a response": {"type": "response.completed", "response": {"id": "r"}},
    "the end of a block": {"type": "content_block_stop", "index": 0},
    "the end of a message": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    "llama.cpp's end": {"content": "", "stop": True, "timings": {"prompt_n": 1}},
    "SGLang's end": {"text": "", "meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 0}},
}


@pytest.mark.parametrize("name", ASIDES)
def test_comments_and_pings_say_nothing_of_an_answer(name: str) -> None:
    assert meaning(ASIDES[name]) is Meaning.ASIDE


@pytest.mark.parametrize("name", EMPTY)
def test_an_announcement_is_no_token(name: str) -> None:
    assert meaning(data(EMPTY[name])) is Meaning.EMPTY


@pytest.mark.parametrize("name", TOKENS)
def test_content_is_a_token(name: str) -> None:
    assert meaning(data(TOKENS[name])) is Meaning.TOKEN


@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_progress_without_a_token(name: str) -> None:
    assert meaning(data(ENDS[name])) is Meaning.END


@pytest.mark.parametrize("name", ["keepalive", "heartbeat", "keep_alive", "response.keepalive"])
def test_an_event_may_keep_alive_by_its_name_alone(name: str) -> None:
    assert meaning(named(name, {"sequence_number": 3})) is Meaning.EMPTY
    assert meaning(f"data: [{name}]\n\n".encode()) is Meaning.EMPTY


TYPED = [value for value in (*EMPTY.values(), *TOKENS.values(), *ENDS.values()) if isinstance(value, dict)]
one_event = st.builds(
    lambda value, end, spaces, is_named: (
        (b"event: " + str(value["type"]).encode() + b"\n" if is_named and "type" in value else b"")
        + b"data:%b" % spaces[0]
        + json.dumps(value, separators=spaces[1]).encode()
        + end
    ),
    st.sampled_from([*TYPED, *(choice(content=text) for text in ('"', "data: [DONE]", '"choices":[{"text":"x', "{}"))]),
    st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n"]),
    st.sampled_from([(b" ", (", ", ": ")), (b" ", (",", ":")), (b"", (",", ":"))]),
    st.booleans(),
)


@given(st.lists(one_event | st.sampled_from([*ASIDES.values(), b"data: [DONE]\n\n"]), min_size=1, max_size=6))
def test_a_reader_counts_tokens_and_progress_by_the_same_meanings(events: list[bytes]) -> None:
    """What bytes show never differs from what JSON says."""
    reader, each = AnswerReader(streamed=True, hides_usage=False), [meaning(event) for event in events]
    reader.take(b"".join(events))
    assert reader.tokens == each.count(Meaning.TOKEN)
    assert reader.idle is not (Meaning.TOKEN in each or Meaning.END in each)
    for event, what in zip(events, each, strict=True):  # now some begin as one did before
        before = reader.tokens
        reader.take(event)
        assert reader.tokens - before == (what is Meaning.TOKEN)
        assert reader.idle is not (what is Meaning.TOKEN or what is Meaning.END)


@pytest.mark.parametrize("close", [b"", b" "], ids=["compact", "as Python writes it"])
def test_events_that_begin_like_a_text_are_looked_at_to_their_end(close: bytes) -> None:
    def event(text: str, more: bytes = b"") -> bytes:
        return data(choice(content=text)).replace(b": ", b":" + close).replace(b"data:" + close, b"data: ")[:-2] + more

    texts = event("a", b"\n\n") + event('\\"', b"\n\n") + event("b", b"\n\n")
    reader = AnswerReader(streamed=True, hides_usage=True)
    for size in (len(texts), 7, len(event("a", b"\n\n"))):
        before = reader.tokens
        passed = [reader.take(texts[at : at + size]) for at in range(0, len(texts), size)]
        assert (b"".join(passed), reader.tokens - before) == (texts, 3)
    assert not reader.idle
    assert reader.take(event("", b"\n\n")) == event("", b"\n\n")  # nothing is said
    assert (reader.tokens, reader.idle) == (9, True)
    usage = data({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 12}})
    assert reader.take(texts + usage) == texts
    assert (reader.tokens, reader.usage()) == (12, Usage(7, 12))
    cut = event("a", b"\ndata: \n\n")  # of two lines, which is no JSON of one shape
    assert reader.take(texts + cut) == texts + cut
    assert reader.tokens == 16


@pytest.mark.parametrize("told_at", [3, 30, 59])
@pytest.mark.parametrize("reads", [1, 2, 7, 60])
def test_the_end_and_the_usage_of_an_answer_are_kept_however_it_is_read(reads: int, told_at: int) -> None:
    events = [data(choice(content=f"word {number} " * 5)) for number in range(60)]
    events[told_at] = data({**choice(content="a"), "usage": {"prompt_tokens": 7, "completion_tokens": told_at}})
    reader = AnswerReader(streamed=True, hides_usage=False)
    for at in range(0, 60, reads):
        read = b"".join(events[at : at + reads])
        assert reader.take(read) == read
    assert (reader.tokens, reader.usage()) == (60, Usage(7, told_at))
    assert reader.tail.endswith(events[59])
    assert b"".join(events).endswith(reader.tail)
    assert not reader.mid_event()
    assert not reader.cut_off()


@given(st.lists(one_event | st.sampled_from([*ASIDES.values(), b"data: [DONE]\n\n"]), min_size=1, max_size=6))
def test_an_answer_begins_with_its_first_token_or_end(events: list[bytes]) -> None:
    each = [meaning(event) for event in events]
    begins = next((at for at, what in enumerate(each) if what is Meaning.TOKEN or what is Meaning.END), None)
    _, begun = Opening(lines=False).take(b"".join(events))
    if begins is None:
        assert begun is None
    else:
        assert begun is not None
        assert begun.endswith(b"".join(events[begins:]))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_counted_by_their_meanings_however_they_are_cut(size: int) -> None:
    said = [{"message": {"role": "assistant", "content": text}, "done": False} for text in ("", "a", "", "b")]
    end = {"message": {"role": "assistant", "content": ""}, "done": True, "eval_count": 2}
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in (*said, end))
    reader = AnswerReader(streamed=True, hides_usage=False, lines=True)
    assert b"".join(reader.take(lines[at : at + size]) for at in range(0, len(lines), size)) == lines
    assert reader.tokens == 2
    reader.take(json.dumps(said[0]).encode() + b"\n")
    assert reader.idle
    assert reader.rest() == b""


def test_a_part_of_an_event_is_progress_only_if_it_is_large() -> None:
    reader = AnswerReader(streamed=True, hides_usage=False)
    reader.take(b'data: {"choices":[{"delta":{"audio":{"data":"')
    assert reader.idle
    reader.take(b"A" * 5000)
    assert not reader.idle


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"message": {"role": "assistant", "content": ""}, "done": False}, Meaning.EMPTY),
        ({"response": "", "done": False}, Meaning.EMPTY),
        ({"message": {"role": "assistant", "content": "a"}, "done": False}, Meaning.TOKEN),
        ({"message": {"role": "assistant", "content": "", "thinking": "a"}, "done": False}, Meaning.TOKEN),
        ({"message": {"role": "assistant", "content": "a"}, "done": True}, Meaning.TOKEN),
        ({"response": "", "done": True}, Meaning.END),
        ({"error": "no"}, Meaning.END),
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
    assert reader.tokens == 0
    assert not reader.idle
