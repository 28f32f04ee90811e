"""Random states of a real scheduler, as the page would show them: faults, floods, limits, orders of operators.

A world is a scheduler to which random facts happen. After some of them it is looked at, as the page looks once a second
or whenever somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

from penstock.core.endpoints.health import Presence
from penstock.core.explain.snapshot import Snapshot
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Outcome
from penstock.core.values.observation import Observation
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, EndpointSpec, Limits
from penstock.gateway.admin.failing.advice import advice
from penstock.gateway.admin.failing.lately import FailureWindow
from penstock.gateway.admin.headline import Around, is_by_operators, sentences, tone, verdict
from penstock.gateway.admin.picture.steady import Steady
from penstock.gateway.telemetry.failures import Failures

TENANTS = ("ann", "bob", "cy", "flood")
BANDS = (
    BandSettings("interactive"),
    BandSettings("standard", ceiling=0.75),
    BandSettings("batch", engine_waiting_max=0, preemptible=True),
)
ENDS = {Reject: Outcome.REJECTED, Evict: Outcome.EVICTED, Fail: Outcome.FAILED}
FAILURES = (Failure.BUSY, Failure.CONNECT, Failure.KEY_REFUSED, Failure.SERVER_ERROR, Failure.RESET)


class Shown(msgspec.Struct, frozen=True):
    """What people see of one moment."""

    snapshot: Snapshot
    said: list[str]
    tone: str
    verdict: str
    advice: str
    by_operators: bool


class World:
    """A scheduler, and what its driver knows."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        settings = SchedulerSettings(
            bands=BANDS,
            admission=AdmissionSettings(
                kv_usage_max=0.9, prefill_tokens_max=2_000, reserved_share=random.choice((None, 0.0, 0.25))
            ),
            tenants={"cy": Limits(running=2)},
        )
        self.now = 0.0
        self.scheduler = Scheduler(settings, random=Random(seed))
        self.leases: dict[int, str] = {}
        self.failures = Failures()
        self._window = FailureWindow(self.failures)
        self._steady = Steady()
        self._came = 0
        for at in range(random.randint(1, 4)):
            models = random.choice((frozenset("m"), frozenset("m"), frozenset("mn"), None))
            spec = EndpointSpec(f"e{at}", random.randint(1, 8), models, adaptive_slots=random.random() < 0.2)
            self._took(self.scheduler.endpoint_added(spec, now=0.0))
        self.endpoints = [f"e{at}" for at in range(4)]

    def go(self, steps: int) -> Iterator[Shown]:
        """So many random facts; what is shown after some of them."""
        for _ in range(steps):
            self.now += self.random.choice((0.0, 0.001, 0.02, 0.2, 1.5))
            while (due_s := self.scheduler.next_deadline()) is not None and due_s <= self.now:
                self._took(self.scheduler.expire(now=max(due_s, 0.0)))
            self._took(self._fact())
            if self.random.random() < 0.3:
                yield self.shown()

    def shown(self) -> Shown:
        snapshot = self._steady.look(self.scheduler.snapshot(now=self.now), self.now)
        self._window.look(self.now)
        lately = self._window.now(self.now)
        around = Around(lately=lately)
        return Shown(
            snapshot,
            sentences(snapshot, around),
            tone(snapshot, around),
            verdict(snapshot, around),
            advice(snapshot, lately),
            is_by_operators(snapshot, around),
        )

    # --- facts ------------------------------------------------------------------------------------------------------

    def _fact(self) -> list[Action]:
        random, scheduler, now = self.random, self.scheduler, self.now
        kind = random.random()
        if kind < 0.45 or (kind < 0.75 and not self.leases):
            return self._arrives()
        if kind < 0.75:
            lease = random.choice(list(self.leases))
            del self.leases[lease]
            if kind < 0.70:
                return scheduler.finished(lease, Usage(100, 20), now=now)
            return scheduler.failed(lease, random.choice(FAILURES), now=now)
        name = random.choice(self.endpoints)
        if kind < 0.87:
            return self._observed(name)
        model = random.choice((None, "m", "n"))
        what = random.randrange(11)
        if name not in {endpoint.name for endpoint in scheduler.snapshot(requests=False, now=now).endpoints}:
            return []
        if what < 3:
            presence = random.choice((Presence.DOWN, Presence.LOADING, Presence.HUNG))
            return scheduler.endpoint_down(name, presence=presence, now=now)
        if what < 6:
            return scheduler.endpoint_up(name, now=now)
        if what == 6:
            return scheduler.endpoint_drained(name, now=now)
        if what == 7:
            return scheduler.endpoint_resumed(name, now=now)
        if what == 8:
            return scheduler.paused(model, now=now) if random.random() < 0.5 else scheduler.resumed(None, now=now)
        if what == 9:
            return scheduler.resumed(None, now=now)
        limits = {"cy": Limits(running=2), "flood": Limits(running=0 if random.random() < 0.3 else 5)}
        return scheduler.tenants_limited(limits, now=now)

    def _arrives(self) -> list[Action]:
        random = self.random
        tenant = random.choice((*TENANTS, "flood", "flood", "flood"))
        actions = []
        for _ in range(random.randint(1, 6) if tenant == "flood" else 1):
            self._came += 1
            asked = Request(
                id=f"r{self._came}",
                model=random.choice(("m", "m", "m", "n")),
                band=random.choice((0, 0, 1, 1, 2)),
                tenant=tenant,
                flow=(tenant,),
                body_bytes=random.choice((400, 400, 4_000, 40_000)),
                output_tokens_max=random.choice((20, 200)),
            )
            actions += self.scheduler.arrived(asked, now=self.now)
        return actions

    def _observed(self, name: str) -> list[Action]:
        snapshot = self.scheduler.snapshot(requests=False, now=self.now)
        endpoint = next((one for one in snapshot.endpoints if one.name == name), None)
        if endpoint is None:
            return []
        running = endpoint.leases + self.random.choice((0, 0, 0, 1, 3))
        reading = Observation(
            self.now,
            running,
            self.random.choice((0, 0, 0, 1, 5)),
            kv_usage=self.random.choice((0.1, 0.5, 0.93)),
            kv_capacity_tokens=20_000,
            progress=self.now,
        )
        return self.scheduler.observed(name, reading, now=self.now)

    def _took(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.leases[action.lease] = action.request_id
            elif isinstance(action, Requeue):
                self.leases = {lease: it for lease, it in self.leases.items() if it != action.request_id}
            elif isinstance(action, Abort):  # the driver hangs up, and reports that
                self.leases = {lease: it for lease, it in self.leases.items() if it != action.request_id}
                self._took(self.scheduler.cancelled(action.request_id, now=self.now))
            elif isinstance(action, Reject | Evict | Fail):
                self.leases = {lease: it for lease, it in self.leases.items() if it != action.request_id}
                self.failures.note("", "", ENDS[type(action)], action.reason)
