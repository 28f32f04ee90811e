"""Use since the last look, a row for each hour, caller, model, endpoint and end of requests.

Each process counts the requests that it serves, once, at their end; a worker passes its rows to the first process,
which adds all to the store (`usage_book.py`). Rows are bounded: past `ROWS_MAX` between two looks, further ones are one
row per hour and reason, under the name `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock import clock
from penstock.config.model import Settings
from penstock.core.values.catalogue import Outcome, Reason

if TYPE_CHECKING:
    from penstock.batch.values import UsageRow
    from penstock.gateway.telemetry.request_events import End

HOUR_S = 3600
NO_LEDGER = "There is no ledger of use: it needs `store`, and `usage.keep` above 0."
ROWS_MAX = 10_000  # between two looks; a row takes some 500 bytes
OTHER = "other"

Place = tuple[int, str, str, str, str, str, str]  # the fields of `UsageRow` up to `reason`
Amounts = list[float]  # those from `requests` on


class UseCounts:
    """Rows that nobody has taken yet. `wall` returns Unix time; `before_read` has what waits to be counted counted."""

    def __init__(
        self, wall: Callable[[], float] = clock.wall, *, before_read: Callable[[], None] = lambda: None
    ) -> None:
        self._wall = wall
        self._before_read = before_read
        self._rows: dict[Place, Amounts] = {}
        self.on = False  #: without a store nothing is counted
        self.folded = 0  #: requests counted as `other` because there were too many rows

    def follow(self, settings: Settings) -> None:
        self.on = settings.keeps_usage

    def ended(self, end: End, model: str, at_s: float) -> None:
        """Count a request that was in the hands of the scheduler. `at_s`: its end, in Unix time."""
        caller, usage, reason = end.caller, end.usage, end.reason
        part = caller.part  # of all without a tenant: there each is a user
        row = self._row((
            int(at_s // HOUR_S),
            part or caller.tenant,
            caller.key,
            caller.tenant if part else caller.user,
            model,
            end.endpoint,
            "" if reason is None else reason.value,
        ))  # fmt: skip
        row[0] += 1
        if usage is not None:
            row[1] += usage.prompt_tokens
            row[2] += usage.cached_tokens
            row[3] += usage.completion_tokens
        if estimated := end.estimated_prompt + end.estimated_completion:
            row[4] += 1
            row[5] += estimated
            row[10] += end.estimated_completion
        if reason is not None and (estimated or (usage is not None and usage.completion_tokens)):
            row[9] += 1
        if end.outcome is Outcome.REJECTED:
            return
        waited_s = end.waited_s
        row[6] += end.ended_s - end.started_s - waited_s
        if waited_s > 0.0:  # otherwise it was sent at once
            row[7] += 1
            row[8] += waited_s

    def refused(self, tenant: str, key: str, user: str, reason: Reason) -> None:
        """Count a request of a known key that never reached the scheduler."""
        self._row((int(self._wall() // HOUR_S), tenant, key, user, "", "", reason.value))[0] += 1

    def take(self) -> list[UsageRow]:
        """Returns the rows since this was last asked."""
        self._before_read()
        rows, self._rows = self._rows, {}
        return [_read(place, row) for place, row in rows.items()]

    def told(self) -> list[tuple[list[str], list[float]]]:
        """Returns the rows since this was last asked, for another process."""
        self._before_read()
        rows, self._rows = self._rows, {}
        return [([str(place[0]), *place[1:]], row) for place, row in rows.items()]

    def add(self, labels: Sequence[str], values: Sequence[float]) -> None:
        hour, tenant, key, user, model, endpoint, reason = labels
        if tenant == key == user == endpoint == OTHER:
            self.folded += int(values[0])
        row = self._row((int(hour), tenant, key, user, model, endpoint, reason))
        for at, value in enumerate(values):
            row[at] += value

    def _row(self, place: Place) -> Amounts:
        row = self._rows.get(place)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self.folded += 1
                place = (place[0], OTHER, OTHER, OTHER, OTHER, OTHER, place[6])
            row = self._rows.setdefault(place, [0, 0, 0, 0, 0, 0, 0.0, 0, 0.0, 0, 0])
        return row


def _read(place: Place, row: Amounts) -> UsageRow:
    from penstock.batch.values import UsageRow  # noqa: PLC0415 - many gateways store nothing

    counts = [int(value) for value in row]
    counts[6], counts[8] = row[6], row[8]  # type: ignore[call-overload]  # seconds
    return UsageRow(*place, *counts)
