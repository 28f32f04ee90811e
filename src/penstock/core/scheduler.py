"""Facts in, actions out: which request goes next, where, and what becomes of the rest.

The scheduler is told what happened, each time with `now` (seconds, monotonic, never going back), and answers with a
list of actions. It never waits, never calls back, reads no clock and draws no randomness but from the generator it is
handed, so the same facts give the same actions.

Theory of operation. Every request enters the queue tree of its band; then one *pump* hands out whatever can be
handed out: band by band, in fair order, to endpoints that are open, chosen at that moment. A request that finds
nothing open simply stays. Everything that may open an endpoint (a lease that ends, a first token, a reading, a
timer) touches it and pumps again. So there is no "fast path" beside the queue, and none can overtake it: a newcomer
whom nobody waits before is decided by the same pump with the same questions, and only spared the way in and out.

How to read it. It only puts pieces together, in layers of `core/scheduling/`, each of which uses itself and those
below it, never those above (a tidy test holds it): `state` < `ends` < `sending` < `waiting` < `requests` <
`endpoints` < `operators` < this file, which answers questions and changes nothing. A fact is a public method of
`requests`, `endpoints`, `operators` or (where time is the fact) `waiting`; read down from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random

from penstock.core.endpoints.endpoint import least_loaded
from penstock.core.explain.explanation import Explanation
from penstock.core.explain.snapshot import (
    Snapshot,
    band_now,
    endpoint_now,
    models_now,
    queues_of,
    requests_now,
    stopped_models,
    tight,
)
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.position import QueuePosition, ranked
from penstock.core.scheduling.operators import Operators
from penstock.core.scheduling.requests import AVOID_S, REFUSED_AVOID_S, REFUSED_AVOID_S_MAX
from penstock.core.scheduling.sending import BAND_RANKS
from penstock.core.values.lifecycle import State
from penstock.core.values.request import Request
from penstock.core.values.rows import Allowance
from penstock.core.values.settings import SchedulerSettings

__all__ = ["AVOID_S", "BAND_RANKS", "REFUSED_AVOID_S", "REFUSED_AVOID_S_MAX", "Scheduler", "SchedulerSettings"]


class Scheduler(Operators):
    """The one owner of queues, leases and the view of the endpoints."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(settings, random.random)
        self._random = random

    def room(self, model: str, tenant: str, band: int, *, now: float) -> int:
        """How many more requests there is room for: in the queue, or where nothing waits, in slots that nobody uses.

        Bounds in bytes and tokens are left out: they depend on the request.
        """
        queue = self._settings.queue_enabled
        room = self._queues.room(band) if queue else self._pool.free_slots(model)
        return int(min(room, self._quotas.room(tenant, now)))

    def least_loaded(self, model: str, *, but: Collection[str] = (), now: float) -> str | None:
        """Where to send something that needs neither queue nor lease (tokenizing); None when nobody else is alive."""
        usable = self._pool.usable(Request(id="", model=model, band=0), now)
        usable = [endpoint for endpoint in usable if endpoint.name not in but] if but else usable
        if not usable:
            return None
        return least_loaded(usable, now).name

    def serving(self, model: str, *, now: float) -> list[str]:
        """Who could be sent a request for a model, by name."""
        return [endpoint.name for endpoint in self._pool.usable(Request(id="", model=model, band=0), now)]

    def wanted(self, name: str, *, now: float) -> bool:
        """Whether requests wait that this endpoint, near its limit, could serve: its gauges matter now."""
        endpoint = self._pool[name]
        return endpoint.near_limit(now) and any(
            endpoint.serves(model) for band in self._queues.bands for model in band.tree.models()
        )

    @property
    def waits(self) -> bool:
        """Whether anybody waits."""
        return self._queues.waiting > 0

    def moved_s(self, name: str) -> float:
        """When an endpoint last showed that it works; minus infinity: never yet."""
        return self._pool[name].ledger.moved_s

    @property
    def divides(self) -> bool:
        """Whether any endpoint only computes prompts, or only answers."""
        return self._pool.roles.any

    def knows(self, model: str, *, now: float) -> bool | None:
        """Whether some endpoint serves the model; None while one may yet: it has not told, or is being replaced."""
        return self._pool.knows(model, now)

    def state_of(self, request_id: str) -> State | None:
        """Where a request is, None when it ended or was never here."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry.state

    def wait_s(self, request_id: str, *, now: float) -> float | None:
        """How long a waiting request is estimated to wait from now on, None when that can't be told."""
        entry = self._entries.get(request_id)
        return None if entry is None or entry.state is not State.WAITING else self._estimated_wait_s(entry, now)

    def places(self, request_ids: Iterable[str], *, now: float) -> dict[str, QueuePosition]:
        """Where those of some requests that wait stand. Asked for many at once it costs little for each."""
        found = [self._entries.get(request_id) for request_id in request_ids]
        waiting: list[Entry] = [entry for entry in found if entry is not None and entry.state is State.WAITING]
        return {
            entry.request.id: QueuePosition(
                position,
                self._estimated_wait_s(entry, now, ahead=self._forecast.ahead(position - 1, ahead)),
                now - entry.waits_since_s,
            )
            for entry, position, ahead in ranked(waiting, self._queues.bands)
        }

    def allowance(self, tenant: str, *, now: float) -> Allowance | None:
        """What a tenant has left of its rates; None where it has none."""
        return self._quotas.allowance(tenant, now)

    def explain(self, request_id: str, *, now: float) -> Explanation | None:
        """Why a request waits or waited: any that has not ended, and those that did lately. None: not known."""
        entry = self._entries.get(request_id) or self._recorder.find(request_id)
        if entry is None:
            return None
        wait_s = self._estimated_wait_s(entry, now) if entry.state is State.WAITING else None
        return self._recorder.explain(entry, estimated_wait_s=wait_s, now=now)

    def snapshot(self, *, now: float) -> Snapshot:
        """The picture now."""
        queues = self._queues
        names = [band.settings.name for band in queues.bands]
        busy = next((band for band in queues.bands if band.tree.waiting), None)
        no_room = tight(busy, self._waits)
        flows, flows_more = self._shares.flows(names, now)
        limits = self._settings.admission
        models, models_more = models_now(queues.bands, self._pool, self._shares, self._waits, settings=limits, now=now)
        tenants = self._quotas.snapshot(now)
        return Snapshot(
            draining=self._draining,
            paused=stopped_models(self._pauses.paused),
            drained=stopped_models(self._pauses.drained),
            waiting=queues.waiting,
            waiting_bytes=queues.bytes,
            waiting_tokens=queues.tokens,
            running=len(self._leases),
            kv_usage_ceiling=limits.kv_usage_max,
            endpoints=[endpoint_now(endpoint, busy, no_room, limits, now) for endpoint in self._pool],
            bands=[band_now(band, self._shares.share_of_band(band.rank), now) for band in queues.bands],
            queues=queues_of(queues.bands),
            tenants=tenants,
            tenants_more=len(self._quotas) - len(tenants),
            models=models,
            models_more=models_more,
            flows=flows,
            flows_more=flows_more,
            requests=requests_now(queues.bands, self._leases, self._recorder, now),
            sources=self._router.sources.snapshot(now),
        )
