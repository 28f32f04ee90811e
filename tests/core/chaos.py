"""A small world that treats a scheduler badly: a seeded event loop in virtual time, with the checkers on.

Clients hang up whenever they like; engines refuse, break, time out, restart, go and come; gauges tell the truth,
stand still, are missing or are nonsense. The driver in it is honest: it reports each lease's end exactly once, and
calls `expire` when it was asked to.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.queueing.flow_queue import ORDERINGS
from penstock.core.routing.policies.registry import POLICIES as ROUTING
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Request, Turn, Usage
from penstock.core.values.settings import BandSettings, EndpointSpec, Limits, Prices, QueueBounds

TENANTS = {"one": 1.0, "two": 2.0, "half": 0.5, "limited": 1.0}  # and their weights
PRICES = {"two": Prices(2.0, 1.0, 3.0)}  # of the models that it asks for, where models are priced
EXPIRIES_MAX = 1000  # calls of `expire` between two events; more would be a busy loop


def _prompt(random: Random) -> tuple[int, ...]:
    """One of a few conversations, at one of its turns."""
    first = random.randrange(4) * 100
    return (1, 2, *range(first, first + random.randrange(12)))


@dataclass
class Engine:
    """What the world knows of an engine, beside what the scheduler believes."""

    name: str
    slots: int
    models: frozenset[str]
    up: bool = True
    removed: bool = False
    process: int = 1
    progress: float = 0.0
    gauges: str = "honest"
    leases: dict[int, Dispatch | Decode] = field(default_factory=dict)
    role: str = "both"
    last: Observation | None = None


@dataclass
class Chaos:
    """One run. `trace` has every action with its time."""

    seed: int
    settings: SchedulerSettings
    requests: int = 2000
    trouble: float = 0.5  #: share of dispatches that go wrong in some way
    levels: int = 1  #: of fairness: none, tenants, or tenants and users
    reverse: bool = False  #: users above tenants
    priced: bool = False  #: some models have prices of their own
    dear: bool = False  #: endpoints have prices, the first one none
    kv_capacity_tokens: int | None = None
    drain: bool = False
    operators: bool = False  #: they remove, drain, pause, bump and cancel, and take it back
    roles: bool = False  #: some endpoints only compute prompts, some only answer
    agents: bool = False  #: many requests are turns of sessions
    kind: type[CheckedScheduler] = CheckedScheduler

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._first_settings = self.settings
        self.scheduler = self.kind(self.settings, random=Random(self.seed + 1))
        self.engines: dict[str, Engine] = {}
        self.trace: list[tuple[float, Action]] = []
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._events = 0
        self._begun: set[int] = set()
        self._made = 0

    # --- the loop -----------------------------------------------------------------------------------------------

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._events += 1
        heapq.heappush(self._heap, (when, self._events, event))

    def run(self) -> None:
        kinds = [("a", 4, "x", "both"), ("b", 3, "xy", "both"), ("c", 2, "y", "both")]
        if self.roles:
            kinds = [
                ("a", 3, "xy", "prefill"),
                ("b", 3, "xy", "decode"),
                ("c", 2, "y", "both"),
                ("d", 2, "x", "decode"),
            ]
        for name, slots, models, role in kinds:
            self._add_engine(name, slots, frozenset(models), role)
        self.at(0.0, self._arrive)
        if self.drain:
            self.at(self.requests * 0.01, self._drain)
        if self.operators:
            self.at(0.5, self._operate)
        while self._heap:
            when, _, event = heapq.heappop(self._heap)
            self._let_time_pass(when)
            self.now = when
            event()
        self._let_time_pass(self.now + 1000.0)
        self._restore()

    def _let_time_pass(self, until: float) -> None:
        for _ in range(EXPIRIES_MAX):
            due_s = self.scheduler.next_deadline()
            if due_s is None or due_s > until:
                break
            self.now = max(self.now, due_s)
            self._carry_out(self.scheduler.expire(now=self.now))
        else:
            raise AssertionError("the scheduler asks for time again and again")
        if until < math.inf:
            self.scheduler.check_later(now=until)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            self.trace.append((self.now, action))
            match action:
                case Dispatch() | Decode():
                    self._serve(action)
                case Abort():
                    self.at(self.now + 0.01, partial(self._hang_up, action.request_id))
                case Requeue():
                    self._taken_back(action.request_id)
                case Reject() | Evict() | Fail():
                    assert action.retry_after_s is None or 1.0 <= action.retry_after_s <= 60.0

    def _taken_back(self, request_id: str) -> None:
        """What goes back to the queue is at no engine any more, though the engine may not have failed it."""
        for engine in self.engines.values():
            for lease in [number for number, sent in engine.leases.items() if sent.request_id == request_id]:
                del engine.leases[lease]

    # --- clients ------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        random = self.random
        self._made += 1
        tenant = random.choice(list(TENANTS))
        path = [(tenant, TENANTS[tenant]), (random.choice("uv"), 1.0)][: self.levels]
        path = path[::-1] if self.reverse else path
        request = Request(
            id=f"r{self._made}",
            model="z" if random.random() < 0.01 else random.choice("xy"),
            band=random.randrange(len(self.settings.bands)),
            tenant=tenant,
            flow=tuple(name for name, _ in path),
            weights=tuple(weight for _, weight in path),
            body_bytes=20_000 if random.random() < 0.05 else random.choice((1, 400, 2000)),
            output_tokens_max=random.choice((None, 1, 50, 1000)),
            streamed=random.random() < 0.6,
            pinned=random.choice("abc") if random.random() < 0.05 else None,
            deadline_s=self.now + random.expovariate(0.5) if random.random() < 0.2 else None,
            priority=random.choice((0, 0, 0, -1, 2**63)),
            session=random.choice("stuv") if random.random() < 0.5 else None,
            prefix=_prompt(random) if random.random() < 0.5 else (),
            prefix_chunk_bytes=100,
            home=random.choice("abcq") if random.random() < 0.05 else None,
            locate_s=random.choice((0.0, 0.0, 0.3)),
            divisible=not self.roles or random.random() < 0.9,
            prices=PRICES.get(tenant) if self.priced else None,
            turn=self._turn() if self.agents else None,
        )
        self._carry_out(self.scheduler.arrived(request, now=self.now))
        if request.locate_s:
            self.at(self.now + random.expovariate(10.0), partial(self._locate, request.id))
        if random.random() < 0.3:
            self.at(self.now + random.expovariate(1.0), partial(self._hang_up, request.id))
        if self._made < self.requests:
            self.at(self.now + random.choice((0.0, random.expovariate(20.0))), self._arrive)

    def _locate(self, request_id: str) -> None:
        random, scheduler, now = self.random, self.scheduler, self.now
        keys, name = _prompt(random), random.choice("abcq")
        match random.randrange(4):
            case 0:
                self._carry_out(scheduler.cached(request_id, {name: 300} if random.random() < 0.5 else {}, now=now))
            case 1:
                self._carry_out(scheduler.kv_removed(name, keys[1:], now=now))
            case 2:
                said = random.choice((scheduler.kv_cleared, scheduler.kv_lost))
                self._carry_out(said(name, now=now))
            case _:
                self._carry_out(scheduler.kv_stored(name, keys, now=now))
                self._carry_out(scheduler.located(request_id, keys, 16, now=now))

    def _hang_up(self, request_id: str) -> None:
        books = self.scheduler.books
        if request_id not in books.requests:
            return
        self._taken_back(request_id)
        self._carry_out(self.scheduler.cancelled(request_id, now=self.now))

    # --- engines ------------------------------------------------------------------------------------------------

    def _add_engine(self, name: str, slots: int, models: frozenset[str], role: str) -> None:
        self.engines[name] = Engine(name, slots, models, role=role)
        self._carry_out(self.scheduler.endpoint_added(self._spec(name), now=self.now))
        self.at(self.now + 0.2, partial(self._tell_models, name))
        self.at(self.now + self.random.random(), partial(self._observe, name))
        self.at(self.now + self.random.random(), partial(self._trouble, name))
        self.at(self.now + self.random.random(), partial(self._probe, name))

    def _turn(self) -> Turn | None:
        random = self.random
        if random.random() < 0.3:
            return None
        return Turn(random.choice("klmnop"), random.choice(("", "", "agent")), last=random.random() < 0.05)

    def _spec(self, name: str) -> EndpointSpec:
        engine = self.engines[name]
        return EndpointSpec(
            name=name,
            slots=engine.slots,
            labels={} if engine.role == "both" else {"role": engine.role},
            price=float(ord(name) - ord("a")) if self.dear else 1.0,
        )

    def _tell_models(self, name: str) -> None:
        if self.engines[name].removed:
            return
        models = self.engines[name].models
        self._carry_out(self.scheduler.endpoint_changed(name, models=models, now=self.now))

    def _serve(self, dispatch: Dispatch | Decode) -> None:
        engine, random = self.engines[dispatch.endpoint], self.random
        engine.leases[dispatch.lease] = dispatch
        begins_s = self.now + random.expovariate(20.0)
        divided = isinstance(dispatch, Dispatch) and dispatch.decode is not None
        streamed = self.scheduler.books.requests[dispatch.request_id].streamed and not divided
        there = engine.up and not engine.removed
        if not divided and random.random() < 0.05:
            at_s = self.now + (begins_s - self.now) * random.random()
            self.at(at_s, partial(self._reroute, dispatch, random.choice(list(self.engines))))
        if random.random() < self.trouble or not there:
            causes = [failure for failure in Failure if failure is not Failure.BROKEN]
            failure = random.choice(causes) if there else Failure.CONNECT
            broken = random.random() < 0.2 and not divided
            if broken and streamed:
                self.at(begins_s, partial(self._begin, dispatch))
            self.at(begins_s + 0.05 * broken, partial(self._fail, dispatch, Failure.BROKEN if broken else failure))
            return
        if divided and random.random() < 0.95:  # else its engine refuses the request itself, for good
            self.at(begins_s, partial(self._prefilled, dispatch))
            return
        if streamed:
            self.at(begins_s, partial(self._begin, dispatch))
        ends_s = begins_s + random.expovariate(5.0)
        for at in range(3 * streamed):
            self.at(begins_s + (ends_s - begins_s) * at / 3, partial(self._progress, dispatch, 60 * at))
        self.at(ends_s, partial(self._finish, dispatch))

    def _prefilled(self, dispatch: Dispatch | Decode) -> None:
        if self.engines[dispatch.endpoint].leases.pop(dispatch.lease, None):
            self.engines[dispatch.endpoint].progress += 1
            self._carry_out(self.scheduler.prefilled(dispatch.lease, self._usage(), now=self.now))

    def _begin(self, dispatch: Dispatch | Decode) -> None:
        if dispatch.lease in self.engines[dispatch.endpoint].leases:
            self._begun.add(dispatch.lease)
            self.engines[dispatch.endpoint].progress += 1
            self._carry_out(self.scheduler.first_token(dispatch.lease, now=self.now))

    def _reroute(self, dispatch: Dispatch | Decode, endpoint: str) -> None:
        """A proxy sent it on to another engine; here the first one goes on showing it."""
        if dispatch.lease in self.engines[dispatch.endpoint].leases:
            self._carry_out(self.scheduler.rerouted(dispatch.lease, endpoint, now=self.now))

    def _progress(self, dispatch: Dispatch | Decode, output_tokens: int) -> None:
        if dispatch.lease in self._begun and dispatch.lease in self.engines[dispatch.endpoint].leases:
            self._carry_out(self.scheduler.progressed(dispatch.lease, output_tokens, now=self.now))

    def _finish(self, dispatch: Dispatch | Decode) -> None:
        if self.engines[dispatch.endpoint].leases.pop(dispatch.lease, None):
            self.engines[dispatch.endpoint].progress += 1
            self._carry_out(self.scheduler.finished(dispatch.lease, self._usage(), now=self.now))

    def _usage(self) -> Usage | None:
        random = self.random
        prompt_tokens = random.choice((1, 100, 5000))
        usage = Usage(prompt_tokens, random.choice((0, 1, 40, 4000)), cached_tokens=random.choice((0, prompt_tokens)))
        return random.choice((usage, usage, None, Usage(0, 0)))

    def _fail(self, dispatch: Dispatch | Decode, failure: Failure) -> None:
        if self.engines[dispatch.endpoint].leases.pop(dispatch.lease, None):
            failure = Failure.BROKEN if dispatch.lease in self._begun else failure
            self._carry_out(self.scheduler.failed(dispatch.lease, failure, now=self.now))

    def _probe(self, name: str) -> None:
        if self._quiet():
            return
        report = self.scheduler.endpoint_up if self.engines[name].up else self.scheduler.endpoint_down
        if not self.engines[name].removed:
            self._carry_out(report(name, now=self.now))
        self.at(self.now + 0.4, partial(self._probe, name))

    def _quiet(self) -> bool:
        return self._made >= self.requests and not self.scheduler.books.requests

    def _observe(self, name: str) -> None:
        """Scrape, and perhaps answer late."""
        if self._quiet():
            return
        engine, random = self.engines[name], self.random
        if random.random() < 0.1:
            engine.gauges = random.choice(("honest", "honest", "frozen", "absent", "garbage", "zero"))
        reading = self._reading(engine)
        answered_s = self.now + random.choice((0.0, 0.01, 0.7))
        self.at(answered_s, partial(self._read, name, reading))
        self.at(self.now + 0.5, partial(self._observe, name))

    def _read(self, name: str, reading: Observation | None) -> None:
        if not self.engines[name].removed:
            self._carry_out(self.scheduler.observed(name, reading, now=self.now))

    def _reading(self, engine: Engine) -> Observation | None:
        if engine.gauges == "absent" or not engine.up:
            return None
        if engine.gauges == "frozen" and engine.last is not None:
            last = engine.last
            return Observation(self.now, last.running, last.waiting, last.kv_usage, progress=last.progress)
        if engine.gauges == "zero":
            return Observation(self.now, 0, 0)
        if engine.gauges == "garbage":
            bad = self.random.choice((math.nan, math.inf, -5.0, 1e300))
            return Observation(self.now, bad, self.random.choice((0.0, bad)), self.random.choice((None, bad, 0.5)))
        others = self.random.choice((0, 0, 0, 1, 2))
        running = min(len(engine.leases) + others, engine.slots)
        engine.last = Observation(
            self.now,
            running,
            len(engine.leases) + others - running,
            self.random.random() if self.kv_capacity_tokens else None,
            kv_capacity_tokens=self.kv_capacity_tokens,
            progress=engine.progress,
            started_s=float(engine.process * 1000),
            first_token_s_total=engine.progress / 10,
            first_tokens_total=engine.progress,
        )
        return engine.last

    def _trouble(self, name: str) -> None:
        """Something happens to an engine."""
        if self._quiet():
            return
        engine, random = self.engines[name], self.random
        match random.choice(("down", "up", "up", "up", "restart", "slots", "slots", "models", "told", "look")):
            case "down":
                engine.up = False
            case "up":
                engine.up = True
            case "restart":
                engine.process, engine.progress = engine.process + 1, 0.0
                for dispatch in list(engine.leases.values()):
                    self.at(self.now + random.random(), partial(self._fail, dispatch, Failure.RESET))
            case "slots" | "models" if engine.removed:
                pass
            case "slots":
                slots = random.choice((0, 1, engine.slots, engine.slots, 8))
                self._carry_out(self.scheduler.endpoint_changed(name, slots=slots, now=self.now))
            case "models":
                models = random.choice((frozenset("xy"), frozenset("xy"), frozenset()))
                self._carry_out(self.scheduler.endpoint_changed(name, models=models, now=self.now))
            case "told":
                self._tell_models(name)
            case _:
                self.scheduler.check(now=self.now)
        self.at(self.now + random.expovariate(1.0), partial(self._trouble, name))

    # --- operators ----------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        if self._quiet():
            return
        random, scheduler, now = self.random, self.scheduler, self.now
        name, model = random.choice(list(self.engines)), random.choice(("x", "y", None))
        request_id = random.choice([*scheduler.books.requests, "nobody"])
        verbs = (
            "remove",
            "remove",
            "drain",
            "resume",
            "pause",
            "stop",
            "go",
            "go",
            "bump",
            "bump",
            "cancel",
            "auto",
            "limit",
            "reload",
        )
        match random.choice(verbs):
            case "remove" if self.engines[name].removed:
                self._come_back(name)
            case "remove":
                self.engines[name].removed = True
                self._carry_out(scheduler.endpoint_removed(name, now=now))
            case "drain" if not self.engines[name].removed:
                self._carry_out(scheduler.endpoint_drained(name, now=now))
            case "resume" if not self.engines[name].removed:
                self._carry_out(scheduler.endpoint_resumed(name, now=now))
            case "pause":
                self._carry_out(scheduler.paused(model, now=now))
            case "stop":
                self._carry_out(scheduler.drained(model, now=now))
            case "go":
                self._carry_out(scheduler.resumed(model, now=now))
            case "bump":
                self._carry_out(scheduler.bumped(request_id, now=now))
            case "reload":
                self._reload()
            case "limit":
                told = random.choice(
                    ({}, {"limited": Limits(running=0)}, {"two": Limits(running=random.choice((0, 2)))})
                )
                self.settings = replace(self.settings, tenants=told)
                self._carry_out(scheduler.tenants_limited(told, now=now))
            case "cancel":
                self._carry_out(scheduler.evicted(request_id, now=now))
            case "auto" if not self.engines[name].removed:
                self._carry_out(scheduler.endpoint_changed(name, slots="auto", now=now))
            case _:
                pass
        self.at(now + random.expovariate(8.0), self._operate)

    def _reload(self) -> None:
        """Some other settings: bands gone, come, or in another order, and whatever else may change."""
        random, old = self.random, self.settings
        names = random.sample(("high", "middle", "low", "new"), random.randint(1, 4))
        known = {band.name: band for band in old.bands}
        fresh = BandSettings(
            "",
            requests_max=random.choice((None, 5)),
            min_share=0.2,
            wait_s_max=random.choice((None, 1.0)),
            preemptible=random.choice((False, True)),
            fairness=random.choice((None, *FAIRNESS)),
            ordering=random.choice((None, *ORDERINGS)),
        )
        self.settings = replace(
            old,
            bands=tuple(known.get(name) or replace(fresh, name=name) for name in names),
            queue_enabled=random.choice((old.queue_enabled, old.queue_enabled, True, False)),
            bounds=QueueBounds(requests_max=random.choice((10, 60))),
            wait_s_max=random.choice((2.0, 4.0)),
            fairness=random.choice((old.fairness, old.fairness, *FAIRNESS)),
            prices=random.choice((Prices(), Prices(2.0, 1.0, 1.0))),
            ordering=random.choice((old.ordering, *ORDERINGS)),
            tenants=random.choice(
                (old.tenants, {}, {"limited": Limits(running=1, queued=4), "two": Limits(running=3)})
            ),
            tenant_weights=TENANTS,
            routing=random.choice(list(ROUTING)),
            stale_after_s=random.choice((1.0, 5.0)),
        )
        self._carry_out(self.scheduler.reconfigured(self.settings, now=self.now))

    def _come_back(self, name: str) -> None:
        engine = self.engines[name]
        engine.removed, engine.process, engine.progress = False, engine.process + 1, 0.0
        self._carry_out(self.scheduler.endpoint_added(self._spec(name), now=self.now))
        self._tell_models(name)

    def _restore(self) -> None:
        """Everything is in use again."""
        for name, engine in self.engines.items():
            if engine.removed:
                self._come_back(name)
            self._carry_out(self.scheduler.endpoint_resumed(name, now=self.now))
        self._carry_out(self.scheduler.resumed(None, now=self.now))
        self.settings = self._first_settings
        self._carry_out(self.scheduler.reconfigured(self.settings, now=self.now))

    def _drain(self) -> None:
        actions = self.scheduler.drain(queue_until_s=self.now + 2.0, stop_at_s=self.now + 4.0, now=self.now)
        self._carry_out(actions)
