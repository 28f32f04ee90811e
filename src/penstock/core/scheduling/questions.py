"""Questions about a scheduler: room, positions, waits, explanations, the snapshot. Answers change nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.explain.endpoints_wanted import ModelLoad, loads_now
from penstock.core.explain.recorder import KEPT
from penstock.core.explain.snapshot import (
    NO_ROWS,
    RequestRow,
    Snapshot,
    band_now,
    bounds_now,
    endpoint_now,
    kept_away,
    models_now,
    queues_of,
    requests_now,
    rows_of,
    state_now,
    stopped_models,
)
from penstock.core.queueing.position import QueuePosition
from penstock.core.queueing.quotas import Accounts
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.catalogue import Cause
from penstock.core.values.lifecycle import State
from penstock.core.values.request import Request
from penstock.core.values.rows import Allowance, Serving, SessionRow, SessionsSnapshot
from penstock.core.values.settings import Limits

if TYPE_CHECKING:
    from penstock.core.explain.explanation import Explanation

NO_WISHES: Mapping[str, str] = {}
_SENDS_DIRECTLY = (None, Cause.RETURNING, Cause.STUCK)  # as `Pool.usable`: a request that can't wait is sent anyway


class Questions:
    """The questions a scheduler answers, from its state."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    @property
    def watches(self) -> bool:
        """True if gauges may be worth reading often (`wanted`): requests are queued, or an engine is in doubt."""
        return self._state.queues.waiting > 0 or self._state.doubts

    @property
    def divides(self) -> bool:
        """True if any endpoint only computes prompts, or only answers."""
        return self._state.pool.roles.any

    @property
    def paced(self) -> bool:
        """True if any limit of time per output token is set: progress is then worth reporting more often."""
        return self._state.paced

    def inspect(self) -> SchedulerState:
        """Returns the live state, for checkers and tests to read; decide nothing by it."""
        return self._state

    def next_deadline(self) -> float | None:
        """Returns when `expire` must be called next; None for never."""
        state = self._state
        due_s = state.timers.next()
        if state.look_s != math.inf:
            due_s = state.look_s if due_s is None else min(due_s, state.look_s)
        if not state.draining:
            return due_s
        times = (due_s, state.queue_until_s, state.stop_at_s)
        return min((time for time in times if time is not None), default=None)

    def changes_driver(self, armed_s: float, *, watched: bool) -> bool:
        """Returns False if no deadline is before `armed_s`, and `watches` is still `watched`: asked after each fact."""
        state = self._state
        if state.timers.soonest < armed_s or state.look_s < armed_s or state.draining:
            return True
        return (state.queues.waiting > 0 or state.doubts) is not watched

    def stopped(self) -> tuple[list[str | None], list[str | None]]:
        """Returns the models that operators have paused, and those that they have drained; None among them: all."""
        pauses = self._state.pauses
        return list(pauses.paused), list(pauses.drained)

    def stopped_sessions(self) -> list[tuple[str, str]]:
        """Returns tenants and names of sessions that operators have paused, known here or not."""
        return list(self._state.gate.stops)

    def room(self, model: str, tenant: str, band: int, *, now: float) -> int:
        """Returns for how many more requests the queue has room (in bytes and tokens: unknown); off: free slots."""
        state = self._state
        queue = state.settings.queue_enabled
        room = state.queues.room(band) if queue else state.pool.free_slots(model)
        return int(min(room, state.quotas.room(tenant, now)))

    def least_loaded(self, model: str, *, but: Collection[str] = (), now: float) -> str | None:
        """Returns the endpoint for a request without queue or lease, not one of `but`; None: no other is alive."""
        usable = self._state.pool.usable(Request(id="", model=model, band=0), now)
        usable = [endpoint for endpoint in usable if endpoint.name not in but] if but else usable
        if not usable:
            return None
        return least_loaded([e for e in usable if e.proof.stands] or usable, now).name

    def serving(self, model: str, *, now: float) -> list[str]:
        """Returns the endpoints that could serve a model now."""
        return [endpoint.name for endpoint in self._state.pool.usable(Request(id="", model=model, band=0), now)]

    def served(self, *, now: float) -> list[Serving]:
        """Returns each endpoint's models and load, for processes that can't ask for each request."""
        pool = self._state.pool
        return [
            Serving(
                e.name,
                e.models,
                not e.tells_models,
                _load(e, now) if pool.unhealthy(e, now) in _SENDS_DIRECTLY else None,
                e.works(now),
            )
            for e in pool
        ]

    def wanted(self, name: str, *, now: float) -> bool:
        """True if an endpoint's gauges matter now: it could serve queued requests near its limit, or may be stuck."""
        state = self._state
        endpoint = state.pool[name]
        if endpoint.liveness.doubted:
            return True
        return endpoint.near_limit(now) and any(
            endpoint.serves(model) for band in state.queues.bands for model in band.tree.models()
        )

    def uses(self, name: str) -> bool:
        """True if requests of ours are at an endpoint, or wait in the queue; False if it is gone."""
        endpoint = self._state.pool.get(name)
        return endpoint is not None and (self._state.queues.waiting > 0 or bool(endpoint.ledger.leases))

    def proven(self, name: str) -> bool:
        """True if an endpoint is known to be an engine; False if it is gone."""
        endpoint = self._state.pool.get(name)
        return endpoint is not None and endpoint.proof.stands

    def refuses_key(self, name: str) -> bool:
        """True if an endpoint is known to refuse the gateway's key."""
        endpoint = self._state.pool.get(name)
        return endpoint is not None and endpoint.proof.key_refused

    def moved_s(self, name: str) -> float:
        """Returns when an endpoint last made progress; minus infinity: never yet; infinity: it is gone."""
        endpoint = self._state.pool.get(name)
        return math.inf if endpoint is None else endpoint.ledger.moved_s

    def knows(self, model: str, *, now: float) -> bool | None:
        """True if an endpoint serves the model; None: one may, which has not reported yet or is being replaced."""
        return self._state.pool.knows(model, now)

    def awaits_models(self, name: str) -> bool:
        """True while an endpoint in service has not listed its models; False if there is no such endpoint."""
        endpoint = self._state.pool.get(name)
        return endpoint is not None and endpoint.awaits_models

    def works(self, model: str, *, now: float) -> bool:
        """True if an endpoint takes requests for the model, if only after a moment, and no operator stopped it."""
        return self._state.works(model, now)

    def state_of(self, request_id: str) -> State | None:
        """Returns the state of a request; None if it has ended or is unknown."""
        state = self._state
        entry = state.entries.get(request_id)
        return None if entry is None else entry.state

    def busy(self) -> dict[str, tuple[int, int]]:
        """Returns the queued and running requests of each account."""
        waiting, running = Counter[str](), Counter[str]()
        for entry in self._state.entries.values():
            (waiting if entry.state is State.WAITING else running)[entry.account] += 1
        return {name: (waiting[name], running[name]) for name in {**waiting, **running}}

    def account_of(self, tenant: str) -> str | None:
        """Returns the name for the limits of a tenant that had requests lately; None if it had none."""
        return self._state.shares.account_of(tenant)

    def requests_of(self, tenant: str, *, running: bool) -> list[str]:
        """Returns the queued, or the running, requests of a tenant, by its name or its account."""
        its = [(name, e) for name, e in self._state.entries.items() if tenant in (e.account, e.tenant)]
        return [name for name, entry in its if (entry.state is not State.WAITING) is running]

    def wait_s(self, request_id: str, *, now: float) -> float | None:
        """Returns the forecast wait of a queued request from now on; None: unknown."""
        state = self._state
        entry = state.entries.get(request_id)
        return None if entry is None or entry.state is not State.WAITING else state.told_wait_s(entry, now)

    def places(self, request_ids: Iterable[str], *, now: float) -> dict[str, QueuePosition]:
        """Returns the positions of those requests that are queued. Many at once are cheap."""
        from penstock.core.scheduling.places import places  # noqa: PLC0415 - most gateways are never asked

        return places(self._state, request_ids, now)

    def allowance(self, accounts: Accounts, *, now: float) -> Allowance | None:
        """Returns the least rest of each rate of these accounts; None: no rate is set."""
        return self._state.quotas.allowance(accounts, now)

    def budgets(self, *, now: float) -> list[tuple[tuple[str, str], float]]:
        """Returns tenant, limit and spent share of tenants' rates, those spent most."""
        return self._state.quotas.budgets(now)

    def limits_of(self, account: str) -> Limits | None:
        """Returns the limits of a tenant, or of an account within it; None: no limit."""
        return self._state.quotas.limits_of(account)

    def explain(self, request_id: str, *, now: float) -> Explanation | None:
        """Returns why a request waits or waited; None if it is unknown or ended long ago."""
        from penstock.core.explain.explanation import explained, waits_for_memory  # noqa: PLC0415 - few requests are asked

        state = self._state
        entry = state.entries.get(request_id) or state.recorder.find(request_id)
        if entry is None:
            return None
        wait_s = state.told_wait_s(entry, now) if entry.state is State.WAITING else None
        told = explained(entry, state.recorder, state.wait_causes, estimated_wait_s=wait_s, now=now)
        session = state.gate.session_of(request_id)
        if session is not None and told.waits_for in (Cause.SESSION_MEMORY, Cause.SESSION_PAUSED):
            told.session = waits_for_memory(session, state.gate)
        return told

    def requests(self, *, now: float) -> Iterator[RequestRow]:
        """Yields the newest `KEPT` requests that are here, and those that ended and are kept, newest first."""
        state = self._state
        return rows_of(islice(reversed(state.entries.values()), KEPT), state.recorder, now)

    def loads(self, *, now: float) -> dict[str, ModelLoad]:
        """Returns the load and capacity of each model, for an autoscaler's rule. Costs per resident session."""
        state, gate = self._state, self._state.gate
        if not gate.ledger.sessions:
            return loads_now(state.queues.bands, state.pool, state.shares, {})
        from penstock.core.sessions import shown  # noqa: PLC0415 - most gateways have none

        return loads_now(state.queues.bands, state.pool, state.shares, shown.endpoints_filled(gate, state.pool, now))

    def snapshot(self, *, requests: bool = True, sessions: bool = True, now: float) -> Snapshot:
        """Returns the picture of this moment; `requests`: with rows of single ones, which are most of its cost.

        `sessions`: with the memory that agents' sessions hold at each endpoint.
        """
        state = self._state
        queues, causes = state.queues, state.wait_causes
        names = [band.settings.name for band in queues.bands]
        busy = next((band for band in queues.bands if band.tree.waiting), None)
        causes.look(now, at_once=True)  # the causes are of the same moment as the numbers beside them
        away = kept_away(busy, causes, now)
        flows, flows_more = state.shares.flows(names, now)
        shares = state.shares.shares_of_bands(now)
        limits = state.settings.admission
        states = {endpoint: state_now(endpoint, now) for endpoint in state.pool}
        models, models_more = models_now(
            queues.bands, states, state.shares, state.wait_causes, settings=limits, now=now
        )
        tenants = state.quotas.snapshot(now)
        return Snapshot(
            draining=state.draining,
            paused=stopped_models(state.pauses.paused),
            drained=stopped_models(state.pauses.drained),
            waiting=queues.in_all,
            waiting_bytes=queues.bytes,
            waiting_tokens=queues.tokens,
            running=len(state.leases),
            kv_usage_ceiling=limits.kv_usage_max,
            endpoints=[endpoint_now(it, its_state, away.get(it), limits, now) for it, its_state in states.items()],
            bands=[band_now(band, shares[band.rank], now) for band in queues.bands],
            queues=queues_of(queues.bands),
            tenants=tenants,
            tenants_more=len(state.quotas) - len(tenants),
            models=models,
            models_more=models_more,
            flows=flows,
            flows_more=flows_more,
            requests=requests_now(queues.bands, state.leases, state.recorder, now) if requests else NO_ROWS,
            sources=state.router.sources.snapshot(now),
            paused_tenants=sorted(state.quotas.paused_names()),
            bounds=bounds_now(queues, state.settings.bounds) if state.settings.queue_enabled else [],
            sessions=state.gate.snapshot() if sessions and state.gate.on else None,
            preempted_slot_s=state.preemption.lost_s_total,
        )

    def sessions(self, *, now: float, most: int = 1_000, like: Mapping[str, str] = NO_WISHES) -> list[SessionRow]:
        """Returns agents' sessions: those that wait, those that are resident, then the others, the latest first.

        `like`: with these values of `session`, `tenant`, `endpoint` or `state`; `most` at most.
        """
        from penstock.core.sessions import shown  # noqa: PLC0415 - few look at them

        return shown.rows(self._state.gate, now, most, like)

    def session_sums(self) -> SessionsSnapshot:
        """Returns the sums over all sessions, and the memory of each endpoint."""
        return self._state.gate.snapshot()

    def session_requests(self, tenant: str, name: str) -> tuple[list[str], list[str]]:
        """Returns the requests of a session that wait for its memory, and those that do not any more."""
        found = self._state.gate.named(tenant, name)
        return [key for one in found for key in one.waiting], [key for one in found for key in one.parts]

    def session(self, tenant: str, name: str, *, now: float) -> SessionRow | None:
        """Returns the session of a tenant by its name, with the model that it used last; None if it is not known."""
        from penstock.core.sessions import shown  # noqa: PLC0415 - few look at them

        found = self._state.gate.named(tenant, name)
        return shown.row(self._state.gate, found[0], now) if found else None

    def session_of(self, request_id: str, *, now: float) -> SessionRow | None:
        """Returns the session of a request that has not ended; None if it has none."""
        from penstock.core.sessions import shown  # noqa: PLC0415 - few look at them

        found = self._state.gate.session_of(request_id)
        return None if found is None else shown.row(self._state.gate, found, now)

    def tokens_under_way(self) -> int:
        """Returns the tokens of running streams so far, with their estimated prompts. Costs per running request."""
        begun = [entry for entry in self._state.leases.values() if entry.output_seen]
        return sum([entry.prompt_tokens + entry.output_seen for entry in begun])


def _load(endpoint: Endpoint, now: float) -> float:
    """Returns the load per slot and weight, to be compared with others."""
    return endpoint.ledger.load(now) / ((endpoint.ledger.slots or 1) * endpoint.weight)
