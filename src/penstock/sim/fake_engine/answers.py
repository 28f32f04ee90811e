"""Answers: the same words in each API.

An `Answer` knows one request's wire shape. Streamed, it is `head` (sent with the first token), one `token` per token,
and `last`, which carries the last token and all that follows it. Not streamed, it is `whole`. Each token's event is
rendered from a template made once.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.sim.engine.values import EngineUsage
from penstock.sim.fake_engine import text as engine_text

encode = msgspec.json.encode
_MARK = "\x01"  # the place of the word
_MARK_JSON = encode(_MARK)[1:-1]
DONE = b"data: [DONE]\n\n"


def openai_usage(usage: EngineUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _data(value: Any) -> bytes:
    return b"data: %b\n\n" % encode(value)


def _event(value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), encode(value))


class Answer:
    """The common part of the APIs; `start` is the index of the first word."""

    _before = b""
    _after = b""

    def __init__(self, answer_id: str, *, model: str, created: int, start: int, include_usage: bool) -> None:
        self.id = answer_id
        self.model = model
        self.created = created
        self.start = start
        self.include_usage = include_usage
        self.tells_usage = True  # False: the usage is left out, even if asked for
        self.transfer: dict[str, Any] = {}  # for an engine that continues from here

    def _template(self, event: bytes) -> None:
        self._before, self._after = event.split(_MARK_JSON)

    def text(self, count: int) -> str:
        return engine_text.text(self.start, count)

    def _counts(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {"usage": usage} if self.tells_usage else {}

    def head(self) -> bytes:
        return b""

    def token(self, index: int) -> bytes:
        return self._before + engine_text.word(self.start + index) + self._after

    def last(self, index: int, reason: str | None, usage: EngineUsage) -> bytes:
        raise NotImplementedError

    def whole(self, reason: str | None, usage: EngineUsage) -> bytes:
        raise NotImplementedError


class ChatAnswer(Answer):
    def __init__(self, answer_id: str, **facts: Any) -> None:
        super().__init__(f"chatcmpl-{answer_id}", **facts)
        self._template(_data(self._chunk({"content": _MARK}, None)))

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._envelope("chat.completion.chunk") | {"choices": [choice]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def head(self) -> bytes:
        return _data(self._chunk({"role": "assistant", "content": ""}, None))

    def last(self, index: int, reason: str | None, usage: EngineUsage) -> bytes:
        word = engine_text.word(self.start + index).decode()
        end = _data(self._chunk({"content": word}, reason))
        if self.include_usage and self.tells_usage:
            end += _data(self._envelope("chat.completion.chunk") | {"choices": [], "usage": openai_usage(usage)})
        return end + DONE

    def whole(self, reason: str | None, usage: EngineUsage) -> bytes:
        message = {"role": "assistant", "content": self.text(usage.completion_tokens), "tool_calls": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        answer = self._envelope("chat.completion") | {"choices": [choice]} | self._counts(openai_usage(usage))
        return encode(answer | self.transfer)


class CompletionAnswer(Answer):
    def __init__(self, answer_id: str, **facts: Any) -> None:
        super().__init__(f"cmpl-{answer_id}", **facts)
        self._template(_data(self._chunk(_MARK, None)))

    def _chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        return self._envelope([{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}])

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def last(self, index: int, reason: str | None, usage: EngineUsage) -> bytes:
        end = _data(self._chunk(engine_text.word(self.start + index).decode(), reason))
        if self.include_usage and self.tells_usage:
            end += _data(self._envelope([]) | {"usage": openai_usage(usage)})
        return end + DONE

    def whole(self, reason: str | None, usage: EngineUsage) -> bytes:
        chunk = self._chunk(self.text(usage.completion_tokens), reason)
        return encode(chunk | self._counts(openai_usage(usage)) | self.transfer)


class ResponsesAnswer(Answer):
    def __init__(self, answer_id: str, **facts: Any) -> None:
        super().__init__(f"resp_{answer_id}", **facts)
        self._item_id = f"msg_{answer_id}"
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [self._part(text)]
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _response(self, status: str, reason: str | None = None, usage: EngineUsage | None = None) -> dict[str, Any]:
        cut_short = {"reason": "max_output_tokens"} if reason == "length" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "error": None,
            "incomplete_details": cut_short,
            "instructions": None,
            "metadata": {},
            "output": [] if usage is None else [self._item(self.text(usage.completion_tokens), "completed")],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None
            if usage is None or not self.tells_usage
            else {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }

    def _events(self, first: int, *events: dict[str, Any]) -> bytes:
        return b"".join(_event(event | {"sequence_number": first + n}) for n, event in enumerate(events))

    def head(self) -> bytes:
        response = self._response("in_progress")
        return self._events(
            0,
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": self._item(None, "in_progress")},
            {"type": "response.content_part.added", "part": self._part("")} | self._place,
        )

    def _delta(self, index: int) -> dict[str, Any]:
        word = engine_text.word(self.start + index).decode()
        return {"type": "response.output_text.delta", "delta": word, "logprobs": []} | self._place

    def token(self, index: int) -> bytes:
        return self._events(4 + index, self._delta(index))

    def last(self, index: int, reason: str | None, usage: EngineUsage) -> bytes:
        text = self.text(usage.completion_tokens)
        final = self._final(reason, usage)
        return self._events(
            4 + index,
            self._delta(index),
            {"type": "response.output_text.done", "text": text, "logprobs": []} | self._place,
            {"type": "response.content_part.done", "part": self._part(text)} | self._place,
            {"type": "response.output_item.done", "output_index": 0, "item": final["output"][0]},
            {"type": "response.completed", "response": final},
        )

    def _final(self, reason: str | None, usage: EngineUsage) -> dict[str, Any]:
        return self._response("incomplete" if reason == "length" else "completed", reason, usage)

    def whole(self, reason: str | None, usage: EngineUsage) -> bytes:
        return encode(self._final(reason, usage))


class MessagesAnswer(Answer):
    def __init__(self, answer_id: str, *, prompt_tokens: int, **facts: Any) -> None:
        super().__init__(f"msg_{answer_id}", **facts)
        self._prompt_tokens = prompt_tokens
        delta = {"type": "text_delta", "text": _MARK}
        self._template(_event({"type": "content_block_delta", "index": 0, "delta": delta}))

    def _message(self, text: str | None, reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
        message = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [] if text is None else [{"type": "text", "text": text}],
            "stop_reason": reason,
            "stop_sequence": None,
        }
        return message | self._counts(usage)

    def _stop_reason(self, reason: str | None) -> str | None:
        return None if reason is None else "max_tokens" if reason == "length" else "end_turn"

    def _usage(self, usage: EngineUsage) -> dict[str, int]:
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,  # Anthropic counts them apart
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }

    def head(self) -> bytes:
        message = self._message(None, None, {"input_tokens": self._prompt_tokens, "output_tokens": 0})
        block = {"type": "text", "text": ""}
        return _event({"type": "message_start", "message": message}) + _event(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def last(self, index: int, reason: str | None, usage: EngineUsage) -> bytes:
        delta = {"stop_reason": self._stop_reason(reason), "stop_sequence": None}
        return (
            self.token(index)
            + _event({"type": "content_block_stop", "index": 0})
            + _event({"type": "message_delta", "delta": delta} | self._counts(self._usage(usage)))
            + _event({"type": "message_stop"})
        )

    def whole(self, reason: str | None, usage: EngineUsage) -> bytes:
        text = self.text(usage.completion_tokens)
        return encode(self._message(text, self._stop_reason(reason), self._usage(usage)))


class PooledAnswer(Answer):
    """Embeddings, scores, rankings: the result is known beforehand, but due only when the prefill is done."""

    def __init__(self, answer_id: str, *, result: dict[str, Any], **facts: Any) -> None:
        super().__init__(answer_id, **facts)
        self._result = result

    def whole(self, reason: str | None, usage: EngineUsage) -> bytes:  # noqa: ARG002
        counts = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        named = {"id": self.id, "created": self.created, "model": self.model}
        return encode(named | self._result | self._counts(counts))
