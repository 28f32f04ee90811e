"""What does an answer say it cost?

In OpenAI's API and Anthropic's a `usage` object tells it, at the end of an answer or in a stream's last events. In
engines' own APIs, SGLang's `/generate` tells it in `meta_info`, llama.cpp in `timings`, Ollama in its last line, TGI in
the last event's `details` or, where the answer does not stream, in headers. The prompt may be missing: then our own
estimate of it stands. Numbers that make no sense count as not told.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.values.request import Usage
from penstock.gateway.openai.fields import LlamacppTimings, SglangMeta, UsageFields
from penstock.http.client.pool import Headers

TOKENS_MAX = 2**31
USAGE = re.compile(rb'"usage": ?(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_USAGE_NAME = b'"usage":'
_HEADERS = (b"x-generated-tokens", b"x-prompt-tokens")
_GENERATED = re.compile(rb'"generated_tokens": ?(\d{1,10})\b')
_INPUT = re.compile(rb'"input_length": ?(\d{1,10})\b')
_EVALUATED = re.compile(rb'"prompt_eval_count": ?(\d{1,10})\b')
_MADE = re.compile(rb'"eval_count": ?(\d{1,10})\b')
_TIMINGS = re.compile(rb'"timings": ?(\{[^{}]*\})')
_META = re.compile(rb'"meta_info": ?(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')

_decode_usage = msgspec.json.Decoder(UsageFields).decode
_decode_meta = msgspec.json.Decoder(SglangMeta).decode
_decode_timings = msgspec.json.Decoder(LlamacppTimings).decode


def read_usage(data: bytes, *, first: bool = False) -> Usage | None:
    """Returns what the last usage object in some bytes of an answer tells, or the `first` one.

    None if there is no such object, or its numbers make no sense.
    """
    found = USAGE.search(data) if first else _last_usage(data)
    if found is None:
        return None
    try:
        usage = _decode_usage(found[1])
    except (msgspec.DecodeError, RecursionError):
        return None
    told_prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    told_completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    told_cached = usage.cache_read_input_tokens if details is None else details.cached_tokens
    prompt, completion, cached = told_prompt or 0, told_completion or 0, told_cached or 0
    if told_prompt is None and told_completion is None:
        return None
    if not (0 <= prompt < TOKENS_MAX and 0 <= completion < TOKENS_MAX and 0 <= cached < TOKENS_MAX):
        return None
    if details is None and cached:
        return Usage(prompt + cached, completion, cached, cached_told=True)  # Anthropic counts them apart
    return Usage(prompt, completion, min(cached, prompt), told_cached is not None)


def own_usage(headers: Headers, tail: bytes, *, streamed: bool) -> tuple[Usage | None, int | None]:
    """Returns the usage that an engine's own API tells, and the tokens made where nothing else is told.

    At most one of the two is not None. `tail` is the last part of the answer, or all of it.
    """
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
    generated, prompt = _number(told.get(_HEADERS[0], b"")), _number(told.get(_HEADERS[1], b""))
    if streamed or generated is None:
        generated, prompt = _last(_GENERATED, tail), _last(_INPUT, tail)
    if generated is not None and prompt:
        return Usage(prompt, generated), None
    return None, generated


def _last_usage(data: bytes) -> re.Match[bytes] | None:
    """Look from the end, where the usage stands: the text before it is the longer part."""
    at = data.rfind(_USAGE_NAME)
    while at >= 0:
        found = USAGE.match(data, at)
        if found is not None:
            return found
        at = data.rfind(_USAGE_NAME, 0, at)
    return None


def _sglang(meta: bytes) -> Usage | None:
    try:
        told = _decode_meta(meta)
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
