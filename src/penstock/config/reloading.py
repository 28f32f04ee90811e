"""Reloading: when each setting takes effect, and how two versions of the settings differ.

Every setting belongs to one row of `RULES`, by its longest prefix; docs/reload.md has the same table. List items are
matched by name, so a tenant that only moved in the file did not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from pydantic import SecretStr

from penstock.config.model import Settings

SHOWN_CHARACTERS_MAX = 60
_HIDDEN = frozenset({"keys"})  # hashes of keys: no secret, but no need to show them


class Rule(msgspec.Struct, frozen=True):
    """The effect of a reload on a changed setting."""

    effect: str
    restarts: bool = False


_ARRIVALS = "for requests that come from now on"
RULES: dict[str, Rule] = {
    "listen": Rule("the socket is bound once", restarts=True),
    "root_path": Rule(_ARRIVALS),
    "workers": Rule("processes are started once", restarts=True),
    "share": Rule("links and the election are begun once", restarts=True),
    "epp": Rule("the port is bound once", restarts=True),
    "epp.fallbacks": Rule(_ARRIVALS),
    "epp.max_streams_per_address": Rule(_ARRIVALS),
    "epp.sample_every": Rule(_ARRIVALS),
    "tls": Rule("for new connections; the files are read again even under unchanged names"),
    "endpoints": Rule(
        "slots, weight, price, KV memory and limits at once; requests at a removed or replaced endpoint finish there; "
        "the files of `tls` are read again for new connections, even under unchanged names"
    ),
    "discovery": Rule("sources that did not change go on; endpoints that a removed source had named are drained"),
    "models": Rule(_ARRIVALS + "; weights at once"),
    "paths": Rule(_ARRIVALS),
    "queue": Rule("at once; a waiting request keeps the time it was promised, or gets more"),
    "queue.enabled": Rule("at once: off, all waiting requests are sent; on, requests beyond the slots end first"),
    "queue.heartbeat_after": Rule(_ARRIVALS),
    "bands": Rule("at once, matched by name; requests of a removed band move to the next lower one"),
    "default_band": Rule(_ARRIVALS),
    "fairness": Rule("at once; shares so far count on, but start afresh under another policy"),
    "fairness.levels": Rule("waiting requests have no names on other levels", restarts=True),
    "ordering": Rule("at once; other packages' code is imported once"),
    "admission": Rule("at once"),
    "admission.slots_initial": Rule("for endpoints that come from now on"),
    "routing": Rule("at once; known sessions and prefixes stay"),
    "routing.locality": Rule("at once; cached prefixes are queried again"),
    "routing.lmcache": Rule("at once"),
    "sessions": Rule("at once; off, all held requests join the queue, and no session is known to hold memory any more"),
    "retry": Rule("at once"),
    "health": Rule("at once"),
    "timeouts": Rule("at once, also for running requests; those of clients for new connections"),
    "limits": Rule("for new connections"),
    "accounting": Rule(_ARRIVALS),
    "tenants": Rule("at once: weights, and limits, less what was spent; keys and bands " + _ARRIVALS),
    "identity": Rule(_ARRIVALS),
    "identity.made_keys": Rule("the store is opened once", restarts=True),
    "identity.anonymous": Rule("at once: the weight, and the limits, less what was spent"),
    "client_address": Rule(_ARRIVALS),
    "client_address.proxy_protocol": Rule("for new connections"),
    "cors": Rule(_ARRIVALS + "; a browser may cache the answer for ten minutes"),
    "observe": Rule("with the next reading"),
    "autoscale": Rule("within a second"),
    "metrics": Rule("with the next scrape"),
    "log": Rule("at once; `--log-level` stays"),
    "tracing": Rule(_ARRIVALS),
    "admin": Rule("at once; pages that were opened with an old token stay until they are closed"),
    "admin.listen": Rule("the socket is bound once", restarts=True),
    "state_dir": Rule("its files are written at start", restarts=True),
    "usage": Rule("at once: rows older than `keep` are erased, and costs are those of the present prices"),
    "store": Rule("it is opened once", restarts=True),
    "batch": Rule("batches under way keep to its limits", restarts=True),
}


class Change(msgspec.Struct, frozen=True):
    """A changed setting. Values are None if they are long or secret.

    An item that is new or gone has no value in `before`, and `added` or `removed` in `after`.
    """

    key: str
    before: str | None = None
    after: str | None = None

    def line(self) -> str:
        if self.before is None:
            return f"{self.key} {self.after or 'changed'}"
        return f"{self.key} {self.before} → {self.after}"


def rule(key: str) -> Rule:
    """Returns the rule for a setting, by its path (`tenants[team-a].weight`)."""
    path = ""
    for part in key.split("[", maxsplit=1)[0].split("."):
        path = f"{path}.{part}" if path else part
        if path in RULES:
            found = RULES[path]
    return found


def needing_restart(old: Settings, new: Settings) -> dict[str, str]:
    """Returns the changed settings that need a restart, each with the reason; empty if none does."""
    found = {change.key: rule(change.key).effect for change in changes(old, new) if rule(change.key).restarts}
    if (old.tls.cert is None) is not (new.tls.cert is None):
        found["tls"] = "a socket speaks HTTP or HTTPS for as long as it is bound"
    return found


def changes(old: Settings, new: Settings) -> list[Change]:
    """Returns everything that differs, in the order of the settings; empty if nothing does."""
    return list(_mappings("", old.model_dump(), new.model_dump()))


def _mappings(path: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Change]:
    for key in {**old, **new}:
        inner = f"{path}.{key}" if path else key
        if key not in old or key not in new:
            yield Change(inner, after="added" if key in new else "removed")
        elif old[key] != new[key]:
            yield from _values(inner, old[key], new[key])


def _values(path: str, old: object, new: object) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _mappings(path, old, new)
    elif path.rpartition(".")[2] in _HIDDEN:
        yield Change(path)
    elif (was := _named(old)) is not None and (now := _named(new)) is not None:
        yield from _items(path, was, now)
    else:
        before, after = _shown(old), _shown(new)
        yield Change(path) if before is None or after is None else Change(path, before, after)


def _items(path: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Change]:
    for name in {**old, **new}:
        inner = f"{path}[{name}]"
        if name not in old or name not in new:
            yield Change(inner, after="added" if name in new else "removed")
        elif old[name] != new[name]:
            yield from _values(inner, old[name], new[name])
    if path == "bands":  # the only list whose order matters
        was, now = ([name for name in names if name in old and name in new] for names in (old, new))
        if was != now:
            yield Change(path, ", ".join(was), ", ".join(now))


def _named(value: object) -> dict[str, object] | None:
    """Returns a list's items by name or number; None if `value` is not a list of mappings."""
    if not isinstance(value, Sequence) or not all(isinstance(item, Mapping) for item in value):
        return None
    return {str(item.get("name", index)): item for index, item in enumerate(value)}


def _shown(value: object) -> str | None:
    """Returns a value as text; None if it is long or secret."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, int | float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
    if isinstance(value, SecretStr | Mapping):
        return None
    text = value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, Sequence) else ""
    return text if text and len(text) <= SHOWN_CHARACTERS_MAX and text.isprintable() else None
