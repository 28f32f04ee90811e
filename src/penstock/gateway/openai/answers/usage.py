"""The usage that an answer reports.

In OpenAI's API and Anthropic's it is a `usage` object, at the end of an answer or in a stream's last events; in
Cohere's it is in `meta`. In engines' own APIs, SGLang's `/generate` has it in `meta_info`, llama.cpp in `timings`,
Ollama in its last line, TGI in the last event's `details` or, without streaming, in headers. The prompt may be missing,
or 0: then our own estimate of it stands. Nonsensical numbers are ignored. A whole answer without usage is estimated by
the length of its text; of a stream the tokens are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from penstock.core.values.request import Usage
from penstock.gateway.openai.fields import TOKENS_MAX, KeptFields, LlamacppTimings, SglangMeta, UsageFields
from penstock.http.client.pool import Headers

T = TypeVar("T")

USAGE_BYTES_MAX: Final = 4096  # of one such object; those of engines have some 300
LOOKED_AT_MAX: Final = 8  # objects with that name: some have no numbers, such as a tool's parameter
OBJECTS_MAX: Final = 16  # in one such object
SAMPLES_MAX: Final = 128  # answers in one body, each with its own usage
_USAGE: Final = b'"usage"'
_COHERE: Final = b'"meta"'
_SGLANG: Final = b'"meta_info"'
_LLAMACPP: Final = b'"timings"'
_VALUE: Final = re.compile(rb"\s*:\s*(?=\{)")
_HEADERS: Final = (
    b"x-generated-tokens",
    b"x-prompt-tokens",
    b"x-compute-tokens",
)  # TGI's, and TEI's of embeddings
_GENERATED: Final = re.compile(rb'"generated_tokens"\s*:\s*(\d{1,10})\b')
_INPUT: Final = re.compile(rb'"input_length"\s*:\s*(\d{1,10})\b')
_EVALUATED: Final = re.compile(rb'"prompt_eval_count"\s*:\s*(\d{1,10})\b')
_MADE: Final = re.compile(rb'"eval_count"\s*:\s*(\d{1,10})\b')
BYTES_PER_TOKEN: Final = 4  # English prose; code has fewer, so an estimate is rather too low
#: The text fields of a whole answer, in the known APIs.
_TEXTS: Final = ("choices", "output", "content", "message", "response", "text", "generated_text")
_LABELS: Final = frozenset({"role", "type", "id", "object", "finish_reason", "stop_reason", "status", "call_id"})

_object_at: Final = json.JSONDecoder().raw_decode
_decode: Final = msgspec.json.Decoder().decode
_decode_kept: Final = msgspec.json.Decoder(KeptFields).decode
_usage_fields: Final = msgspec.json.Decoder(UsageFields)
_sglang_fields: Final = msgspec.json.Decoder(SglangMeta)
_llamacpp_fields: Final = msgspec.json.Decoder(LlamacppTimings)


def read_usage(data: bytes | bytearray, *, first: bool = False) -> Usage | None:
    """Returns the usage from the last usage object in some bytes of an answer, or the `first` one.

    None if no such object has numbers that make sense.
    """
    for name in (_USAGE, _COHERE):
        at = data.find(name) if first else data.rfind(name)
        for _ in range(LOOKED_AT_MAX):
            if at < 0:
                break
            told = _object_after(data, at + len(name), _usage_fields)
            if told is not None and (usage := _usage(told)) is not None:
                return usage
            at = data.find(name, at + 1) if first else data.rfind(name, 0, at)
    return None


def read_kept(answer: bytes) -> tuple[str, Usage | None]:
    """Returns the status of an answer that its engine keeps, and its usage; "": it has none, or can't be read."""
    try:
        told = _decode_kept(answer)
        status = _decode(told.status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", None
    usage = read_usage(b'"usage":' + bytes(told.usage))
    return (status if isinstance(status, str) else ""), usage


def _usage(told: UsageFields) -> Usage | None:
    prompt, completion = told.prompt_tokens, told.completion_tokens
    if prompt is None:
        prompt = told.input_tokens
    if completion is None:
        completion = told.output_tokens
    total = told.total_tokens
    if prompt is None and completion is None and total is None:
        cohere = told.tokens or told.billed_units
        return None if cohere is None else _usage(cohere)
    if total is not None:  # of a reranking it is all that is told
        if prompt is None:
            prompt = total - (completion or 0.0)
        elif completion is None:
            completion = total - prompt
    details = told.prompt_tokens_details or told.input_tokens_details
    told_cached = told.cache_read_input_tokens if details is None else details.cached_tokens
    prompt, completion, cached = prompt or 0.0, completion or 0.0, told_cached or 0.0
    if not (0 <= prompt < TOKENS_MAX and 0 <= completion < TOKENS_MAX and 0 <= cached < TOKENS_MAX):
        return None
    if details is None and cached:  # Anthropic counts them apart
        return Usage(int(prompt + cached), int(completion), int(cached), cached_told=True)
    made = told.completion_tokens_details or told.output_tokens_details
    reasoning = 0 if made is None else int(min(max(made.reasoning_tokens or 0.0, 0.0), completion))
    cached = min(cached, prompt)
    known = told_cached is not None
    return Usage(int(prompt), int(completion), int(cached), cached_told=known, reasoning_tokens=reasoning)


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
    if (own := _samples(_SGLANG, tail, _sglang_fields, _sglang, streamed=streamed)) or (
        own := _samples(_LLAMACPP, tail, _llamacpp_fields, _llamacpp, streamed=streamed)
    ):
        return _sum(own), None
    if (made := _last(_MADE, tail)) is not None:
        evaluated = _last(_EVALUATED, tail)  # missing if all of the prompt was cached
        return (None, made) if evaluated is None else (Usage(evaluated, made), None)
    if (evaluated := _last(_EVALUATED, tail)) is not None:  # an embedding
        return Usage(evaluated, 0), None
    told = {name.lower(): value for name, value in headers if name.lower() in _HEADERS}
    generated, prompt = _number(told.get(_HEADERS[0], b"")), _number(told.get(_HEADERS[1], b""))
    if streamed or generated is None:
        generated, prompt = _last(_GENERATED, tail), _last(_INPUT, tail)
    if generated is not None and prompt:
        return Usage(prompt, generated), None
    if generated is None and (computed := _number(told.get(_HEADERS[2], b""))):
        return Usage(computed, 0), None
    return None, generated


def _object_after(data: bytes | bytearray, at: int, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Returns the object that is the value of a name which ends at `at`; None if there is none, or it is too long."""
    value = _VALUE.match(data, at)
    if value is None:
        return None
    at = value.end()
    end = data.find(b"}", at, at + USAGE_BYTES_MAX) + 1
    if data.count(b"{", at, end) > 1:  # mostly the details of its numbers
        end = _end_after(data, at, end)
    try:
        return decoder.decode(data[at:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a text with a brace, or no JSON
        pass
    try:
        told, _ = _object_at(data[at : at + USAGE_BYTES_MAX].decode("latin-1"))
        return msgspec.convert(_tidied(told), decoder.type)
    except (ValueError, RecursionError):
        return None


def _tidied(told: object) -> object:
    """Returns an object without lists: an empty one stands for no details, where a language has one type for both."""
    if not isinstance(told, dict):
        return told
    return {name: _tidied(inner) for name, inner in told.items() if not isinstance(inner, list)}


def _end_after(data: bytes | bytearray, at: int, end: int) -> int:
    """Returns the end of an object whose braces are not in texts; `end`: of its first inner object."""
    for _ in range(OBJECTS_MAX):
        if data.count(b"{", at, end) == data.count(b"}", at, end):
            break
        end = data.find(b"}", end, at + USAGE_BYTES_MAX) + 1
    return end


def _samples(
    name: bytes, tail: bytes, decoder: msgspec.json.Decoder[T], read: Callable[[T], Usage | None], *, streamed: bool
) -> list[Usage]:
    """Returns the usage of each answer in a body, the last one first; of a stream the last one, which has all."""
    found: list[Usage] = []
    at = len(tail)
    for _ in range(SAMPLES_MAX):
        at = tail.rfind(name, 0, at)
        if at < 0:
            break
        told = _object_after(tail, at + len(name), decoder)
        if told is not None and (usage := read(told)) is not None:
            found.append(usage)
            if streamed:
                break
    return found


def _sum(parts: list[Usage]) -> Usage:
    return Usage(
        sum([part.prompt_tokens for part in parts]),
        sum([part.completion_tokens for part in parts]),
        sum([part.cached_tokens for part in parts]),
        cached_told=parts[0].cached_told,
    )


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
