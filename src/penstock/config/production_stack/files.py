"""Reads the files that flags name: the dynamic config and the external providers.

They are parsed like our settings (`source.parse`): duplicate keys are problems, and nothing is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.config.problems import ConfigError, Problem, show
from penstock.config.production_stack.command_line import Words, from_file
from penstock.config.source import FILE_BYTES_MAX, parse

OPENAI_KEY = "OPENAI_API_KEY"  # their default
_PROVIDER = ("name", "type", "api_base", "models", "api_key_env_var", "timeout", "max_retries", "custom_headers")


class Provider(msgspec.Struct, frozen=True):
    """One hosted engine."""

    name: str
    url: str
    key: str  #: the variable that has its credential
    models: tuple[str, ...]
    aliases: dict[str, str]


def dynamic_config(path: str) -> Words:
    """Returns the flags of a dynamic config."""
    document, problems = _mapping(path)
    found = Words() if document is None else from_file(_flat(document), path)
    found.problems[:0] = problems
    return found


def _flat(document: Mapping[str, object]) -> dict[str, object]:
    """Turns mappings of models and aliases into the flags' lists."""
    flat = dict(document)
    models, aliases = flat.get("static_models"), flat.get("static_aliases")
    if isinstance(models, Mapping):
        each = [(name, its) for name, its in models.items() if isinstance(its, Mapping)]
        pairs = [(name, url) for name, its in each for url in _items(its.get("static_backends"))]
        flat["static_models"] = ",".join(str(name) for name, _ in pairs)
        flat["static_backends"] = ",".join(str(url) for _, url in pairs)
    if isinstance(aliases, Mapping):
        flat["static_aliases"] = ",".join(f"{alias}:{model}" for alias, model in aliases.items())
    return flat


def providers(path: str) -> tuple[list[Provider], list[str], list[Problem]]:
    """Returns a file's providers, warnings and problems."""
    document, problems = _mapping(path)
    warnings: list[str] = []
    if document is None:
        return [], warnings, problems
    listed = document.get("external_providers")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        problems.append(Problem(path, "expected a list under `external_providers`"))
        return [], warnings, problems
    found = []
    for index, raw in enumerate(listed):
        at = f"{path}: external_providers[{index}]"
        wrong = list(_wrong(raw, at))
        problems += wrong
        if wrong or not isinstance(raw, Mapping):
            continue
        warnings += [
            f"{at}.{key} means nothing here: `timeouts` and `retry` hold for all endpoints"
            for key in ("timeout", "max_retries")
            if raw.get(key) is not None
        ]
        models = [model for model in _items(raw["models"]) if isinstance(model, Mapping)]
        found.append(
            Provider(
                name=str(raw["name"]),
                url=str(raw["api_base"]).rstrip("/"),
                key=str(raw.get("api_key_env_var") or OPENAI_KEY),
                models=tuple(str(model["id"]) for model in models),
                aliases={str(alias): str(model["id"]) for model in models for alias in _items(model.get("aliases"))},
            )
        )
    return found, warnings, problems


def _wrong(raw: object, at: str) -> Iterator[Problem]:
    if not isinstance(raw, Mapping):
        yield Problem(at, f"expected a mapping, found {show(raw)}")
        return
    for key in raw:
        if key not in _PROVIDER:
            yield Problem(f"{at}.{key}", "is unknown", f"known here: {', '.join(_PROVIDER)}")
    for key in ("name", "type", "api_base"):
        if not isinstance(raw.get(key), str) or not raw[key]:
            yield Problem(f"{at}.{key}", "is required")
    if isinstance(raw.get("type"), str) and raw["type"] != "openai":
        yield Problem(f"{at}.type", f"{show(raw['type'])}: expected openai")
    if raw.get("custom_headers"):
        yield Problem(
            f"{at}.custom_headers",
            "cannot be sent: an endpoint has one credential, `Authorization: Bearer`",
            "add them in a proxy between Penstock and the provider",
        )
    models = _items(raw.get("models"))
    if not models or not all(isinstance(model, Mapping) and isinstance(model.get("id"), str) for model in models):
        yield Problem(f"{at}.models", "expected a list of models, each with its `id`")


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _mapping(path: str) -> tuple[Mapping[str, object] | None, list[Problem]]:
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            return None, [Problem(path, f"is larger than {FILE_BYTES_MAX // 2**20} MiB")]
        read = parse(content.decode("utf-8-sig"), path, None)
    except OSError as error:
        return None, [Problem(path, f"cannot be read: {(error.strerror or str(error)).lower()}")]
    except (ValueError, UnicodeDecodeError):
        return None, [Problem(path, "is not UTF-8 text")]
    except ConfigError as error:
        return None, list(error.problems)
    problems = [Problem(f"{path}: {problem.path}", problem.message, problem.suggestion) for problem in read.problems]
    if not isinstance(read.value, Mapping):
        return None, [*problems, Problem(path, "expected a mapping (`key: value`) at the top")]
    return read.value, problems
