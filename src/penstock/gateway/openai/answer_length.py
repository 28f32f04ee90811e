"""How long may an answer be: what does a body say of it, and how is an engine told a bound?

Each API has a field for it, and some engines a second one, so all that a body may say is looked at. Where nothing is
said, the bound is put into the body; where the field lies a level deeper (TGI, SGLang, Ollama), the caller has to say
it, since only top-level fields are changed. Paths whose answers have no such field (audio, vectors) are not bounded.
"""

from __future__ import annotations

import msgspec

from penstock.gateway.openai.body import BadBody
from penstock.gateway.openai.fields import NOTHING, Text
from penstock.gateway.openai.splice import Body, names, set_field

NESTED_BYTES_MAX = 64 * 1024
NUMBER_BYTES_MAX = 64
_SAID = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
#: The field by which engines behind a path are told.
_FIELD = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/chat/completions": "max_tokens",
    "/invocations": "max_tokens",
    "/completion": "n_predict",
    "/completions": "n_predict",
    "/infill": "n_predict",
}
_TGI_OR_SGLANG = (("parameters", "max_new_tokens"), ("sampling_params", "max_new_tokens"))
_OLLAMA = (("options", "num_predict"),)
#: Where it lies deeper: one of these has to be said.
_DEEPER = {
    "/generate": _TGI_OR_SGLANG,
    "/generate_stream": _TGI_OR_SGLANG,
    "/inference/v1/generate": (("sampling_params", "max_tokens"),),
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
}
#: What a key's bounds go by.
_GUARDED = frozenset({"model", *_SAID, "parameters", "sampling_params", "options"})
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refuse_other_case(body: Body) -> None:
    """Raise `BadBody` where a field that bounds go by is given in another case, too: Ollama takes it for the same."""
    for name in names(body):
        if (meant := name.casefold()) != name and meant in _GUARDED:
            raise BadBody(f"`{name[:40]}` is no field; `{meant}` is.", meant)


def bounded(body: Body, text: Text, path: str, most: int) -> tuple[Body, bool]:
    """Returns the body of a request whose answers have at most `most` tokens each, and whether that was put in.

    Raises `BadBody` where the request asks for more, or has to say how many it wants.
    """
    said = False
    for name in _SAID:
        if (value := _top(text, name)) is not None:
            _check(name, value, most)
            said = True
    deeper = _DEEPER.get(path)
    if deeper is not None:
        found = [value for section, name in deeper if (value := _inside(text, section, name, most)) is not None]
        if not found:
            section, name = deeper[0]
            raise BadBody(f"This key's answers have {most:,} tokens at most: say so in `{section}.{name}`.", section)
        return body, False
    field = _FIELD.get(path)
    if said or field is None:
        return body, False
    return set_field(body, field, b"%d" % most), True


def _top(text: Text, name: str) -> object:
    """What a top-level field says; None where it is absent or null."""
    value = getattr(text, name)
    return (None if value is NOTHING else _number(value)) if isinstance(value, msgspec.Raw) else value


def _inside(text: Text, section: str, name: str, most: int) -> object:
    """What a field of a section says, once it was checked; None where it is absent or null."""
    raw = getattr(text, section)
    if raw is None or raw is NOTHING:
        return None
    try:
        values = _members(raw) if len(memoryview(raw)) <= NESTED_BYTES_MAX else {}
    except (msgspec.DecodeError, RecursionError):
        values = {}
    value = values.get(name)
    number = None if value is None else _number(value)
    if number is not None:
        _check(f"{section}.{name}", number, most)
    return number


def _number(raw: msgspec.Raw) -> object:
    """A number, or null as None; the raw value where it is anything else."""
    if len(memoryview(raw)) > NUMBER_BYTES_MAX:
        return raw
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw


def _check(name: str, value: object, most: int) -> None:
    if type(value) is not int or value < 1:
        raise BadBody(f"`{name}` has to be a whole number from 1 to {most}, as this key's answers are bounded.", name)
    if value > most:
        raise BadBody(f"`{name}` is {value}; this key may ask for {most} tokens at most.", name)
