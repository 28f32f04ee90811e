"""Loading and checking the settings.

`load` reads defaults, file, environment and flags (later wins), checks everything, and gives one frozen `Settings`, or
raises one `ConfigError` that lists every problem. It runs once, at start; nothing here touches the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import SecretStr, ValidationError

from penstock.config.address import NOWHERE
from penstock.config.checks import cross_checks
from penstock.config.layers import Flags, Merged, merge
from penstock.config.model import EndpointSection, Settings
from penstock.config.problems import ConfigError, Filled, Location, Problem, problem, write_path
from penstock.config.sections.share import OWN
from penstock.config.source import parse

__all__ = [
    "ConfigError",
    "EndpointSection",
    "Flags",
    "Problem",
    "Settings",
    "config_hash",
    "endpoints_from_text",
    "from_mapping",
    "load",
    "require_endpoints",
    "shared_hash",
    "summary",
]

HASH_CHARACTERS = 12  # enough to distinguish configurations, short enough for a label


def load(path: str | None, env: Mapping[str, str], flags: Flags | None = None) -> Settings:
    """Returns the settings from every source. Raises `ConfigError` with all problems."""
    return built(merge(path, env, flags or Flags()))


def from_mapping(document: Mapping[str, object]) -> Settings:
    """Returns the settings that a file with this content would give. Raises `ConfigError` with all problems."""
    return built(Merged(document=dict(document)))


def endpoints_from_text(text: str, origin: str, env: Mapping[str, str]) -> tuple[EndpointSection, ...]:
    """Returns the endpoints that a YAML or JSON text lists, as entries of `endpoints` or as URLs. Raises `ConfigError`.

    `env` holds the variables that the text may use, only for credentials: a variable in an address would leak to that
    address. `origin` names the text in messages.
    """
    found = parse(text, origin, env)
    value: object = found.value
    above: Location = ("endpoints",)
    if isinstance(value, dict) and list(value) == ["endpoints"]:
        value, above = value["endpoints"], ()
    if not isinstance(value, list):  # an empty file was truncated
        raise ConfigError([Problem(origin, "expected a list of endpoints", "write `[]` for none")])
    entries = [{"url": item} if isinstance(item, str) else item for item in value]
    elsewhere = [
        Problem(write_path(("endpoints", index, key)), "a variable may only stand in `api_key` here")
        for index, entry in enumerate(entries)
        if isinstance(entry, dict)
        for key, its in entry.items()
        if key != "api_key" and _is_filled(its)
    ]
    if elsewhere:
        raise ConfigError(elsewhere)
    unresolved = {(*above, *location) for location in found.unresolved}
    merged = Merged(document={"listen": NOWHERE, "endpoints": entries}, problems=found.problems, unresolved=unresolved)
    return built(merged).endpoints


def _is_filled(value: object) -> bool:
    """True if any part of a value came out of a variable."""
    if isinstance(value, Mapping):
        return any(_is_filled(its) for its in value.values())
    return any(map(_is_filled, value)) if isinstance(value, list) else isinstance(value, Filled)


def summary(settings: Settings) -> str:
    def count(n: int, thing: str) -> str:
        return f"{n} {thing}" if n == 1 else f"{n} {thing}s"

    parts = [
        count(len(settings.endpoints), "endpoint"),
        *([count(len(settings.discovery), "discovery source")] if settings.discovery else []),
        count(len(settings.bands), "band"),
        f"routing {settings.routing.policy}",
        f"queue {'on' if settings.queue.enabled else 'off'}",
        f"config {config_hash(settings)}",
    ]
    return f"ok: {', '.join(parts)}"


def require_endpoints(settings: Settings) -> None:
    """Raises `ConfigError` if there is no endpoint, and nothing that could ever name one."""
    if not settings.endpoints and not settings.discovery:
        message = "no endpoints: give --endpoint URL or endpoints: in the file, or discovery:"
        raise ConfigError([Problem("endpoints", message)])


def config_hash(settings: Settings) -> str:
    """Returns a short hash that is equal for equal settings, wherever they came from. Secrets go in as hashes."""
    return _hash_of(settings.model_dump())


def shared_hash(settings: Settings) -> str:
    """Returns a short hash that is equal for the settings of two gateways that may share one queue."""
    return _hash_of(settings.model_dump(exclude=set(OWN)))


def _hash_of(document: object) -> str:
    text = json.dumps(document, default=_hashed_secret, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARACTERS]


def _hashed_secret(value: object) -> str:
    assert isinstance(value, SecretStr), "everything else in the settings is JSON"
    return hashlib.sha256(value.get_secret_value().encode()).hexdigest()


def built(merged: Merged) -> Settings:
    """Returns the settings of these layers. Raises `ConfigError` with all problems."""
    if merged.document.get("batch") or isinstance(merged.document.get("bands"), dict):
        from penstock.config.former_words import moved  # noqa: PLC0415 - few settings need it

        merged = moved(merged)
    found: list[tuple[Location, Problem]] = []
    settings = None
    try:
        settings = Settings.model_validate(merged.document)
    except ValidationError as error:
        from penstock.config.explain import explain  # noqa: PLC0415 - no start needs it

        found += explain(error, merged.document)
    found += cross_checks(merged.document)
    if settings is not None and not settings.store.enabled and (needs := settings.needs_store):
        found.append(problem(tuple(needs.split(".")), "has no store, because `store` is off", "remove one of the two"))
    problems = merged.problems + [
        _with_origin(problem, merged.origin(location))
        for location, problem in found
        if location not in merged.unresolved
    ]
    if problems or settings is None:
        # Raised out here, so that it has no validation error, with the values in it, as its context.
        raise ConfigError(problems)
    return settings.with_origins(merged.said_by)


def _with_origin(problem: Problem, origin: str | None) -> Problem:
    if origin is None:
        return problem
    return Problem(problem.path, f"{problem.message} (from {origin})", problem.suggestion)
