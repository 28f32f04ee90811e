"""Why did, or does, a request wait: the notes on each request, and the answer made of them.

A request has a `Trail` here from its arrival on, and the last `KEPT` that ended are kept with theirs. On the way only
references and numbers at hand are noted; durations per cause, and which requests went first and why, are worked out
on request. See docs/decisions/0008 for the costs and limits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.explain.explanation import Candidate, Explanation, Requeued, Sent, Served, Waited
from penstock.core.explain.shares import Meter, ModelMeter, Shares
from penstock.core.explain.wait_causes import Stay, Stayed, Waits
from penstock.core.queueing.entry import Entry
from penstock.core.routing.policies.base import Choice
from penstock.core.values.catalogue import Cause, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.located import NOWHERE, Located
from penstock.core.values.request import Usage
from penstock.core.values.rows import LimitReached

KEPT: Final = 1_000  # requests that ended
DISPATCHES_KEPT = 1_000  # searched for the requests that went first
CANDIDATES_MAX: Final = 3  # of the endpoints that were open, noted with their load
STAYS_MAX: Final = 32  # visits to the queue with their causes; of further ones only the length is known
SERVED_SHOWN = 12  # groups of requests that went first


_Loaded = tuple[Endpoint, int, int, int, int]  # with its leases, slots, prompt tokens ahead, and cached tokens


class Trail:
    """The notes on one request."""

    __slots__ = (
        "arrived_s", "band", "bumped", "choice", "counted", "ended_s", "first_s", "limit", "meter", "model", "open",
        "reason", "requeues", "sent", "sent_serial", "serial", "stay", "stays", "tried", "usage",
    )  # fmt: skip

    def __init__(self, now: float, serial: int, band: str) -> None:
        self.arrived_s = now
        self.band = band  # by its name: ranks change with the settings
        self.serial = serial  # of the last dispatch before it came
        self.sent_serial = 0  # of its own
        self.meter: Meter | None = None
        self.model: ModelMeter | None = None
        self.stay: Stay | None = None  # the present one
        self.stays: list[Stayed] | None = None  # those that are over
        self.sent: Sent | None = None  # the last dispatch; its times are the clock's
        self.choice: Choice | None = None  # and the endpoints compared for it
        self.open: list[_Loaded] | None = None  # some of those that were open then; None: it went at once
        self.counted = 0.0  # service its meter got for it
        self.requeues: list[tuple[float, str, str]] | None = None
        self.first_s: float | None = None
        self.bumped = False
        self.tried = False
        self.usage: Usage | None = None
        self.ended_s: float | None = None
        self.reason: Reason | None = None
        self.limit: LimitReached | None = None  # of its tenant, where that is the reason


class Recorder:
    """Notes what happens to requests, and explains it."""

    def __init__(self, waits: Waits, shares: Shares, bands: Sequence[str]) -> None:
        self._waits = waits
        self._shares = shares
        self._bands = bands
        self._trails: dict[int, Trail] = {}  # by arrival number; ended ones as long as kept
        self._ended: deque[Entry] = deque()
        self._by_id: dict[str, Entry] = {}  # the latest of those that ended and had this id
        self._sent: deque[tuple[int, Sent, Entry, Trail]] = deque(maxlen=DISPATCHES_KEPT)
        self._serial = 0

    # --- events (each request pays for all of it: benchmarks/snapshot.py) -----------------------------------

    def arrived(self, entry: Entry, now: float) -> None:
        """Begin the trail of a request that came."""
        self._trails[entry.seq] = Trail(now, self._serial, self._bands[entry.band])

    def waits(self, entry: Entry, now: float) -> None:
        """Note that `entry` stays in the queue: its wait counts for its tenant and its cause."""
        trail = self._trails[entry.seq]
        meter = trail.meter
        if meter is None:
            meter = trail.meter = self._shares.meter(entry)
        if not meter.entries:
            self._shares.waiting[meter.band][meter] = None
        meter.entries[entry.seq] = entry
        trail.stay = self._waits.enter(entry, now)

    def sent(self, entry: Entry, endpoints: Sequence[Endpoint], choice: Choice, now: float) -> None:
        """Note that a request goes to the endpoint of `choice`, one of `endpoints`, which were open.

        The endpoint's ledger has not counted the request yet.
        """
        trail, shares = self._trails[entry.seq], self._shares
        meter, model = trail.meter, trail.model
        if meter is None:
            meter = trail.meter = shares.meter(entry)
        else:
            self._leave(entry, trail, now)
        if model is None:
            model = trail.model = shares.model(entry.model)
        chosen = choice.endpoint
        trail.choice, located = choice, entry.located
        trail.open = None
        if trail.stays is not None or located.levels or located.told:  # of the others only the choice is known
            trail.open = _loads(chosen, endpoints, located)
        node = entry.node
        parent = node.parent
        while parent is not None and parent.parent is not None:
            node, parent = parent, parent.parent
        virtual = 0.0 if parent is None else parent.virtual
        self._serial = trail.sent_serial = serial = self._serial + 1
        trail.sent = sent = Sent(
            now,
            chosen.name,
            len(endpoints),
            scored_by=choice.scored_by,
            service=node.tag,
            virtual_time=virtual,
        )
        self._sent.append((serial, sent, entry, trail))
        meter.running += 1
        model.running += 1
        model.waits_s.append((now, entry.waited_s))
        # A policy that counts nothing has no shares of its own to show.
        trail.counted = entry.cost or entry.work
        shares.add(meter, trail.counted, now)

    def took_over(self, entry: Entry, endpoint: str, came_s: float, sent_s: float, now: float) -> None:
        """Note that a request runs that another scheduler sent to `endpoint`."""
        trail, shares = self._trails[entry.seq], self._shares
        trail.arrived_s = came_s
        trail.meter, trail.model = meter, model = shares.meter(entry), shares.model(entry.model)
        trail.sent, trail.sent_serial = Sent(sent_s, endpoint), trail.serial
        meter.running += 1
        model.running += 1
        trail.counted = entry.cost or entry.work
        shares.add(meter, trail.counted, now)

    def came(self, entry: Entry, came_s: float) -> None:
        """Note when a request came that waited elsewhere before."""
        self._trails[entry.seq].arrived_s = came_s

    def forgotten(self, entry: Entry, now: float) -> None:
        """Forget a request that is decided about elsewhere, as if it had never come."""
        trail = self._trails.pop(entry.seq)
        if trail.stay is not None:
            self._leave(entry, trail, now)
        if trail.meter is not None and trail.sent is not None:
            self._shares.correct(trail.meter, -trail.counted, trail.sent.at_s)

    def first_token(self, entry: Entry, now: float) -> None:
        """Note when the first token of the answer to `entry` came."""
        trail = self._trails[entry.seq]
        trail.first_s = now

    def divided(self, entry: Entry, endpoint: str) -> None:
        """Note that the request is answered at `endpoint`, and only its prompt is computed at the other."""
        if (sent := self._trails[entry.seq].sent) is not None:
            sent.decode_endpoint = endpoint

    def handed_over(self, entry: Entry, endpoint: str, now: float) -> None:
        """Note that the prompt is computed, and that `endpoint` answers from now on."""
        if (sent := self._trails[entry.seq].sent) is not None:
            sent.decode_endpoint, sent.decode_at_s = endpoint, now

    def rerouted(self, entry: Entry, endpoint: str) -> None:
        """Note that a proxy sent the request to `endpoint` instead."""
        if (sent := self._trails[entry.seq].sent) is not None:
            sent.fallback = endpoint

    def released(self, entry: Entry) -> None:
        """Count out a request that is at no endpoint any more."""
        trail = self._trails[entry.seq]
        meter, model = trail.meter, trail.model
        assert meter is not None
        assert model is not None
        meter.running -= 1
        model.running -= 1

    def requeued(self, entry: Entry, failure: str, endpoint: str, now: float) -> None:
        """Note that a request goes back to the queue because of `failure`: its service is taken off again."""
        trail = self._trails[entry.seq]
        assert trail.meter is not None
        assert trail.sent is not None
        trail.requeues = [*(trail.requeues or ())[-STAYS_MAX:], (now, failure, endpoint)]
        self._shares.correct(trail.meter, -trail.counted, trail.sent.at_s)
        trail.counted = 0.0

    def bumped(self, entry: Entry) -> None:
        """Note that an operator put a request first."""
        self._trails[entry.seq].bumped = True

    def tried(self, entry: Entry) -> None:
        """Note that a request is about to be sent although it is forecast to miss its deadline."""
        self._trails[entry.seq].tried = True
        self._shares.model(entry.model).tried += 1

    def blamed(self, entry: Entry, reason: Reason) -> None:
        """Note the `reason` for which a request is being ended, before it is over."""
        self._trails[entry.seq].reason = reason

    def refused(self, entry: Entry, limit: LimitReached | None) -> None:
        """Note the `limit` of its tenant for which a request is being refused, if that is why."""
        self._trails[entry.seq].limit = limit

    def reconfigured(self, bands: Sequence[str], entries: Iterable[Entry], now: float) -> None:
        """Follow other settings, and maybe other bands: `entries` that wait go on waiting, in another line."""
        here = [(entry, self._trails[entry.seq]) for entry in entries]
        waiting = [(entry, trail) for entry, trail in here if entry.state is State.WAITING and trail.meter is not None]
        for entry, trail in waiting:
            self._leave(entry, trail, now)
        old = {name: rank for rank, name in enumerate(self._bands)}
        self._bands = bands
        self._shares.rearranged([old.get(name) for name in bands])
        self._waits.reconfigured()
        for entry, trail in here:
            trail.band = bands[entry.band]
            if trail.meter is not None:
                trail.meter.running -= entry.lease is not None
                trail.meter = self._shares.meter(entry)
                trail.meter.running += entry.lease is not None
        for entry, _ in waiting:
            self.waits(entry, now)

    def relined(self, entries: Iterable[Entry], now: float) -> None:
        """Move waiting requests to the lines that they belong to now."""
        for entry in entries:
            trail = self._trails[entry.seq]
            if trail.meter is not None:
                self._leave(entry, trail, now)
                self.waits(entry, now)

    def ended(self, entry: Entry, reason: Reason | None, usage: Usage | None, now: float) -> None:
        """Note how a request ended that was settled. `reason`: None if it was answered. It is kept for a while."""
        trail = self._trails[entry.seq]
        if trail.stay is not None:
            self._leave(entry, trail, now)
        trail.ended_s = now
        trail.reason = trail.reason or reason
        trail.usage = usage
        model, state = trail.model, entry.state
        if model is None or state is State.EVICTED or state is State.REJECTED:
            self._shares.model(entry.model).refused += 1
        else:
            model.ended += 1
            model.served_s += now - trail.sent.at_s if trail.sent is not None else 0.0
            if usage is not None:
                model.prompt_tokens += usage.prompt_tokens
                model.output_tokens += usage.completion_tokens
            if entry.cost and entry.charged != trail.counted and trail.meter is not None and trail.sent is not None:
                self._shares.correct(trail.meter, entry.charged - trail.counted, trail.sent.at_s)
        if entry.prefix or entry.blocks is not None or entry.looked_up is not None:
            _strip(entry)
        self._ended.append(entry)
        self._by_id[entry.id] = entry
        if len(self._ended) > KEPT:
            oldest = self._ended.popleft()
            del self._trails[oldest.seq]
            if self._by_id.get(oldest.request.id) is oldest:
                del self._by_id[oldest.request.id]

    def _leave(self, entry: Entry, trail: Trail, now: float) -> None:
        """Take it out of its tenant's meter and its line."""
        meter, stay = trail.meter, trail.stay
        if meter is not None and meter.entries.pop(entry.seq, None) is not None and not meter.entries:
            del self._shares.waiting[meter.band][meter]
        if stay is not None:
            over = self._waits.leave(stay, entry, now)
            trail.stay = None
            if trail.stays is None:
                trail.stays = [over]
            elif len(trail.stays) < STAYS_MAX:
                trail.stays.append(over)

    # --- answers ------------------------------------------------------------------------------------------------

    def trail(self, entry: Entry) -> Trail:
        """Returns the notes on a request that is here, or that ended and is kept."""
        return self._trails[entry.seq]

    def find(self, request_id: str) -> Entry | None:
        """Returns the latest request that ended with this id; None if none is kept."""
        return self._by_id.get(request_id)

    def latest(self) -> Iterator[Entry]:
        """Returns the requests that ended and are kept, the last one first."""
        return reversed(self._ended)

    def cause(self, entry: Entry) -> Cause | None:
        """Returns the cause of a waiting request, as last looked at; None if it is in no line."""
        stay = self._trails[entry.seq].stay
        return stay.line.span.cause if stay is not None else None

    def explain(self, entry: Entry, *, estimated_wait_s: float | None, now: float) -> Explanation:
        """Returns all that is known of a request. `estimated_wait_s`: None if it does not wait, or nothing is known."""
        request, trail = entry.request, self._trails[entry.seq]
        start_s, sent, waiting = trail.arrived_s, trail.sent, entry.state is State.WAITING
        before = self._before(entry)
        stays = trail.stays or []
        if trail.stay is not None:
            stays = [*stays, self._waits.so_far(trail.stay, now)]
        seconds = _seconds(stays)
        closed = self._waits.endpoints(self._waits.band(request.band), request.model, now)[0] if waiting else {}
        usage = trail.usage
        return Explanation(
            id=request.id,
            tenant=request.tenant,
            band=trail.band,
            model=request.model,
            flow=list(request.flow),
            state=entry.state,
            came_s_ago=now - start_s,
            prompt_tokens=usage.prompt_tokens if usage is not None else entry.prompt_tokens,
            output_tokens=usage.completion_tokens if usage is not None else entry.output_tokens,
            waited_s=now - entry.waits_since_s if waiting else entry.waited_s,
            waits=[Waited(c, s) for c, s in sorted(seconds.items(), key=lambda item: -item[1])],
            waits_for=self._waits.present(trail.stay.line, now) if trail.stay is not None else None,
            closed=dict(closed),
            slots_by=self._waits.sized_by(request.model) if waiting else {},
            estimated_wait_s=estimated_wait_s,
            before=[
                Served(tenant, band, why, count) for (tenant, band, why), count in before.most_common(SERVED_SHOWN)
            ],
            before_total=sum(before.values()),
            sent=None
            if sent is None
            else replace(
                sent,
                at_s=sent.at_s - start_s,
                candidates=_candidates(trail),
                overtaken=entry.backfilled,
                decode_at_s=None if sent.decode_at_s is None else sent.decode_at_s - start_s,
            ),
            first_byte_s=None if trail.first_s is None else trail.first_s - start_s,
            instead_of=request.instead_of,
            tried=trail.tried,
            requeues=[Requeued(at - start_s, where, what) for at, what, where in trail.requeues or ()],
            ended_s=None if trail.ended_s is None else trail.ended_s - start_s,
            reason=trail.reason,
            limit=trail.limit,
        )

    def _before(self, entry: Entry) -> Counter[tuple[str, str, str]]:
        """Return the requests that went first: how many, by tenant, band and why."""
        trail = self._trails[entry.seq]
        until = self._serial + 1 if trail.sent is None else trail.sent_serial
        ended_s = trail.ended_s if trail.sent is None else None
        served: Counter[tuple[str, str, str]] = Counter()
        for serial, sent, its, noted in reversed(self._sent):
            if serial <= trail.serial:
                break
            late = serial >= until or (ended_s is not None and sent.at_s >= ended_s)
            if not late and its is not entry and its.model == entry.model:
                served[its.tenant, noted.band, _why(its, noted, entry)] += 1
        return served


