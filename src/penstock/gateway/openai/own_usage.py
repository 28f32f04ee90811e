"""What does an answer in an engine's own API say it cost?

TGI tells generated tokens in the last event's `details`, or, where the answer does not stream, in headers; SGLang's
`/generate` tells all in `meta_info`, llama.cpp's own paths in `timings`, Ollama in its last line. The prompt may be
missing: then our own estimate of it stands.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.values.request import Usage
from penstock.http.client.pool import Headers

TOKENS_MAX = 2**31
_HEADERS = (b"x-generated-tokens", b"x-prompt-tokens")
_GENERATED = re.compile(rb'"generated_tokens": ?(\d{1,10})\b')
_INPUT = re.compile(rb'"input_length": ?(\d{1,10})\b')
_EVALUATED = re.compile(rb'"prompt_eval_count": ?(\d{1,10})\b')
_MADE = re.compile(rb'"eval_count": ?(\d{1,10})\b')
_TIMINGS = re.compile(rb'"timings": ?(\{[^{}]*\})')
_META = re.compile(rb'"meta_info": ?(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Timings(msgspec.Struct):
    prompt_n: int | None = None  # computed
    cache_n: int | None = None
    predicted_n: int | None = None


_decode_timings = msgspec.json.Decoder(_Timings).decode
_decode = msgspec.json.Decoder(_Meta).decode


def own_usage(headers: Headers, tail: bytes, *, streamed: bool) -> tuple[Usage | None, int | None]:
    """The usage, where it is whole; and the tokens made, where only they are told."""
    found = _META.findall(tail)
    if found:
        return _sglang(found[-1]), None
    timings = _TIMINGS.findall(tail)
    if timings:
        return _llamacpp(timings[-1]), None
    if (made := _last(_MADE, tail)) is not None:
        evaluated = _last(_EVALUATED, tail)  # left out where all of the prompt was cached
        return (None, made) if evaluated is None else (Usage(evaluated, made), None)
    told = {name.lower(): value for name, value in headers if name.lower() in _HEADERS}
    generated, prompt = (_number(told.get(name, b"")) for name in _HEADERS)
    if streamed or generated is None:
        generated, prompt = _last(_GENERATED, tail), _last(_INPUT, tail)
    if generated is not None and prompt:
        return Usage(prompt, generated), None
    return None, generated


def _sglang(meta: bytes) -> Usage | None:
    try:
        told = _decode(meta)
    except (msgspec.DecodeError, RecursionError):
        return None
    prompt, completion, cached = told.prompt_tokens, told.completion_tokens, told.cached_tokens or 0
    if prompt is None or completion is None or not all(0 <= n < TOKENS_MAX for n in (prompt, completion, cached)):
        return None
    return Usage(prompt, completion, min(cached, prompt))


def _llamacpp(timings: bytes) -> Usage | None:
    try:
        told = _decode_timings(timings)
    except (msgspec.DecodeError, RecursionError):
        return None
    computed, cached, made = told.prompt_n, told.cache_n or 0, told.predicted_n
    if computed is None or made is None or not all(0 <= n < TOKENS_MAX for n in (computed, cached, made)):
        return None
    return Usage(computed + cached, made, cached, cached_told=told.cache_n is not None)


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return _number(found[-1]) if found else None


def _number(text: bytes) -> int | None:
    if not (text.isdigit() and len(text) <= 10):
        return None
    value = int(text)
    return value if value < TOKENS_MAX else None
