"""Why did, or does, a request wait: the notes on each request, of which `explanation.py` makes the answer.

A request has a `Trail` here from its arrival on, and `KEPT` that ended are kept with theirs (`kept.py`). Only
references and numbers at hand are noted. See docs/decisions/0008 for the costs and limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.explain.shares import Meter, ModelMeter, Shares
from penstock.core.explain.wait_causes import Stay, Stayed, Waits
from penstock.core.queueing.entry import Entry
from penstock.core.routing.policies.base import Choice
from penstock.core.values.catalogue import Cause, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.located import NOWHERE, Located
from penstock.core.values.request import Usage
from penstock.core.values.rows import LimitReached

KEPT: Final = 1_000  # requests that ended, at least, if there were so many; about 1 KB each
SLACK: Final = 1_000  # beyond these, until the room is divided: 1 to 2 ms of a plain build, so 1 to 2 µs per request
DISPATCHES_KEPT = 1_000  # searched for the requests that went first
CANDIDATES_MAX: Final = 3  # of the endpoints that were open, noted with their load
STAYS_MAX: Final = 32  # visits to the queue with their causes; of further ones only the length is known


_Loaded = tuple[Endpoint, int, int, int, int]  # with its leases, slots, prompt tokens ahead, and cached tokens


class Trail:
    """The notes on one request; of several dispatches, those on the last one."""

    __slots__ = (
        "arrived_s", "band", "bumped", "choice", "counted", "decode_at_s", "decode_endpoint", "ended_s", "fallback",
        "first_s", "limit", "meter", "model", "open", "open_endpoints", "reason", "requeues", "sent_s", "sent_serial",
        "sent_to", "serial", "service", "stay", "stays", "tried", "usage", "virtual_time",
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
        self.sent_s: float | None = None  # None: not sent yet
        self.sent_to = ""  # the endpoint
        self.open_endpoints = 0
        self.service = 0.0  # of its flow by then, per weight
        self.virtual_time = 0.0  # of its band
        self.decode_endpoint: str | None = None  # the one that answers it, if another
        self.decode_at_s: float | None = None  # when it was handed over to that one
        self.fallback: str | None = None  # the one that a proxy sent it to instead
        self.choice: Choice | None = None  # the endpoints that were compared
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
    """Notes what happens to requests."""

    def __init__(self, waits: Waits, shares: Shares, bands: Sequence[str]) -> None:
        self._waits = waits
        self._shares = shares
        self._bands = bands
        self._trails: dict[int, Trail] = {}  # by arrival number; ended ones as long as kept
        self._ended: list[Entry] = []  # the oldest first
        self._by_id: dict[str, Entry] = {}  # the latest of those that ended and had this id
        self.dispatches: deque[tuple[int, float, Entry, Trail]] = deque(maxlen=DISPATCHES_KEPT)  #: numbered, with times
        self.serial = 0  #: of the last dispatch

    # --- events (each request pays for all of it: benchmarks/snapshot.py) -----------------------------------

    def arrived(self, entry: Entry, now: float) -> None:
        """Begin the trail of a request that came."""
        self._trails[entry.seq] = Trail(now, self.serial, self._bands[entry.band])

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
        self.serial = trail.sent_serial = serial = self.serial + 1
        if trail.sent_s is not None:
            trail.decode_endpoint = trail.fallback = trail.decode_at_s = None
        trail.sent_s, trail.sent_to, trail.open_endpoints = now, chosen.name, len(endpoints)
        trail.service, trail.virtual_time = node.tag, virtual
        self.dispatches.append((serial, now, entry, trail))
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
        trail.sent_s, trail.sent_to, trail.sent_serial = sent_s, endpoint, trail.serial
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
        if trail.meter is not None and trail.sent_s is not None:
            self._shares.correct(trail.meter, -trail.counted, trail.sent_s)

    def first_token(self, entry: Entry, now: float) -> None:
        """Note when the first token of the answer to `entry` came."""
        trail = self._trails[entry.seq]
        trail.first_s = now

    def divided(self, entry: Entry, endpoint: str) -> None:
        """Note that the request is answered at `endpoint`, and only its prompt is computed at the other."""
        self._trails[entry.seq].decode_endpoint = endpoint

    def handed_over(self, entry: Entry, endpoint: str, now: float) -> None:
        """Note that the prompt is computed, and that `endpoint` answers from now on."""
        trail = self._trails[entry.seq]
        trail.decode_endpoint, trail.decode_at_s = endpoint, now

    def rerouted(self, entry: Entry, endpoint: str) -> None:
        """Note that a proxy sent the request to `endpoint` instead."""
        self._trails[entry.seq].fallback = endpoint

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
        assert trail.sent_s is not None
        trail.requeues = [*(trail.requeues or ())[-STAYS_MAX:], (now, failure, endpoint)]
        self._shares.correct(trail.meter, -trail.counted, trail.sent_s)
        trail.counted = 0.0

    def unsent(self, entry: Entry) -> None:
        """Note that a dispatch came too late to be carried out: its service is taken off again."""
        trail = self._trails[entry.seq]
        assert trail.meter is not None
        assert trail.sent_s is not None
        self._shares.correct(trail.meter, -trail.counted, trail.sent_s)
        trail.counted, trail.sent_s, trail.sent_to = 0.0, None, ""

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
            meter, sent_s = trail.meter, trail.sent_s
            model.ended += 1
            if usage is not None:
                model.prompt_tokens += usage.prompt_tokens
                model.output_tokens += usage.completion_tokens
            if meter is not None and sent_s is not None:
                model.served_s += now - sent_s
                self._shares.served_s[meter.band] = now
                if entry.cost and entry.charged != trail.counted:
                    self._shares.correct(meter, entry.charged - trail.counted, sent_s)
        if entry.prefix or entry.blocks is not None or entry.looked_up is not None:
            _strip(entry)
        self._ended.append(entry)
        self._by_id[entry.id] = entry
        if len(self._ended) >= KEPT + SLACK:
            self._forget_some(now)

    def _forget_some(self, now: float) -> None:
        """Forget as many of the requests that ended as are too many."""
        from penstock.core.explain.kept import kept  # noqa: PLC0415 - no start needs it

        before, self._ended = self._ended, kept(self._ended, self._trails, KEPT, now)
        staying = set(self._ended)
        for entry in before:
            if entry not in staying:
                del self._trails[entry.seq]
                if self._by_id.get(entry.id) is entry:
                    del self._by_id[entry.id]

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
