"""Order and filters of the view, set by keys: tenants' order, one tenant, one endpoint, a stopped picture.

A filter stays while its name has nothing to show, because a user may wait for that name to appear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

State = dict[str, Any]
Row = dict[str, Any]

#: Orders of the tenants, by name. The first is the gateway's own: the longest wait first.
ORDERS: Final[dict[str, Callable[[Row], Any] | None]] = {
    "wait": None,
    "waiting": lambda row: (-row["waiting"], row["tenant"], row["band"]),
    "running": lambda row: (-row["running"], row["tenant"], row["band"]),
    "got": lambda row: (-row["share_of_all"], row["tenant"], row["band"]),
    "name": lambda row: (row["tenant"], row["band"]),
}
KEYS: Final = (
    ("q", "leave (or Ctrl-C)"),
    ("s", f"sort tenants by the next of: {', '.join(ORDERS)}"),
    ("t T", "look at the next tenant alone, or the one before"),
    ("e E", "look at the next endpoint alone, or the one before"),
    ("a Esc", "look at all again"),
    ("p", "stop the picture, or let it go on"),
    ("?", "these lines"),
)


class Wishes:
    """The present order and filters."""

    def __init__(self) -> None:
        self.order = next(iter(ORDERS))
        self.tenant: str | None = None  #: shown alone; None: all
        self.endpoint: str | None = None
        self.is_still = False  #: the picture is stopped
        self.shows_keys = False

    def pressed(self, key: str, state: State) -> None:
        """Apply a key, for a state. Leaving is up to the caller."""
        orders = list(ORDERS)
        match key:
            case "s":
                self.order = orders[(orders.index(self.order) + 1) % len(orders)]
            case "S":
                self.order = orders[orders.index(self.order) - 1]
            case "t" | "T":
                names = list(dict.fromkeys(row["tenant"] for row in self._ordered(state)))
                self.tenant = _next(names, self.tenant, forward=key == "t")
            case "e" | "E":
                names = [row["name"] for row in state["endpoints"]]
                self.endpoint = _next(names, self.endpoint, forward=key == "e")
            case "escape" if self.shows_keys:
                self.shows_keys = False
            case "a" | "A" | "escape":
                self.tenant = self.endpoint = None
            case "p" | "P" | " ":
                self.is_still = not self.is_still
            case "?" | "h":
                self.shows_keys = not self.shows_keys

    def seen(self, state: State) -> State:
        """A state, filtered and ordered."""
        requests = {which: [row for row in rows if self._is_wanted(row)] for which, rows in state["requests"].items()}
        seen = {**state, "tenants": self._ordered(state), "requests": requests}
        if self.tenant is not None:
            seen["tenants"] = [row for row in seen["tenants"] if row["tenant"] == self.tenant]
            seen["tenants_more"] = 0
        if self.endpoint is not None:
            seen["endpoints"] = [row for row in state["endpoints"] if row["name"] == self.endpoint]
            seen["endpoints_more"] = 0
        if self.tenant is not None or self.endpoint is not None:
            seen["requests_more"] = 0  # the gateway lists the first ones of all; the others' tenants are not known
        return seen

    def _is_wanted(self, row: Row) -> bool:
        of_tenant = self.tenant is None or row["tenant"] == self.tenant
        return of_tenant and (self.endpoint is None or row["endpoint"] == self.endpoint)

    def _ordered(self, state: State) -> list[Row]:
        key = ORDERS[self.order]
        rows: list[Row] = state["tenants"]
        return rows if key is None else sorted(rows, key=key)


def _next(names: Sequence[str], name: str | None, *, forward: bool) -> str | None:
    """The name after this one, or before it; after the last one None: all."""
    around = [None, *names]
    if name not in around:
        return names[0] if names else None
    return around[(around.index(name) + (1 if forward else -1)) % len(around)]
