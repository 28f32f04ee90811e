"""A small world in which nothing goes wrong: flows that always have more to ask, engines that serve, virtual time.

Each customer keeps so many requests waiting, so flows are backlogged for as long as they are wanted to be. A request's
actual cost is drawn here and reported only at its end, as usage.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Evict, Fail, Reject
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import AdmissionSettings, EndpointSpec

PREFILL_TOKENS_PER_S = 4000.0
OUTPUT_TOKENS_PER_S = 50.0
PROGRESS_TOKENS = 64

PATIENT = SchedulerSettings(
    wait_s_max=1e9, admission=AdmissionSettings(reserved_share=0.0, prefill_tokens_max=10**9), stale_after_s=1e9
)


@dataclass(frozen=True)
class Customer:
    """One flow. Sizes are drawn evenly between two bounds."""

    name: str
    weight: float = 1.0
    user: str | None = None
    prompt_tokens: tuple[int, int] = (100, 100)
    output_tokens: tuple[int, int] = (100, 100)
    cached: float = 0.0
    waiting: int = 40  #: requests it keeps waiting, more than are sent at once
    streamed: bool = True
    cancels: float = 0.0  #: share of its requests that it gives up half way
    model: str = "m"
    times_s: tuple[tuple[float, float], ...] = ((0.0, 1e9),)  #: when it asks at all

    @property
    def flow(self) -> tuple[str, ...]:
        return (self.name,) if self.user is None else (self.name, self.user)

    def asks(self, now: float) -> bool:
        return any(start <= now < end for start, end in self.times_s)


@dataclass
class ShopJob:
    """One request and its actual cost."""

    request: Request
    customer: Customer
    usage: Usage
    cost: float
    lease: int | None = None
    sent_s: float = math.inf


class Shop:
    """One run. Afterwards: the dispatches per flow, by actual cost, in order."""

    def __init__(
        self,
        customers: Sequence[Customer],
        *,
        slots: Sequence[int] = (4,),
        settings: SchedulerSettings = PATIENT,
        seed: int = 1,
        kind: type[Scheduler] = Scheduler,
    ) -> None:
        self.customers = customers
        self.random = Random(seed)
        self.scheduler = kind(settings, random=Random(seed))
        self.now = 0.0
        self.jobs: dict[str, ShopJob] = {}
        self.waiting: dict[Customer, int] = defaultdict(int)
        self.in_flight: dict[tuple[str, ...], dict[str, ShopJob]] = defaultdict(dict)
        self.served: dict[tuple[str, ...], float] = defaultdict(float)
        self.dispatched: list[ShopJob] = []
        self.refused: list[Action] = []
        self.watch: Callable[[ShopJob | None], None] = lambda _: (
            None
        )  # after each event; with each job, when it is sent
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self._slots = slots

    def run(self, until_s: float) -> Shop:
        if not self.now:
            self._open()
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, event = heapq.heappop(self._heap)
            self._let_time_pass()
            event()
            self._ask()
            self.watch(None)
        return self

    def _open(self) -> None:
        self._ask()  # before there are engines, so that all flows are backlogged from the start
        models = frozenset(customer.model for customer in self.customers)
        for at, count in enumerate(self._slots):
            self._tell(self.scheduler.endpoint_added(EndpointSpec(f"e{at}", count, models), now=0.0))
        for start_s in sorted({start for customer in self.customers for start, _ in customer.times_s}):
            self._at(start_s, lambda: None)

    def share(self) -> dict[str, float]:
        """By the first level's names."""
        total = sum(self.served.values())
        shares: dict[str, float] = defaultdict(float)
        for flow, cost in self.served.items():
            shares[flow[0]] += cost / total
        return shares

    # --- events -------------------------------------------------------------------------------------------------

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._heap, (when, self._made, event))

    def _let_time_pass(self) -> None:
        while (due_s := self.scheduler.next_deadline()) is not None and due_s <= self.now:
            self._tell(self.scheduler.expire(now=self.now))

    def _ask(self) -> None:
        """All flows top up their queues in turn, so that none is ahead by more than one request."""
        wanting = list(self.customers)
        while wanting:
            wanting = [x for x in wanting if x.asks(self.now) and self.waiting[x] < x.waiting]
            for customer in wanting:
                self._arrive(customer)

    def _arrive(self, customer: Customer) -> None:
        random = self.random
        self._made += 1
        prompt, output = random.randint(*customer.prompt_tokens), random.randint(*customer.output_tokens)
        usage = Usage(prompt, output, cached_tokens=int(prompt * customer.cached))
        request = self._request(f"r{self._made}", customer, prompt)
        cost = 1.0 * (prompt - usage.cached_tokens) + 2.0 * output
        self.jobs[request.id] = ShopJob(request, customer, usage, cost)
        self.waiting[customer] += 1
        self._tell(self.scheduler.arrived(request, now=self.now))

    def _request(self, name: str, customer: Customer, prompt_tokens: int) -> Request:
        return Request(
            id=name,
            model=customer.model,
            band=0,
            tenant=customer.name,
            flow=customer.flow,
            weights=(customer.weight, 1.0)[: len(customer.flow)],
            body_bytes=4 * prompt_tokens,
            streamed=customer.streamed,
        )

    def _tell(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self._send(action)
            elif isinstance(action, Reject | Evict | Fail):
                self.refused.append(action)
                self.waiting[self.jobs.pop(action.request_id).customer] -= 1

    def _send(self, action: Dispatch) -> None:
        job = self.jobs[action.request_id]
        customer, usage = job.customer, job.usage
        job.lease, job.sent_s = action.lease, self.now
        self.waiting[customer] -= 1
        begins_s = self.now + (usage.prompt_tokens - usage.cached_tokens) / PREFILL_TOKENS_PER_S + 0.01
        ends_s = begins_s + usage.completion_tokens / OUTPUT_TOKENS_PER_S * self.random.uniform(0.8, 1.2)
        gives_up = self.random.random() < customer.cancels
        if gives_up:
            ends_s = (begins_s + ends_s) / 2
            seen = max(usage.completion_tokens // 2 // PROGRESS_TOKENS * PROGRESS_TOKENS, 1)
            usage = Usage(usage.prompt_tokens, usage.completion_tokens // 2, usage.cached_tokens)
            entry = self.scheduler.inspect().entries[action.request_id]
            job.cost = entry.prompt_tokens + 2.0 * (seen if customer.streamed else entry.output_tokens)
        self.served[customer.flow] += job.cost
        self.in_flight[customer.flow][action.request_id] = job
        self.dispatched.append(job)
        if customer.streamed:
            self._at(begins_s, partial(self._first_token, job))
            for tokens in range(PROGRESS_TOKENS, usage.completion_tokens, PROGRESS_TOKENS):
                when = begins_s + (ends_s - begins_s) * tokens / usage.completion_tokens
                self._at(when, partial(self._progressed, job, tokens))
        self._at(ends_s, partial(self._cancelled if gives_up else self._finished, job))
        self.watch(job)

    def _first_token(self, job: ShopJob) -> None:
        assert job.lease is not None
        self._tell(self.scheduler.first_token(job.lease, now=self.now))

    def _progressed(self, job: ShopJob, tokens: int) -> None:
        assert job.lease is not None
        self._tell(self.scheduler.progressed(job.lease, tokens, now=self.now))

    def _finished(self, job: ShopJob) -> None:
        assert job.lease is not None
        self._forget(job)
        self._tell(self.scheduler.finished(job.lease, job.usage, now=self.now))

    def _cancelled(self, job: ShopJob) -> None:
        self._forget(job)
        self._tell(self.scheduler.cancelled(job.request.id, now=self.now))

    def _forget(self, job: ShopJob) -> None:
        del self.in_flight[job.customer.flow][job.request.id]
        del self.jobs[job.request.id]
