"""Parsing inference calls.

A path and a body become an `EngineCall`: the prompt's bytes, the number of output tokens, and the answer's shape. An
invalid call is a `CallError` with vLLM's status, type and words.
"""

from __future__ import annotations

import random
from collections.abc import Container
from typing import Any

import msgspec

from penstock.sim.fake_engine import text as engine_text
from penstock.sim.fake_engine.answers import (
    Answer,
    ChatAnswer,
    CompletionAnswer,
    MessagesAnswer,
    PooledAnswer,
    ResponsesAnswer,
    encode,
)

CHAT_TOKENS_MEAN, CHAT_TOKENS_SPREAD = 128, 32  # an answer's length without a limit
COMPLETION_TOKENS = 16  # vLLM's default
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
NO_KV = "The KV cache of this request did not come from the engine that was to compute it."
BROKEN = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class CallError(Exception):
    """A refusal on the wire."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    def body(self, path: str = "") -> bytes:
        if path.startswith("/v1/messages"):
            return encode({"type": "error", "error": {"type": self.kind, "message": self.message}})
        return encode({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}})


def bad_request(message: str, param: str | None = None) -> CallError:
    return CallError(400, "BadRequestError", message, param)


def busy() -> CallError:
    return CallError(503, "Service Unavailable", BUSY)


def no_kv() -> CallError:
    return CallError(500, "InternalServerError", NO_KV)


def broken() -> CallError:
    return CallError(500, "InternalServerError", BROKEN)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _CallBody(msgspec.Struct):
    """The fields that matter here; all others are ignored."""

    model: str | None = None
    messages: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: str | None = None
    query: str | None = None
    documents: list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    min_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None


_DECODER = msgspec.json.Decoder(_CallBody)


class EngineCall(msgspec.Struct):
    """A parsed inference request."""

    model: str
    prompt: bytes
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    stream: bool
    priority: int
    cache_salt: str
    answer: Answer
    kv_transfer: dict[str, Any]
    meets: tuple[str, int, int] | None  #: another engine: bootstrap host and port, and room


class CallReader:
    """Reads calls for one engine; `rng` draws lengths without a limit."""

    def __init__(self, *, model: str, adapters: Container[str], context_tokens_max: int, rng: random.Random) -> None:
        self._model = model
        self._adapters = adapters  # served beside it, under names of their own
        self._context_tokens_max = context_tokens_max
        self._rng = rng

    def read(self, path: str, raw: bytes, *, answer_id: str, created: int, priority: str | None) -> EngineCall:
        body = self._decode(raw)
        model = self._served(body)
        if body.stream_options is not None and not body.stream:
            raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
        facts: dict[str, Any] = {"model": model, "created": created, "include_usage": False}
        if body.stream_options is not None:
            facts["include_usage"] = bool(body.stream_options.include_usage)
        kind = _KINDS.get(path)
        if kind is None:
            prompt, result = _pooled(path, body, model)
            tokens, reason = 0, "stop"
            answer: Answer = PooledAnswer(answer_id, result=result, start=0, **facts)
        else:
            prompt = _prompt(path, body)
            tokens, reason = self._output_tokens(path, body, engine_text.token_count(prompt))
            facts["start"] = engine_text.first_word(prompt)
            if kind is MessagesAnswer:
                facts["prompt_tokens"] = engine_text.token_count(prompt)
            answer = kind(answer_id, **facts)
        return EngineCall(
            model=model,
            prompt=prompt,
            prompt_tokens=engine_text.token_count(prompt),
            output_tokens=tokens,
            finish_reason=reason,
            stream=bool(body.stream) and kind is not None,
            priority=_priority(body.priority, priority),
            cache_salt=body.cache_salt or "",
            answer=answer,
            kv_transfer=body.kv_transfer_params or {},
            meets=_meets(body),
        )

    def prompt(self, path: str, raw: bytes) -> bytes:
        """Returns only the prompt, for the tokenizer paths. Raises `CallError`."""
        body = self._decode(raw)
        self._served(body)
        return _prompt(path, body)

    def _served(self, body: _CallBody) -> str:
        model = body.model or self._model
        if model != self._model and model not in self._adapters:
            raise CallError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        return model

    def _decode(self, raw: bytes) -> _CallBody:
        try:
            return _DECODER.decode(raw)
        except msgspec.ValidationError as error:
            raise bad_request(f"1 validation error: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise bad_request(f"JSON decode error: {error}") from error

    def _output_tokens(self, path: str, body: _CallBody, prompt_tokens: int) -> tuple[int, str]:
        limit = body.max_completion_tokens or body.max_output_tokens or body.max_tokens
        if 0 in (body.max_completion_tokens, body.max_output_tokens, body.max_tokens):
            limit = 0
        if limit is None and path == "/v1/completions":
            limit = COMPLETION_TOKENS
        if limit is None:
            drawn = round(self._rng.gauss(CHAT_TOKENS_MEAN, CHAT_TOKENS_SPREAD))
            return max(1, drawn), "stop"
        if limit < 1:
            raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
        if body.min_tokens is not None and body.min_tokens > limit:
            message = f"min_tokens must be less than or equal to max_tokens={limit}, got {body.min_tokens}."
            raise bad_request(message, "min_tokens")
        room = self._context_tokens_max - prompt_tokens
        if limit > room > 0:
            raise bad_request(
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context "
                f"length is {self._context_tokens_max} tokens and your request has {prompt_tokens} input tokens "
                f"({limit} > {self._context_tokens_max} - {prompt_tokens}).",
                "max_tokens",
            )
        return limit, "length"


_KINDS: dict[str, type[Answer]] = {
    "/v1/chat/completions": ChatAnswer,
    "/v1/completions": CompletionAnswer,
    "/v1/responses": ResponsesAnswer,
    "/v1/messages": MessagesAnswer,
}
POOLED_PATHS = ("/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score")
INFERENCE_PATHS = (*_KINDS, *POOLED_PATHS)


def _prompt(path: str, body: _CallBody) -> bytes:
    if path == "/v1/completions":
        return engine_text.prompt_bytes(_required(body.prompt, "prompt"))
    if path == "/v1/responses":
        raw = engine_text.prompt_bytes(_required(body.input, "input"))
        return (body.instructions or "").encode() + engine_text.pictures_seen(raw)
    if path == "/tokenize" and bytes(body.prompt):
        return engine_text.prompt_bytes(bytes(body.prompt))
    return bytes(body.system) + engine_text.pictures_seen(_required(body.messages, "messages"))


def _required(raw: msgspec.Raw, name: str) -> bytes:
    value = bytes(raw)
    if not value or value == b"null":
        raise bad_request(f"1 validation error: Field required: {name}", name)
    return value


def _meets(body: _CallBody) -> tuple[str, int, int] | None:
    if body.bootstrap_host is None or body.bootstrap_port is None or body.bootstrap_room is None:
        return None
    return body.bootstrap_host, body.bootstrap_port, body.bootstrap_room


def _priority(body: int | None, header: str | None) -> int:
    """The header wins, as in vLLM."""
    if header is not None:
        try:
            return int(header)
        except ValueError as error:
            raise bad_request("X-Vllm-Priority must be an integer", "priority") from error
    return body or 0


def _pooled(path: str, body: _CallBody, model: str) -> tuple[bytes, dict[str, Any]]:
    """Returns the prompt and the whole result of a pooling call."""
    if path == "/v1/embeddings":
        prompts = _embedding_prompts(_required(body.input, "input"))
        data = [
            {"object": "embedding", "index": index, "embedding": engine_text.vector(prompt)}
            for index, prompt in enumerate(prompts)
        ]
        return b"".join(prompts), {"object": "list", "data": data, "model": model}
    if path.endswith("/rerank"):
        if body.query is None or body.documents is None:
            raise bad_request("1 validation error: Field required: query, documents", "query")
        ranks = [
            {"index": index, "document": {"text": text}, "relevance_score": _score(body.query, text)}
            for index, text in enumerate(body.documents)
        ]
        ranks.sort(key=lambda rank: -float(rank["relevance_score"]))  # type: ignore[arg-type]
        return "".join([body.query, *body.documents]).encode(), {"results": ranks}
    if body.text_1 is None or body.text_2 is None:
        raise bad_request("1 validation error: Field required: text_1, text_2", "text_1")
    left = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    right = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    scores = [
        {"index": index, "object": "score", "score": _score(left[index % len(left)] if left else "", text)}
        for index, text in enumerate(right)
    ]
    return "".join([*left, *right]).encode(), {"object": "list", "data": scores}


def _embedding_prompts(raw: bytes) -> list[bytes]:
    value: Any = msgspec.json.decode(raw)
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return [engine_text.prompt_bytes(encode(item)) for item in value]
    return [engine_text.prompt_bytes(raw)]


def _score(query: str, text: str) -> float:
    """Shared words over all words: enough to rank by."""
    one, other = set(query.lower().split()), set(text.lower().split())
    return len(one & other) / max(1, len(one | other))
