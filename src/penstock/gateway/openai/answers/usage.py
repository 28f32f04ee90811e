"""The usage that an answer reports.

In OpenAI's API and Anthropic's it is a `usage` object, at the end of an answer or in a stream's last events. In
engines' own APIs, SGLang's `/generate` has it in `meta_info`, llama.cpp in `timings`, Ollama in its last line, TGI in
the last event's `details` or, without streaming, in headers. The prompt may be missing: then our own estimate of it
stands. Nonsensical numbers are ignored. A whole answer without it is estimated by the length of its text; of a stream
the events are counted.
"""

from __future__ import annotations

import json
import re
from typing import TypeVar

import msgspec

from penstock.core.values.request import Usage
from penstock.gateway.openai.fields import LlamacppTimings, SglangMeta, UsageFields
from penstock.http.client.pool import Headers

T = TypeVar("T")

TOKENS_MAX = 2**31
USAGE_BYTES_MAX = 4096  # of one such object; those of engines have some 300
LOOKED_AT_MAX = 8  # objects with that name: some have no numbers, such as a tool's parameter
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_META = re.compile(rb'"meta_info"\s*:\s*(?=\{)')
_TIMINGS = re.compile(rb'"timings"\s*:\s*(?=\{)')
_HEADERS = (b"x-generated-tokens", b"x-prompt-tokens")
_GENERATED = re.compile(rb'"generated_tokens"\s*:\s*(\d{1,10})\b')
_INPUT = re.compile(rb'"input_length"\s*:\s*(\d{1,10})\b')
_EVALUATED = re.compile(rb'"prompt_eval_count"\s*:\s*(\d{1,10})\b')
_MADE = re.compile(rb'"eval_count"\s*:\s*(\d{1,10})\b')
BYTES_PER_TOKEN = 4  # English prose; code has fewer, so an estimate is rather too low
#: The text fields of a whole answer, in the known APIs.
_TEXTS = ("choices", "output", "content", "message", "response", "text", "generated_text")
_LABELS = frozenset({"role", "type", "id", "object", "finish_reason", "stop_reason", "status", "call_id"})

_object_at = json.JSONDecoder().raw_decode
_decode = msgspec.json.Decoder().decode


def read_usage(data: bytes, *, first: bool = False) -> Usage | None:
    """Returns the usage from the last usage object in some bytes of an answer, or the `first` one.

    None if no such object has numbers that make sense.
    """
    for told in _objects(_USAGE, data, UsageFields, first=first):
        usage = _usage(told)
        if usage is not None:
            return usage
    return None


def _usage(told: UsageFields) -> Usage | None:
    told_prompt = told.prompt_tokens if told.prompt_tokens is not None else told.input_tokens
    told_completion = told.completion_tokens if told.completion_tokens is not None else told.output_tokens
    details = told.prompt_tokens_details or told.input_tokens_details
    told_cached = told.cache_read_input_tokens if details is None else details.cached_tokens
    if told_prompt is None and told_completion is None:
        return None
    prompt, completion, cached = told_prompt or 0, told_completion or 0, told_cached or 0
    if not _sensible(prompt, completion, cached):
        return None
    if details is None and cached:  # Anthropic counts them apart
        return Usage(int(prompt + cached), int(completion), int(cached), cached_told=True)
    return Usage(int(prompt), int(completion), int(min(cached, prompt)), told_cached is not None)


def estimated_tokens(answer: bytes | bytearray, size: int) -> int:
    """Returns an estimate of the tokens of a whole answer without usage; 0 if it is not JSON.

    `answer`: all of its `size` bytes, or the last part of them.
    """
    if len(answer) < size:
        return size // BYTES_PER_TOKEN
    try:
        told = _decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    answers = told if isinstance(told, list) else [told]
    said = 0
    for one in answers:
        if isinstance(one, dict):
            said += _said_bytes([one[name] for name in _TEXTS if name in one])
    return -(-said // BYTES_PER_TOKEN)


def _said_bytes(value: object) -> int:
    """How much text there is, however deep."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    said = 0
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _LABELS:
                said += _said_bytes(inner)
    elif isinstance(value, list):
        for inner in value:
            said += _said_bytes(inner)
    return said


def own_usage(headers: Headers, tail: bytes, *, streamed: bool) -> tuple[Usage | None, int | None]:
    """Returns the usage from an engine's own API, and the tokens made if only these are reported.

    At most one of the two is not None. `tail` is the last part of the answer, or all of it.
    """
    for meta in _objects(_META, tail, SglangMeta):
        return _sglang(meta), None
    for timings in _objects(_TIMINGS, tail, LlamacppTimings):
        return _llamacpp(timings), None
    if (made := _last(_MADE, tail)) is not None:
        evaluated = _last(_EVALUATED, tail)  # missing if all of the prompt was cached
        return (None, made) if evaluated is None else (Usage(evaluated, made), None)
    told = {name.lower(): value for name, value in headers if name.lower() in _HEADERS}
    generated, prompt = _number(told.get(_HEADERS[0], b"")), _number(told.get(_HEADERS[1], b""))
    if streamed or generated is None:
        generated, prompt = _last(_GENERATED, tail), _last(_INPUT, tail)
    if generated is not None and prompt:
        return Usage(prompt, generated), None
    return None, generated


def _objects(name: re.Pattern[bytes], data: bytes, kind: type[T], *, first: bool = False) -> list[T]:
    """Returns the objects of that name, the last one first, or the `first` one first."""
    places = [found.end() for found in name.finditer(data)]
    if not first:
        places.reverse()
    objects = []
    for at in places[:LOOKED_AT_MAX]:
        try:
            value, _ = _object_at(data[at : at + USAGE_BYTES_MAX].decode("latin-1"))
            objects.append(msgspec.convert(value, kind))
        except (ValueError, RecursionError):
            continue
    return objects


def _sensible(prompt: float, completion: float, cached: float) -> bool:
    return 0 <= prompt < TOKENS_MAX and 0 <= completion < TOKENS_MAX and 0 <= cached < TOKENS_MAX


def _sglang(told: SglangMeta) -> Usage | None:
    prompt, completion, cached = told.prompt_tokens, told.completion_tokens, told.cached_tokens or 0
    if prompt is None or completion is None or not _sensible(prompt, completion, cached):
        return None
    return Usage(int(prompt), int(completion), int(min(cached, prompt)))


def _llamacpp(told: LlamacppTimings) -> Usage | None:
    computed, cached, made = told.prompt_n, told.cache_n or 0, told.predicted_n
    if computed is None or made is None or not _sensible(computed, cached, made):
        return None
    return Usage(int(computed + cached), int(made), int(cached), cached_told=told.cache_n is not None)


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return _number(found[-1]) if found else None


def _number(text: bytes) -> int | None:
    if not (text.isdigit() and len(text) <= 10):
        return None
    value = int(text)
    return value if value < TOKENS_MAX else None
