"""What does somebody who watches want to see: in which order, of whom, of now or of a moment ago?

Wishes change by keys, and leave of the gateway's state what is wanted. A name that is looked at stays so while it has
nothing to show, because that may be what somebody waits to see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

State = dict[str, Any]
Row = dict[str, Any]

#: Orders of the tenants, by name. The first is the gateway's own: who waits longest, first.
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
    """What is wanted now."""

    def __init__(self) -> None:
        self.order = next(iter(ORDERS))
        self.tenant: str | None = None  #: looked at alone; None: all
        self.endpoint: str | None = None
        self.is_still = False  #: the picture of a moment ago stays
        self.shows_keys = False

    def pressed(self, key: str, state: State) -> None:
        """Do what a key means, in the sight of a state. To leave is for others."""
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
        """The part of a state that is wanted, in the order that is wanted."""
        requests = {which: [row for row in rows if self._is_wanted(row)] for which, rows in state["requests"].items()}
        seen = {**state, "tenants": self._ordered(state), "requests": requests}
        if self.tenant is not None:
            seen["tenants"] = [row for row in seen["tenants"] if row["tenant"] == self.tenant]
            seen["tenants_more"] = 0
        if self.endpoint is not None:
            seen["endpoints"] = [row for row in state["endpoints"] if row["name"] == self.endpoint]
            seen["endpoints_more"] = 0
        if self.tenant is not None or self.endpoint is not None:
            seen["requests_more"] = 0  # the gateway tells the first ones of all, and nobody knows whose the others are
        return seen

    def _is_wanted(self, row: Row) -> bool:
        of_tenant = self.tenant is None or row["tenant"] == self.tenant
        return of_tenant and (self.endpoint is None or row["endpoint"] == self.endpoint)

    def _ordered(self, state: State) -> list[Row]:
        key = ORDERS[self.order]
        rows: list[Row] = state["tenants"]
        return rows if key is None else sorted(rows, key=key)


def _next(names: Sequence[str], name: str | None, *, forward: bool) -> str | None:
    """The name after this one, or before it; behind the last one, None: all."""
    around = [None, *names]
    if name not in around:
        return names[0] if names else None
    return around[(around.index(name) + (1 if forward else -1)) % len(around)]
