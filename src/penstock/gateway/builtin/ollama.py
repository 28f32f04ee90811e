"""`/api/version`, `/api/tags`, `/api/show`: the models in the dialect of Ollama's clients.

These clients list models here before they send `/api/chat` or `/v1/chat/completions`. They get the entries of
`/v1/models` in Ollama's shape; what no engine reports (files, sizes, families) is empty, because clients require the
fields. Many refuse a server that is older than what they need, so the version is that of the API, not Penstock's.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from penstock.engines.recognise import PENSTOCK

API = "0.6.4"  # the first release that names a model's capabilities
VERSION = {"version": API, "name": PENSTOCK}
NO_MODEL = 'The body has to be a JSON object with the name of a model, as in {"model": "NAME"}.'
CREATED_S_MAX = 253402300799  # the year 9999, datetime's last
Entry = dict[str, object]


class _Shown(msgspec.Struct):
    """The body of `/api/show`. `name` is what clients before 2024 send."""

    model: str = ""
    name: str = ""


def tag(entry: Entry) -> Entry:
    """Returns one model of `/api/tags` from its `entry` in `/v1/models`."""
    name = entry["id"]
    return {"name": name, "model": name, "modified_at": _time(entry), "size": 0, "digest": "", "details": _details()}


def model_asked(body: bytes) -> str:
    """Returns the model that the body of `/api/show` names; empty if it names none."""
    try:
        shown = msgspec.json.decode(body, type=_Shown)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return shown.model or shown.name


def names(model: str) -> tuple[str, ...]:
    """Returns the names that Ollama's `model` may have in a list: without a tag it is the latest, too."""
    return (model,) if ":" in model else (model, f"{model}:latest")


def show(entry: Entry) -> Entry:
    """Returns the answer of `/api/show` from a model's `entry` in `/v1/models`."""
    about: Entry = {"general.architecture": "unknown", "general.basename": entry["id"]}
    if type(tokens := entry.get("max_model_len")) is int:
        about["unknown.context_length"] = tokens
    able = entry.get("capabilities")
    return {
        **dict.fromkeys(("modelfile", "parameters", "template"), ""),
        "modified_at": _time(entry),
        "details": _details(),
        "model_info": about,
        "capabilities": able if isinstance(able, list) else ["completion"],
    }


def _details() -> Entry:
    empty = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
    return {**empty, "families": []}


def _time(entry: Entry) -> str:
    created_s = entry.get("created")
    known = type(created_s) is int and 0 <= created_s <= CREATED_S_MAX
    return datetime.fromtimestamp(created_s if known else 0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # type: ignore[arg-type]
