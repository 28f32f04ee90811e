"""In which fields do engines take a model, an adapter, or the length and number of answers: may this key ask for it?

Three tables, a row per API: every place in a body counts for any engine, because several kinds may serve a model. A
value may be one, or a list of one per prompt. If a body has no length, the bound is inserted if the field is a
top-level one; a deeper one has to be given by the client. The bound is one for all answers of a request, to each of its
prompts: so each may be as long as the bound divided by their number. Paths whose answers have no such field (audio,
vectors) are not bounded. On a path that a setting adds, one of these fields has to be given.

Parsers differ in which of two equal fields counts (Go's merges objects, and takes `Model` for `model`), so for a key
with bounds these fields must be given once and in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock.gateway.openai.body import BadBody
from penstock.gateway.openai.splice import Body, names, set_field, values_of

VALUE_BYTES_MAX = 64 * 1024  # of a field that is looked into; options of some dozen prompts
NUMBER_BYTES_MAX = 64
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_scalar = msgspec.json.Decoder().decode

#: From the top-level field down. Lists on the way are passed through.
Place = tuple[str, ...]

_TGI_LENGTH = ("parameters", "max_new_tokens")
_SGLANG_LENGTH = ("sampling_params", "max_new_tokens")
_VLLM_LENGTH = ("sampling_params", "max_tokens")
_OLLAMA_LENGTH = ("options", "num_predict")

#: By API: places of a model or an adapter, beside the field `model`.
NAMES: dict[str, tuple[Place, ...]] = {
    "sglang": (("lora_path",), ("lora_id",)),
    "tgi, lorax": (("parameters", "adapter_id"), ("parameters", "merged_adapters", "ids"), ("adapter_id",)),
    "llamacpp": (("lora", "id"),),  # by number, which is the name then
    "trtllm": (("lora_request", "lora_name"), ("lora_request", "lora_path"), ("lora_request", "lora_int_id")),
    "lmdeploy": (("adapter_name",),),
    "openrouter, litellm": (("models",), ("fallbacks", "model")),
}
#: By API: places of the length of one answer, in tokens.
LENGTHS: dict[str, tuple[Place, ...]] = {
    "openai, vllm, anthropic": (("max_completion_tokens",), ("max_tokens",), ("max_output_tokens",)),
    "vllm": (_VLLM_LENGTH,),
    "sglang": (_SGLANG_LENGTH,),
    "tgi": (_TGI_LENGTH,),
    "llamacpp": (("n_predict",),),
    "ollama": (_OLLAMA_LENGTH,),
    "lmdeploy": (("request_output_len",), ("max_new_tokens",)),
}
#: By API: places of the number of answers to one prompt.
COUNTS: dict[str, tuple[Place, ...]] = {
    "openai, vllm, sglang, lmdeploy": (("n",), ("best_of",)),
    "llamacpp": (("n_cmpl",),),
    "vllm, sglang": (("sampling_params", "n"), ("sampling_params", "best_of")),
    "tgi": (("parameters", "best_of"), ("parameters", "n")),
    "trtllm": (("beam_width",),),
}
_NAMES = [place for places in NAMES.values() for place in places]
_LENGTHS = [place for places in LENGTHS.values() for place in places]
_COUNTS = [place for places in COUNTS.values() for place in places]
#: The values that a key's bounds apply to.
_GUARDED = frozenset({"model", *[place[0] for place in (*_NAMES, *_LENGTHS, *_COUNTS)]})

_CHAT: tuple[Place, ...] = (("max_tokens",), ("max_completion_tokens",))
_LLAMACPP: tuple[Place, ...] = (("n_predict",), ("max_tokens",))
#: Places of the length behind a path. The first is inserted if it is a top-level field.
_OF_PATH: dict[str, tuple[Place, ...]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/chat/completions/batch": _CHAT,
    "/v1/completions": (("max_tokens",),),
    "/v1/messages": (("max_tokens",),),
    "/v1/responses": (("max_output_tokens",),),
    "/v1/responses/compact": (("max_output_tokens",),),
    "/chat/completions": _CHAT,
    "/invocations": _CHAT,
    "/completion": _LLAMACPP,
    "/completions": _LLAMACPP,
    "/infill": _LLAMACPP,
    "/generate": (_SGLANG_LENGTH,),
    "/generate_stream": (_TGI_LENGTH,),
    "/inference/v1/generate": (_VLLM_LENGTH,),
    "/api/chat": (_OLLAMA_LENGTH,),
    "/api/generate": (_OLLAMA_LENGTH,),
}
#: If several kinds of engines share a path, the field of the prompt shows which of them can serve it.
_SHARED_PATHS = ("/generate", "/invocations")
_OF_PROMPT: dict[str, Place] = {
    "inputs": _TGI_LENGTH,
    "text": _SGLANG_LENGTH,
    "input_ids": _SGLANG_LENGTH,
    "input_embeds": _SGLANG_LENGTH,
    "prompt": ("max_tokens",),  # LMDeploy's, and vLLM's first API
}


class Asked:
    """The values of a body that a key may bound."""

    __slots__ = ("_fields", "_prompts")

    def __init__(self, body: Body) -> None:
        """Raises `BadBody` if the body gives a field twice, or in another case."""
        given = names(body)
        for name in given:
            if (meant := name.casefold()) != name and meant in _GUARDED:
                raise BadBody(f"`{name[:40]}` is not a field; `{meant}` is.", meant)
        self._prompts = [name for name in _OF_PROMPT if name in given]
        self._fields: dict[str, bytes] = {}
        if _GUARDED.isdisjoint(given):
            return
        for name, value in values_of(body, _GUARDED):
            if name in self._fields:
                raise BadBody(f"`{name}` is given more than once.", name)
            self._fields[name] = value

    def names(self) -> Iterator[str]:
        """The adapters and further models that the body names."""
        for place, values in self._given(_NAMES):
            for value in values:
                if isinstance(value, str | int):
                    yield str(value)
                elif value is not None:
                    raise BadBody(f"`{'.'.join(place)}` has to be a name, as this key's models are bounded.", place[0])

    def bound(self, body: Body, path: str, most: int, prompts: int, *, is_known: bool) -> tuple[Body, bool]:
        """Returns the body with at most `most` tokens in all answers to its `prompts`, and whether that was inserted.

        `is_known`: the path's API is one of the tables; otherwise the request has to give the number. Raises `BadBody`
        if it asks for more, or has to give the number that it wants.
        """
        answers = prompts
        for place, values in self._given(_COUNTS):
            for value in values:
                if value is not None:
                    answers = max(answers, prompts * _whole(".".join(place), value, most))
        each = most // answers
        if not each:
            raise BadBody(f"The request asks for {answers} answers; this key may ask for {most} tokens at most.", "n")
        told: set[Place] = set()
        for place, values in self._given(_LENGTHS):
            for value in values:
                if value is not None:
                    _check(".".join(place), value, most, answers)
            if values and None not in values:
                told.add(place)
        if not is_known and not told:
            raise BadBody(f"This key's answers have {each:,} tokens at most: set `max_tokens`.", "max_tokens")
        put_in = False
        for places in self._wanted(path):
            if told.isdisjoint(places):
                first = places[0]
                if len(first) > 1:
                    words = f"This key's answers have {each:,} tokens at most: set `{'.'.join(first)}`."
                    raise BadBody(words, first[0])
                body, put_in = set_field(body, first[0], b"%d" % each), True
        return body, put_in

    def _wanted(self, path: str) -> list[tuple[Place, ...]]:
        """Of each of these one has to be given."""
        if self._prompts and path in _SHARED_PATHS:
            return [(place,) for place in dict.fromkeys([_OF_PROMPT[name] for name in self._prompts])]
        return [_OF_PATH[path]] if path in _OF_PATH else []

    def _given(self, places: Iterable[Place]) -> Iterator[tuple[Place, list[object]]]:
        """Yields the values at places with a given top-level field; None for null or nothing."""
        for place in places:
            if place[0] in self._fields:
                yield place, list(_inside(self._fields[place[0]], place[1:], place[0], several=places is _NAMES))


def _inside(raw: bytes, place: Place, field: str, *, several: bool) -> Iterator[object]:
    """Yields the values at a place inside of a value, through lists.

    `several`: there may be a list of them at the place itself.
    """
    raw = raw.strip(b" \t\r\n")
    if len(raw) > VALUE_BYTES_MAX:
        raise BadBody(f"`{field}` is too large for a key with bounds.", field)
    try:
        if raw[:1] == b"[" and (place or several):
            for item in _items(raw):
                yield from _inside(bytes(item), place, field, several=several)
        elif raw[:1] == b"{" and place:
            inner = list(values_of(raw, place[:1]))
            if len(inner) > 1:
                raise BadBody(f"`{place[0]}` is given more than once in `{field}`.", field)
            yield from _inside(inner[0][1], place[1:], field, several=several) if inner else (None,)
        elif raw == b"null":
            yield None
        else:
            yield _scalar(raw) if len(raw) <= NUMBER_BYTES_MAX or raw[:1] == b'"' else raw
    except (msgspec.DecodeError, RecursionError):
        yield raw


def _whole(name: str, value: object, most: int) -> int:
    if type(value) is not int or value < 1:
        raise BadBody(f"`{name}` has to be a whole number from 1 to {most}, as this key's answers are bounded.", name)
    return value


def _check(name: str, value: object, most: int, answers: int) -> None:
    tokens = _whole(name, value, most)
    if tokens * answers > most:
        times = f" for each of {answers} answers" if answers > 1 else ""
        raise BadBody(f"`{name}` is {tokens}{times}; this key may ask for {most} tokens at most.", name)
