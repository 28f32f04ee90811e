"""An operator's verbs for agents' sessions: list them, show one with its requests, pause, resume or prefer one.

Names count within a tenant, so a session is named by both. Nothing is stored, so a restart ends all pauses; in a group
the next leader goes on by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from penstock.core.values.rows import SessionRow
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Exchange

LIST = "/admin/sessions"
SESSION = LIST + "/{tenant}/{name}"
SHOWN = 100  # of a list, unless `limit` names another number
SHOWN_MAX = 1_000
WISHES = {"tenant": "tenant", "endpoint": "endpoint", "state": "state", "name": "session"}
STATES = ("waiting", "resident", "idle", "paused", "passing")


class SessionVerbs:
    """The verbs, as handlers of routes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._scheduler = driver.scheduler

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", LIST, self._list)
        routes.add("GET", SESSION, self._show)
        routes.add("POST", SESSION + "/pause", self._pause)
        routes.add("POST", SESSION + "/resume", self._resume)
        routes.add("POST", SESSION + "/prefer", self._prefer)

    def _list(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        """All sessions, or those of a `tenant`, at an `endpoint`, in a `state`, or with a `name`; `limit` at most."""
        try:
            query = parse_qs(exchange.query, max_num_fields=100)
        except ValueError:
            raise AdminError(400, "bad_request", "The query has too many fields.") from None
        like = {column: query[field][-1] for field, column in WISHES.items() if field in query}
        if like.get("state", "idle") not in STATES:
            raise AdminError(400, "bad_request", f"state: one of {', '.join(STATES)}", param="state")
        most = _limit(query.get("limit", [str(SHOWN)])[-1])
        rows = self._scheduler.sessions(now=self._driver.now(), most=most + 1, like=like)
        answer(exchange, {"sums": self._scheduler.session_sums(), "sessions": rows[:most], "more": len(rows) > most})

    def _show(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        self._answer(exchange, names)

    def _pause(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        self._known(names)
        self._driver.tell(self._scheduler.session_paused(names["tenant"], names["name"], now=self._driver.now()))
        self._answer(exchange, names)

    def _resume(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        # One that is not known any more may be paused still.
        self._driver.tell(self._scheduler.session_resumed(names["tenant"], names["name"], now=self._driver.now()))
        self._answer(exchange, names)

    def _prefer(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        row = self._known(names)
        if row.state != "waiting" or row.stopped:
            why = "an operator paused it" if row.stopped else f"it is {row.state}"
            raise AdminError(409, "conflict", f"The session `{row.session}` does not wait for memory: {why}.")
        self._driver.tell(self._scheduler.session_preferred(row.tenant, row.session, now=self._driver.now()))
        self._answer(exchange, names)

    def _known(self, names: Mapping[str, str]) -> SessionRow:
        tenant, name = names["tenant"], names["name"]
        row = self._scheduler.session(tenant, name, now=self._driver.now())
        if row is None:
            message = f"No session `{name[:200]}` of the tenant `{tenant[:200]}` is known (any more)."
            raise AdminError(404, "session_not_found", message, param="name")
        return row

    def _answer(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        row = self._known(names)
        waiting, running = self._scheduler.session_requests(row.tenant, row.session)
        answer(exchange, {"session": row, "waiting": waiting, "running": running})


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= len(str(SHOWN_MAX)) and 0 < int(text) <= SHOWN_MAX):
        raise AdminError(400, "bad_request", f"limit: a number from 1 to {SHOWN_MAX:,}", param="limit")
    return int(text)