def _strip(entry: Entry) -> None:
    """Drop the routing data: a long prompt's keys are many times larger than all else."""
    entry.forget_route()
    if entry.prefix:
        entry.request.forget_prefix()
        entry.became(entry.request)


def _loads(chosen: Endpoint, endpoints: Sequence[Endpoint], located: Located) -> list[_Loaded]:
    """Returns the chosen endpoint and some of the others that are open, with their loads."""
    shown: list[_Loaded] = []
    for endpoint in (chosen, *endpoints[:CANDIDATES_MAX]):
        if endpoint is not chosen or not shown:
            ledger = endpoint.ledger
            cached = 0 if located is NOWHERE else located.tokens(endpoint.index)
            shown.append((endpoint, len(ledger.leases), ledger.limit.slots, ledger.prefill.outstanding_tokens, cached))
    return shown


def _candidates(trail: Trail) -> list[Candidate]:
    """Returns the endpoints that were open at the dispatch, the chosen one first, as they stood then."""
    choice = trail.choice
    if choice is None:
        return []
    if trail.open is None:
        among = (choice.endpoint, *[e for e in choice.among[:CANDIDATES_MAX] if e is not choice.endpoint])
        return [Candidate(endpoint.name, score=choice.score(endpoint)) for endpoint in among]
    return [
        Candidate(endpoint.name, leases, slots, ahead, cached, choice.score(endpoint))
        for endpoint, leases, slots, ahead, cached in trail.open
    ]


def _why(other: Entry, noted: Trail, entry: Entry) -> str:
    """Why another one went before this one."""
    if noted.bumped:
        return "bumped"
    if other.band != entry.band:
        return "band" if other.band < entry.band else "promised"
    if other.node is not entry.node and other.request.flow != entry.request.flow:
        return "turn"
    return "order" if (other.key, other.seq) < (entry.key, entry.seq) else "overtook"


def _seconds(stays: Iterable[Stayed]) -> dict[Cause, float]:
    total: dict[Cause, float] = {}
    for stay in stays:
        for cause, seconds in stay.seconds().items():
            total[cause] = total.get(cause, 0.0) + seconds
    return total
