"""`POST /admin/reload`: its answers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.config.load import ConfigError
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, answer_error
from penstock.gateway.reload import BusyError, NeedsRestart, Reload
from penstock.http.server.server import Exchange

LINES_MAX = 5  # in the message; `problems` has all


class ReloadVerb:
    """The verb, as a handler of a route."""

    def __init__(self, reload: Reload) -> None:
        self._reload = reload

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("POST", "/admin/reload", self._answer)

    async def _answer(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        try:
            done = await self._reload()
        except BusyError as error:
            raise AdminError(409, "conflict", str(error)) from None
        except ConfigError as error:
            refused(exchange, error)
        else:
            changes = [{"key": c.key, "before": c.before, "after": c.after} for c in done.changed]
            keys = [change.key for change in done.changed]
            answer(exchange, {"hash": done.hash, "changed": keys, "changes": changes})


def refused(exchange: Exchange, error: ConfigError) -> None:
    """Nothing was changed: 409 for settings that need a restart, 422 for bad ones."""
    lines = [problem.line() for problem in error.problems]
    more = f"; and {len(lines) - LINES_MAX} more" if len(lines) > LINES_MAX else ""
    restarts = isinstance(error, NeedsRestart)
    status, code = (409, "needs_restart") if restarts else (422, "bad_settings")
    message = f"Nothing was changed. {'; '.join(lines[:LINES_MAX])}{more}"
    problems = [msgspec.to_builtins(problem) for problem in error.problems]
    answer_error(exchange, AdminError(status, code, message, param=error.problems[0].path), problems=problems)
