"""Layers: merging defaults, file, environment and flags.

Later wins. Mappings merge key by key; a list replaces a list, except that an environment variable may name one item by
its number. Origins are kept, so that a message can name the variable or flag to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.config.address import UNIX
from penstock.config.model import DEFAULT_BANDS, Settings
from penstock.config.problems import ConfigError, Location, Problem, written_at
from penstock.config.source import parse, read_file

ENV_PREFIX = "PENSTOCK__"
_INDEX_DIGITS_MAX = 4


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line's settings. `endpoints` replace those of the file; `slots` is for those with `auto`."""

    endpoints: tuple[str, ...] = ()
    listen: str | None = None
    slots: int | None = None
    routing: str | None = None
    imbalance_threshold: str | None = None
    no_queue: bool = False
    workers: str | None = None
    host: str | None = None  #: the host of `listen`, which keeps its port
    port: str | None = None  #: likewise the port


@dataclass(slots=True)
class Merged:
    """All layers in one document, not checked yet."""

    document: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unresolved: set[Location] = field(default_factory=set)
    origins: dict[Location, str] = field(default_factory=dict)
    path: str | None = None  #: of the file, if any

    def origin(self, location: Location) -> str | None:
        """Returns the variable or flag that gave the value at `location`, or a value around it; None: neither did."""
        prefixes = (location[:length] for length in range(len(location), 0, -1))
        return next((self.origins[prefix] for prefix in prefixes if prefix in self.origins), None)

    def said_by(self, location: Location) -> str | None:
        """Returns the variable, flag or file that gave the value at `location`; None if it is a default."""
        if (origin := self.origin(location)) is not None:
            return origin
        if written_at(self.document, location) is None:
            return None
        return self.path or "the file"


def merge(path: str | None, env: Mapping[str, str], flags: Flags) -> Merged:
    """Merge file, environment and flags. Raises `ConfigError` if the file can't be used at all; see also `problems`."""
    merged = Merged(path=path)
    if path is not None:
        source = read_file(path, env)
        if isinstance(source.value, dict):
            merged.document = source.value
        merged.problems, merged.unresolved = source.problems, source.unresolved
    _apply_variables(merged, env)
    _apply_flags(merged, flags)
    return merged


def merge_texts(below: str, above: str, origins: Mapping[Location, str], env: Mapping[str, str]) -> Merged:
    """Merge two generated texts with the environment between them. `origins`: of parts of `above`."""
    usual, said = parse(below, "settings", env), parse(above, "settings", env)
    merged = Merged(document=_mapping(usual.value), problems=usual.problems + said.problems)
    _apply_variables(merged, env)
    for key, value in _mapping(said.value).items():
        merged.document[key] = _merge_values(merged, merged.document.get(key), value, (key,), "the command line")
    merged.unresolved |= said.unresolved
    merged.origins |= origins
    return merged


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _apply_variables(merged: Merged, env: Mapping[str, str]) -> None:
    for location, variable in _variables(env, merged):
        _apply_variable(merged, location, variable, env[variable])


def _variables(env: Mapping[str, str], merged: Merged) -> list[tuple[Location, str]]:
    """Returns the settings in the environment with their variables: wider ones first, list items by their number."""
    found: list[tuple[Location, str]] = []
    for variable in env:
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        parts = variable[len(ENV_PREFIX) :].lower().split("__")
        if all(parts):
            found.append((tuple(_part(part) for part in parts), variable))
        else:
            merged.problems.append(Problem(variable, "is not a setting's name", f"write {ENV_PREFIX}SECTION__KEY"))
    return sorted(found, key=lambda item: ([(isinstance(part, str), part) for part in item[0]], item[1]))


def _part(part: str) -> str | int:
    is_index = part.isascii() and part.isdecimal() and len(part) <= _INDEX_DIGITS_MAX
    return int(part) if is_index else part


