"""Series by tenant: ends and reasons, waits, times to first tokens, tokens, also by model and kind.

Labels are the tenants of the settings, `TENANTS_MAX` of them; all others are `other`, as are requests refused before
their tenant is known. Times have fewer bounds here than elsewhere: some 25 lines a tenant in all, and one
for each reason.

`TenantTimes` has the same for people, of any tenant and only lately: how long did its requests wait, and how long did
its streams take to their first token? Counts by a step of a tenth, so that those of processes and of seconds add up
and a quantile is within five per cent.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.config.model import Settings
from penstock.core.values.catalogue import Outcome, Reason
from penstock.core.values.request import Usage
from penstock.gateway.telemetry.request_events import End
from penstock.gateway.telemetry.series import OTHER, Count, Counter, Histogram, HistogramSeries

TENANTS_MAX = 1_000  # tenant labels; more are `other`
_TIMES_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
ENDS_MAX = 4_096  # between two looks, a second apart: more than one process answers; the latest stand for all
SPANS_MAX = 4_096  # rows between two looks; tenants past that are one
OTHERS = "others"
STEP = math.log(1.1)
LEAST_S = 1e-3  # shorter is as good
WAIT, FIRST_TOKEN = "wait", "first_token"
#: Name, help and labels of what tenants have spent of their rates.
SPENT = "penstock_tenant_budget_used_ratio", "Spent share of a tenant's rate; 1: all of it.", ("tenant", "limit")


class _TenantLine(NamedTuple):
    """The series of nearly every request of a tenant, looked up once."""

    completed: Count
    wait: HistogramSeries
    ttft: HistogramSeries
    service: Count


class _TokenLine(NamedTuple):
    """The series of a tenant's tokens of one model, looked up once."""

    prompt: Count
    cached: Count
    completion: Count
    estimated: Count


class TenantSeries:
    """All series with a tenant."""

    def __init__(self) -> None:
        self._lines: dict[str, _TenantLine] = {}
        self._token_lines: dict[tuple[str, str], _TokenLine] = {}
        self._requests = Counter(
            "penstock_tenant_requests", "Requests of each tenant that ended.", ["tenant", "outcome", "reason"]
        )
        self._wait = Histogram(
            "penstock_tenant_queue_wait_seconds",
            "Time in the queue, of requests that left it.",
            ["tenant"],
            bounds=_TIMES_S,
        )
        self._ttft = Histogram(
            "penstock_tenant_ttft_seconds",
            "From the whole request to the answer's first byte, of streams.",
            ["tenant"],
            bounds=_TIMES_S,
        )
        self._service = Counter("penstock_tenant_service_tokens", "Tokens each tenant got.", ["tenant"])
        text = "Tokens of each tenant and model; `estimated`: without usage from the engine."
        self._tokens = Counter("penstock_tenant_tokens", text, ["tenant", "model", "kind"])
        self.all: tuple[Counter | Histogram, ...] = (
            *(self._requests, self._wait, self._ttft, self._service),
            self._tokens,
        )

    def follow(self, settings: Settings) -> None:
        """Count by these tenants. Counts of removed ones go."""
        names = [*[tenant.name for tenant in settings.tenants][: TENANTS_MAX - 1], OTHER]
        if gone := self._lines.keys() - set(names):
            for series in self.all:
                series.forget(gone)
        self._token_lines.clear()
        self._lines = {name: self._line(name) for name in names}

    def ended(self, tenant: str, outcome: Outcome, reason: Reason | None, *, waited_s: float | None = None) -> None:
        """A request ended. `waited_s`: None if it never was in the queue."""
        label = tenant if tenant in self._lines else OTHER
        self._requests.labels(label, outcome, reason or "").inc()
        if waited_s is not None:
            self._lines[label].wait.observe(waited_s)

    def answered(self, tenant: str, waits_s: Sequence[float], first_tokens_s: Sequence[float]) -> None:
        """Requests were answered, one for each of `waits_s`. First tokens may be those of others."""
        line = self._lines.get(tenant) or self._lines[OTHER]
        line.completed.value += len(waits_s)
        line.wait.observe_all(waits_s)
        line.ttft.observe_all(first_tokens_s)

    def served(self, tenant: str, model: str, usage: Usage, estimated: int) -> None:
        """Requests ended. `estimated`: their tokens beside those of the `usage` that engines reported."""
        label = tenant if tenant in self._lines else OTHER
        tokens = self._token_lines.get((label, model)) or self._token_line(label, model)
        self._lines[label].service.inc(usage.prompt_tokens + usage.completion_tokens + estimated)
        tokens.prompt.value += usage.prompt_tokens
        tokens.cached.value += usage.cached_tokens
        tokens.completion.value += usage.completion_tokens
        tokens.estimated.value += estimated

    def _token_line(self, tenant: str, model: str) -> _TokenLine:
        kinds = ("prompt", "cached_prompt", "completion", "estimated")
        line = self._token_lines[tenant, model] = _TokenLine(
            *[self._tokens.labels(tenant, model, kind) for kind in kinds]
        )
        return line

    def _line(self, name: str) -> _TenantLine:
        return _TenantLine(
            self._requests.labels(name, Outcome.COMPLETED, ""),
            self._wait.labels(name),
            self._ttft.labels(name),
            self._service.labels(name),
        )


class TimeRow(NamedTuple):
    """How long something took for a tenant in a band: one of the rows that are counted."""

    what: str  #: `WAIT` or `FIRST_TOKEN`
    tenant: str
    band: str
    step: int

    @property
    def seconds(self) -> float:
        return math.exp(self.step * STEP)


class TenantTimes:
    """Waits and first tokens of requests that ended, since the last look."""

    def __init__(self) -> None:
        self._ended: deque[End] = deque(maxlen=ENDS_MAX)
        self._rows: Counts[TimeRow] = Counts()

    def ended(self, ended: Sequence[End]) -> None:
        """Requests ended."""
        self._ended.extend(ended)

    def take(self) -> Counts[TimeRow]:
        """Returns the rows since the last call."""
        for end in self._ended:
            if end.outcome is Outcome.REJECTED:
                continue
            tenant = end.caller.tenant
            self._add(WAIT, tenant, end.band, _step(end.waited_s), 1)
            if end.first_token_s is not None:
                self._add(FIRST_TOKEN, tenant, end.band, _step(end.first_token_s - end.started_s), 1)
        self._ended.clear()
        rows, self._rows = self._rows, Counts()
        return rows

    def told(self) -> list[tuple[list[str], list[float]]]:
        """Returns the same for another process, which is the one that looks."""
        return [([row.what, row.tenant, row.band, str(row.step)], [float(n)]) for row, n in self.take().items()]

    def add(self, labels: Sequence[str], values: Sequence[float]) -> None:
        """Add another process's rows."""
        if len(labels) == len(TimeRow._fields) and labels[0] in (WAIT, FIRST_TOKEN):
            self._add(labels[0], labels[1], labels[2], int(labels[3]), int(sum(values)))

    def _add(self, what: str, tenant: str, band: str, step: int, number: int) -> None:
        row = TimeRow(what, tenant, band, step)
        if row not in self._rows and len(self._rows) >= SPANS_MAX:
            row = TimeRow(what, OTHERS, band, step)
        self._rows[row] += number


def _step(seconds: float) -> int:
    return round(math.log(max(seconds, LEAST_S)) / STEP)
