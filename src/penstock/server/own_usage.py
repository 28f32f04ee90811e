"""What does an answer in an engine's own API say it cost?

TGI tells generated tokens in the last event's `details`, or, where the answer does not stream, in headers; SGLang's
`/generate` tells all in `meta_info`. Either may leave out the prompt: then our own estimate of it stands.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.request import Usage
from penstock.server.upstream import Headers

TOKENS_MAX = 2**31
_HEADERS = (b"x-generated-tokens", b"x-prompt-tokens")
_GENERATED = re.compile(rb'"generated_tokens": ?(\d{1,10})\b')
_INPUT = re.compile(rb'"input_length": ?(\d{1,10})\b')
_META = re.compile(rb'"meta_info": ?(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


_decode = msgspec.json.Decoder(_Meta).decode


def own_usage(headers: Headers, tail: bytes, *, streamed: bool) -> tuple[Usage | None, int | None]:
    """The usage, where it is whole; and the tokens made, where only they are told."""
    found = _META.findall(tail)
    if found:
        return _sglang(found[-1]), None
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


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return _number(found[-1]) if found else None


def _number(text: bytes) -> int | None:
    if not (text.isdigit() and len(text) <= 10):
        return None
    value = int(text)
    return value if value < TOKENS_MAX else None
