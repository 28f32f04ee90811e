"""The real scheduler and the engine model in virtual time.

One event heap, one clock that jumps. The world drives the scheduler like `gateway/proxy/driver.py`: a dispatch reaches
the engine one network delay later; first tokens, progress and ends are reported one network delay after their step;
gauges are read at an interval; timers expire on time. All randomness comes from the seed, so a run is exactly
repeatable.

The world records journeys (one per request, passed to `sink` at its end) and samples the service per tenant and user
every second. With a sink, only samples and requests under way are kept.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Requeue
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.sim.engine.model import EngineModel
from penstock.sim.engine.pages import StrangePage
from penstock.sim.engine.strange import PLAIN, value_at
from penstock.sim.engine.values import EngineFullError, EngineRequest, Progress, PromptTooLongError
from penstock.sim.world import translate
from penstock.sim.world.passthrough import MakeRival, RoundRobinPassthrough
from penstock.sim.world.workload import ArrivalSource, InFlight, Job
from penstock.sim.world.world_values import (
    EngineNode,
    Freeze,
    FreezeKind,
    Sample,
    SimulatedJourney,
    TokensDone,
    Who,
    WorldSettings,
)

PAGE_TIMEOUT_S = 2.0  # for a page that does not answer, as `observe.timeout` is by default
EXPIRIES_MAX = 1000  # calls of `expire` between two events; more would be a busy loop
PROGRESS_EVERY = 64  # tokens of one answer between two reports of it


class WorldObserver:
    """Observes a run; override methods."""

    def dispatched(self, world: World, journey: SimulatedJourney, action: Dispatch) -> None: ...
    def ended(self, world: World, journey: SimulatedJourney) -> None: ...
    def settled(self, world: World) -> None:
        """All actions of one fact were carried out."""

    def second(self, world: World) -> None:
        """A sample was taken."""


class World:
    """One run."""

    def __init__(
        self,
        settings: WorldSettings,
        sources: Iterable[ArrivalSource],
        *,
        sink: Callable[[SimulatedJourney], None] | None = None,
        watch: WorldObserver | None = None,
        progress: Callable[[float, float], None] | None = None,
        rival: MakeRival = RoundRobinPassthrough,
    ) -> None:
        self.settings = settings
        self.now = 0.0
        self.scheduler = scheduler_for(settings)
        self.done: list[SimulatedJourney] = []  # only without a sink
        self.samples: list[Sample] = []
        self.service: dict[Who, TokensDone] = {}
        self.journeys: dict[str, SimulatedJourney] = {}
        self.waiting: Counter[str] = Counter()  # per tenant, in the gateway's queue
        self.events = 0
        self._sink = sink or self.done.append
        self._watch = watch or WorldObserver()
        self._progress = progress  # gets the simulated seconds so far, and in total
        self._moved: dict[str, None] = {}  # engines with stream progress since time last passed
        self._sources = list(sources)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._open_sources = 0  # sources that have more to send
        self.nodes = {
            spec.name: EngineNode(
                spec,
                EngineModel(spec.config, seed=settings.seed * 1000 + number),
                StrangePage(spec.strange.page, seed=settings.seed * 1000 + number),
            )
            for number, spec in enumerate(settings.engines)
        }
        self._node_list = list(self.nodes.values())
        self._rival = rival(self._node_list)  # sends requests that bypass the gateway

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run from time 0 to the end. Requests still under way go to the sink unfinished."""
        self._begin()
        end_s = self.settings.duration_s
        while self._heap and self._heap[0][0] <= end_s:
            if self.settings.ends_idle and not self._open_sources and not self.journeys:
                return
            when, _, event = heapq.heappop(self._heap)
            self._let_time_pass(when)
            self.now = when
            event()
        self._let_time_pass(end_s)
        self.now = end_s
        for journey in self.journeys.values():
            self._sink(journey)

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Schedule `event` at the simulated time `when`."""
        self.events += 1
        heapq.heappush(self._heap, (when, self.events, event))

    def _begin(self) -> None:
        for number, node in enumerate(self.nodes.values()):
            self._introduce(node, number)
            for from_s, factor in node.spec.strange.speeds:
                self.at(from_s, partial(self._change_speed, node, factor))
        for death in self.settings.deaths:
            node = self.nodes[death.engine]
            self.at(death.at_s, partial(self._die, node))
            self.at(death.at_s + death.for_s, partial(self._revive, node))
            self.at(self.settings.probe_s, partial(self._probe, node))
        for freeze in self.settings.freezes:
            self.at(freeze.at_s, partial(self._freeze, self.nodes[freeze.engine], freeze))
        for spell in self.settings.spells:
            self.at(spell.at_s, partial(self._slow_down, spell.factor))
            self.at(spell.at_s + spell.for_s, partial(self._slow_down, 1.0))
        for source in self._sources:
            arrivals = source.stream.arrivals
            if isinstance(arrivals, InFlight):
                for _ in range(arrivals.requests):
                    self.at(source.stream.start_s, partial(self._again, source))
            else:
                self._open_sources += 1
                self._next_of(source, iter(source.open_jobs()).__next__)
        self.at(self.settings.sample_s, self._sample)

    def _introduce(self, node: EngineNode, number: int) -> None:
        """Add an engine to the scheduler, and read its gauges from then on."""
        self._tell(self.scheduler.endpoint_added(translate.endpoint_spec(node.spec), now=0.0))
        self.at(self.settings.scrape_s * (number + 1) / len(self.nodes), partial(self._ask_gauges, node))

    def _let_time_pass(self, until: float) -> None:
        for _ in range(EXPIRIES_MAX):
            deadline = self.scheduler.next_deadline()
            if deadline is None or deadline > until:
                return
            self.now = max(self.now, deadline)
            if self._moved:
                moved, self._moved = list(self._moved), {}
                self._tell(self.scheduler.moved(moved, now=self.now))
            self._tell(self.scheduler.expire(now=self.now))
        raise AssertionError(f"asked to expire again and again at {self.now}")

    # --- clients ------------------------------------------------------------------------------------------------

    def _next_of(self, source: ArrivalSource, following: Callable[[], Job]) -> None:
        try:
            job = following()
        except StopIteration:
            self._open_sources -= 1
            return
        self.at(job.at_s, partial(self._open_arrival, source, following, job))

    def _open_arrival(self, source: ArrivalSource, following: Callable[[], Job], job: Job) -> None:
        self._next_of(source, following)
        self._arrive(job, source)

    def _again(self, source: ArrivalSource) -> None:
        if self.now < source.stream.end_s:
            self._arrive(source.job(self.now), source)

    def _arrive(self, job: Job, source: ArrivalSource) -> None:
        journey = self.journeys[job.id] = SimulatedJourney(job, source)
        if job.hangs_up_s is not None:
            self.at(job.hangs_up_s, partial(self._hang_up, journey))
        if job.stream.bypass:
            number = self._rival.choose(job)
            if number is not None:
                self._bypass(journey, number)
            self._send_released()
            return
        self._hand_over(journey)

    def _bypass(self, journey: SimulatedJourney, number: int) -> None:
        self._rival.sent(journey.job, number)
        journey.queue_s = self.now - journey.job.at_s
        node = self._node_list[number]
        if (tokenize_s := node.spec.config.tokenize_s_per_token * journey.job.prompt_tokens) > 0:
            self.at(self.now + tokenize_s, partial(self._submit, journey, node, 0, 0))
        else:
            self._submit(journey, node, 0, 0)

    def _send_released(self) -> None:
        """Send the requests that a rival held until now."""
        for job, number in self._rival.released(self.now):
            self._bypass(self.journeys[job.id], number)

    def _hand_over(self, journey: SimulatedJourney) -> None:
        """The gateway has the request."""
        job = journey.job
        journey.told = self.scheduler
        self._tell(self.scheduler.arrived(translate.request(job), now=self.now))
        if not journey.outcome and journey.dispatched_s is None:
            self._wait(journey, waits=True)
            journey.estimate_s = self.scheduler.wait_s(job.id, now=self.now)

    def _hang_up(self, journey: SimulatedJourney) -> None:
        if journey.outcome:
            return
        node = journey.node
        if node is not None:
            self.at(self.now + self.settings.network_s, partial(self._abort_at, node, node.life, journey.job.id))
        self._end(journey, "cancelled", "client_gone")
        self._tell(journey.told.cancelled(journey.job.id, now=self.now))

    def _end(
        self, journey: SimulatedJourney, outcome: str, reason: str = "", retry_after_s: float | None = None
    ) -> None:
        journey.outcome = outcome
        journey.reason = reason
        journey.retry_after_s = retry_after_s
        journey.ended_s = self.now
        journey.node = None
        self._wait(journey, waits=False)
        del self.journeys[journey.job.id]
        if journey.job.stream.bypass:
            self._rival.ended(journey.job, self.now)
            self._send_released()
        for job in journey.source.following(journey.job, self.now):
            self.at(job.at_s, partial(self._arrive, job, journey.source))
        arrivals = journey.job.stream.arrivals
        if isinstance(arrivals, InFlight):
            pause_s = arrivals.think_s if outcome == "completed" else arrivals.retry_s
            self.at(self.now + pause_s, partial(self._again, journey.source))
        self._watch.ended(self, journey)
        self._sink(journey)

    def _wait(self, journey: SimulatedJourney, *, waits: bool) -> None:
        if journey.waits != waits:
            journey.waits = waits
            self.waiting[journey.job.stream.tenant] += 1 if waits else -1

    # --- actions ------------------------------------------------------------------------------------------------

    def _tell(self, actions: list[Action]) -> None:
        """Carry out the actions that a fact led to."""
        for action in actions:
            journey = self.journeys[action.request_id]
            if isinstance(action, Dispatch):
                node = self.nodes[action.endpoint]
                journey.lease, journey.node = action.lease, node
                journey.dispatched_s, journey.queue_s = self.now, action.queue_s
                self._wait(journey, waits=False)
                self._watch.dispatched(self, journey, action)
                journey.prefills = action.decode is not None
                self._send(journey, node, node.life, action.lease)
            elif isinstance(action, Decode):
                node = self.nodes[action.endpoint]
                journey.lease, journey.node, journey.prefills, journey.transferred = action.lease, node, False, True
                self._send(journey, node, node.life, action.lease)
            elif isinstance(action, Requeue):
                if (left := journey.node) is not None:  # the request is withdrawn from its engine
                    abort = partial(self._abort_at, left, left.life, journey.job.id)
                    self.at(self.now + self.settings.network_s, abort)
                journey.node, journey.requeues = None, journey.requeues + 1
                journey.transferred = False
                self._wait(journey, waits=True)
            elif isinstance(action, Abort):
                self.at(self.now, partial(self._hang_up, journey))
            else:
                self._end(journey, str(action.outcome), str(action.reason), action.retry_after_s)
        self._watch.settled(self)

    def _fail(self, journey: SimulatedJourney, lease: int, failure: Failure) -> None:
        """Report a failed dispatch, if it is still the journey's own."""
        if journey.outcome or journey.waits or journey.lease != lease:
            return
        if journey.job.stream.bypass:
            self._end(journey, "failed", str(failure))
            return
        journey.node = None
        self._tell(journey.told.failed(lease, failure, now=self.now))

    # --- engines ------------------------------------------------------------------------------------------------

    def _send(self, journey: SimulatedJourney, node: EngineNode, life: int, lease: int) -> None:
        door_s = value_at(node.spec.strange.doors, self.now, 0.0)
        door_s += node.spec.config.tokenize_s_per_token * journey.job.prompt_tokens
        self.at(self.now + self.settings.network_s + door_s, partial(self._submit, journey, node, life, lease))

    def _freeze(self, node: EngineNode, freeze: Freeze) -> None:
        node.freeze = freeze

    def _change_speed(self, node: EngineNode, factor: float) -> None:
        node.engine.slow_factor = factor

    def _submit(self, journey: SimulatedJourney, node: EngineNode, life: int, lease: int) -> None:
        job = journey.job
        if journey.outcome or journey.waits or journey.lease != lease:
            return  # cancelled or withdrawn on the way
        if node.stands(self.now, FreezeKind.HANGS):
            return
        failure = None
        if not node.alive or (life and node.life != life):
            failure = Failure.CONNECT
        else:
            try:
                output_tokens = 1 if journey.prefills else job.output_tokens
                transferred = journey.transferred
                blocks = job.blocks if node.spec.strange.caches else ()
                asked = EngineRequest(
                    job.id, job.prompt_tokens, output_tokens, block_hashes=blocks, transferred=transferred
                )
                node.engine.submit(asked, self.now)
            except EngineFullError:
                failure = Failure.BUSY
            except PromptTooLongError:
                failure = Failure.SERVER_ERROR
        if failure is not None:
            self.at(self.now + self.settings.network_s, partial(self._fail, journey, lease, failure))
            return
        node.journeys[job.id] = journey
        self._run_engine(node)

    def _abort_at(self, node: EngineNode, life: int, request_id: str) -> None:
        if node.life == life and node.journeys.pop(request_id, None) is not None:
            node.engine.abort(request_id, self.now)

    def _run_engine(self, node: EngineNode) -> None:
        end_s = node.engine.next_step_end()
        if end_s is not None and not node.stepping:
            node.stepping = True
            self.at(end_s, partial(self._step, node, node.life))

    def _step(self, node: EngineNode, life: int) -> None:
        if node.life != life:
            return
        if node.freeze is not None and node.stands(self.now, FreezeKind.STANDS, FreezeKind.STOPPED):
            self.at(node.freeze.at_s + node.freeze.for_s, partial(self._step, node, life))
            return
        node.stepping = False
        heard: list[tuple[SimulatedJourney, int, int, Progress]] = []
        journeys = node.journeys
        may_move = node.spec.strange.streams  # as far as is not known yet
        for progress in node.engine.step(self.now):
            journey = journeys[progress.id]
            if journey.prefills:
                del journeys[progress.id]
                done = partial(self._prefilled, journey, journey.lease, progress)
                self.at(self.now + self.settings.network_s, done)
                continue
            if may_move and journey.job.stream.streamed:
                self._moved[node.spec.name] = None
                may_move = False
            tokens = journey.output_tokens = journey.output_tokens + progress.tokens
            if progress.finish_reason is not None:
                del journeys[progress.id]
            elif tokens % PROGRESS_EVERY and not progress.first:
                continue
            heard.append((journey, journey.lease, tokens, progress))
        if heard:
            self._deliver(node, heard)
        self._run_engine(node)

    def _deliver(self, node: EngineNode, heard: list[tuple[SimulatedJourney, int, int, Progress]]) -> None:  # noqa: ARG002
        self.at(self.now + self.settings.network_s, partial(self._hear, heard))

    def _prefilled(self, journey: SimulatedJourney, lease: int, progress: Progress) -> None:
        if journey.outcome or journey.lease != lease or progress.usage is None:
            return
        journey.node = None
        used = progress.usage
        usage = Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens, cached_told=True)
        self._tell(journey.told.prefilled(lease, usage, now=self.now))

    def _hear(self, heard: list[tuple[SimulatedJourney, int, int, Progress]]) -> None:
        """The tokens of a step arrive at the gateway."""
        now = self.now
        for journey, lease, tokens, progress in heard:
            if journey.outcome or journey.waits or journey.lease != lease:
                continue  # ended or withdrawn
            ours = not journey.job.stream.bypass
            strange = journey.node.spec.strange if journey.node is not None else PLAIN
            asked = ours and journey.job.stream.streamed
            seen = asked and strange.streams
            again = journey.first_s is not None  # the engine computed it a second time, to make room for others
            if progress.first:
                journey.first_s = now
                self._serve(journey).prompt_tokens += journey.job.prompt_tokens
                if not ours:
                    self._rival.first_token(journey.job)
                if seen and not again:
                    self._tell(journey.told.first_token(journey.lease, now=now))
            if progress.usage is not None and progress.finished:
                self._serve(journey).output_tokens += tokens
                used = progress.usage
                journey.cached_tokens = used.cached_tokens
                usage = Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens, cached_told=True)
                if asked and not seen:
                    self._tell(journey.told.first_token(journey.lease, now=now))
                self._end(journey, "completed")
                if ours:
                    self._tell(journey.told.finished(journey.lease, usage if strange.tells_usage else None, now=now))
            elif seen and not progress.first:
                self._tell(journey.told.progressed(journey.lease, tokens, now=now))

    def _serve(self, journey: SimulatedJourney) -> TokensDone:
        stream = journey.job.stream
        return self.service.setdefault((stream.tenant, stream.user), TokensDone())

    def _slow_down(self, factor: float) -> None:
        for node in self.nodes.values():
            node.engine.slow_factor = factor

    def _die(self, node: EngineNode) -> None:
        node.alive, node.stepping = False, False
        node.life += 1
        lost, node.journeys = node.journeys, {}
        for journey in lost.values():
            self.at(self.now + self.settings.network_s, partial(self._lose, journey, journey.lease))

    def _lose(self, journey: SimulatedJourney, lease: int) -> None:
        broken = journey.first_s is not None and journey.job.stream.streamed
        self._fail(journey, lease, Failure.BROKEN if broken else Failure.RESET)

    def _revive(self, node: EngineNode) -> None:
        node.engine = EngineModel(node.spec.config, seed=self.settings.seed * 1000 + 500 + node.life)
        node.alive, node.started_s = True, self.now + 1.0

    def _probe(self, node: EngineNode) -> None:
        scheduler = self.scheduler
        tell = scheduler.endpoint_up if node.alive else scheduler.endpoint_down
        self._tell(tell(node.spec.name, now=self.now))
        self.at(self.now + self.settings.probe_s, partial(self._probe, node))

    # --- gauges and measurements --------------------------------------------------------------------------------

    def _ask_gauges(self, node: EngineNode) -> None:
        """Ask now. The answer comes after `scrape_answer_s`, with the gauges of half of that time."""
        asked_s, way_s = self.now, self.settings.scrape_answer_s
        if node.stands(asked_s, FreezeKind.STOPPED):
            self.at(asked_s + PAGE_TIMEOUT_S, partial(self._heard_gauges, node, None))
            self.at(asked_s + PAGE_TIMEOUT_S + self.settings.scrape_s, partial(self._ask_gauges, node))
            return

        def look() -> None:
            reading = translate.observation(node, asked_s) if node.alive else None
            self.at(self.now + way_s / 2, partial(self._heard_gauges, node, reading))

        self.at(self._reaches_s(node, asked_s + way_s / 2), look)
        self.at(asked_s + self.settings.scrape_s, partial(self._ask_gauges, node))

    def _reaches_s(self, node: EngineNode, when: float) -> float:  # noqa: ARG002
        """Returns when an engine's HTTP server comes to what it was asked at `when`."""
        return when

    def _heard_gauges(self, node: EngineNode, reading: Observation | None) -> None:
        answered = reading is None and node.alive and not node.stands(self.now, FreezeKind.STOPPED)
        self._tell(self.scheduler.observed(node.spec.name, reading, answered=answered, now=self.now))

    def _sample(self) -> None:
        done = {who: [service.prompt_tokens, service.output_tokens] for who, service in self.service.items()}
        for node in self.nodes.values():
            for journey in node.journeys.values():
                if journey.first_s is not None:
                    stream = journey.job.stream
                    done[stream.tenant, stream.user][1] += journey.output_tokens
        self._send_released()
        self.samples.append((self.now, {who: (prompt, output) for who, (prompt, output) in done.items()}))
        self._watch.second(self)
        if self._progress is not None:
            self._progress(self.now, self.settings.duration_s)
        self.at(self.now + self.settings.sample_s, self._sample)


def scheduler_for(settings: WorldSettings) -> Scheduler:
    """Returns a scheduler for these settings, with invariants checked after every fact if `checked`."""
    random = Random(settings.seed)
    if settings.checked:
        from penstock.conformance.invariants import CheckedScheduler  # noqa: PLC0415  (checks cost: only where asked for)

        return CheckedScheduler(settings.scheduler, random=random)
    return Scheduler(settings.scheduler, random=random)