def _apply_variable(merged: Merged, location: Location, variable: str, text: str) -> None:
    is_item = len(location) > 1 and location[1] not in {band.name for band in DEFAULT_BANDS}
    if location[0] == "bands" and is_item and merged.document.get("bands") is None:
        merged.document["bands"] = [band.model_dump(exclude_defaults=True) for band in DEFAULT_BANDS]
    key = str(location[0])
    try:
        value = _variable_value(variable, text)
        below = _put(merged, merged.document.get(key), (key,), location[1:], value=value, origin=variable)
    except ConfigError as error:
        merged.problems += error.problems
    else:
        merged.document[key] = below


def _put(merged: Merged, old: object, here: Location, rest: Location, *, value: object, origin: str) -> object:
    """Returns the new value at `here` after putting `value` at `rest` below it."""
    if not rest:
        return _merge_values(merged, old, value, here, origin)
    part, below = rest[0], rest[1:]
    if not isinstance(old, dict | list):
        merged.origins[here] = origin
        old = [] if part == 0 else {}
    if isinstance(old, dict):
        key = str(part)
        return old | {key: _put(merged, old.get(key), (*here, key), below, value=value, origin=origin)}
    if not isinstance(part, int) or part > len(old):
        raise ConfigError([Problem(origin, f"there is no item `{part}`: the list has {len(old)}")])
    items = [*old, None] if part == len(old) else list(old)
    items[part] = _put(merged, items[part], (*here, part), below, value=value, origin=origin)
    return items


def _variable_value(variable: str, text: str) -> object:
    """Returns a list or mapping read as YAML; anything else stays text."""
    if text in {"", "~", "null"}:
        return None
    if text.lstrip().startswith(("[", "{", "- ")) or ": " in text or ":\n" in text:
        return parse(text, variable, None).value
    return text


def _merge_values(merged: Merged, old: object, new: object, location: Location, origin: str) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            old[key] = _merge_values(merged, old.get(key), value, (*location, key), origin)
        return old
    for stale in [known for known in merged.origins if known[: len(location)] == location]:
        del merged.origins[stale]
    merged.unresolved = {known for known in merged.unresolved if known[: len(location)] != location}
    merged.origins[location] = origin
    return new


def _listen(given: list[tuple[str, object, str]], merged: Merged, flag: str, part: str) -> str:
    """Returns the address to listen on with another host or port."""
    before = next((value for key, value, _ in reversed(given) if key == "listen"), merged.document.get("listen"))
    if not isinstance(before, str) or before.startswith(UNIX):
        before = str(Settings.model_fields["listen"].default)
    host, _, port = before.rpartition(":")
    if flag == "--host":
        return f"[{part}]:{port}" if ":" in part and not part.startswith("[") else f"{part}:{port}"
    return f"{host}:{part}"


def _apply_flags(merged: Merged, flags: Flags) -> None:
    given: list[tuple[str, object, str]] = []
    if flags.endpoints:
        given.append(("endpoints", [{"url": url} for url in flags.endpoints], "--endpoint"))
    if flags.listen is not None:
        given.append(("listen", flags.listen, "--listen"))
    for part, flag in ((flags.host, "--host"), (flags.port, "--port")):
        if part is not None:
            given.append(("listen", _listen(given, merged, flag, part), flag))
    if flags.workers is not None:
        given.append(("workers", flags.workers, "--workers"))
    if flags.routing is not None:
        given.append(("routing", {"policy": flags.routing}, "--routing"))
    if flags.imbalance_threshold is not None:
        given.append(("routing", {"imbalance_threshold": flags.imbalance_threshold}, "--imbalance-threshold"))
    if flags.no_queue:
        given.append(("queue", {"enabled": False}, "--no-queue"))
    for key, value, flag in given:
        merged.document[key] = _merge_values(merged, merged.document.get(key), value, (key,), flag)
    endpoints = merged.document.get("endpoints")
    if flags.slots is None or not isinstance(endpoints, list):
        return
    for index, endpoint in enumerate(endpoints):
        if isinstance(endpoint, dict) and endpoint.get("slots") in (None, "auto"):
            endpoint["slots"] = flags.slots
            merged.origins["endpoints", index, "slots"] = "--slots"
