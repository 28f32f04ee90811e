"""A request's estimated wait, for Retry-After and for refusing requests that cannot be served in time.

Little's law backwards: the work ahead, divided by the rate at which work has been taken up recently. Ahead of a request
is the queue of its own flow, stretched by the share of others (weights of active flows over its own, per level), plus
its flow's debt; but never more than the whole queue of its band. Work of higher bands comes on top. Rates are kept per
model, only over the time since a queue for it formed: before, dispatches follow arrivals and do not show the engines'
capacity; until there is enough of that, slots over lease durations are used.

Not all requests ahead will be sent: those that miss their deadline, wait too long or hang up leave, and shorten the
wait of the others. Which ones is unknown, but the work that left a flow recently is known, and a line with a dispatch
rate and a leaving rate moves by their sum. So no line is walked through, and an estimate costs the same however much
waits. For refusals on arrival all requests ahead are expected to stay, because a refused one has not waited yet, and
one admitted because others leave would leave in its turn.

If a tenant runs as many requests as it may, its line moves as these end: the longer one of both waits is returned.

If flows take turns by requests, requests are counted instead of work.
"""

from __future__ import annotations

import math

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node
from penstock.core.queueing.ttft_evidence import TtftEvidence
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.util.decaying import WINDOW_S, DecayingRate

RATE_MIN = 1e-3  # of work per second; below, nothing was sent for minutes
RATE_TRUSTED_S = 3.0  # of queueing; less holds too few dispatches
PRESENT_S = 10.0  # since a lease last ended: older leases refuse no request
SCARCE_S = 2.0  # since a deadline was last refused for the line before it: as long as that line moves on by half
MODELS_MAX = 1_000  # with remembered rates
RETRY_AFTER_UNKNOWN_S = 5.0  # nothing was ever dispatched: an engine that loads, or one that is gone
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0  # SDKs ignore longer ones
JITTER_S_MAX = 15.0  # a quarter of that: spread over it, those that were refused together do not come back together


class _Model:
    """The learned rates of one model."""

    __slots__ = ("drain", "ended_s", "first_tokens", "refused_s", "scarce_until_s", "seconds", "work")

    def __init__(self) -> None:
        self.drain = DecayingRate()
        self.first_tokens = TtftEvidence()
        self.refused_s = 0.0  # the longest deadline that was refused for want of room,
        self.scarce_until_s = -math.inf  # and until when that is news
        self.seconds = 0.0  # how long leases lasted that ended recently, fading; as of `ended_s`
        self.work = 0.0  # that was in them, likewise
        self.ended_s = -math.inf


class WaitForecast:
    """Learns the rate of dispatch and estimates waits."""

    def __init__(self, *, by_request: bool = False) -> None:
        self._models: BoundedMap[str, _Model] = BoundedMap(MODELS_MAX)
        self._by_request = by_request  # turns are taken by requests

    def reconfigured(self, *, by_request: bool) -> None:
        """Deal turns by request, or by work, from now on. A change resets the rates."""
        if by_request != self._by_request:
            self._by_request = by_request
            self._models.clear()

    def dispatched(self, entry: Entry, *, queued: bool, now: float) -> None:
        """Note that a request was sent. `queued`: others for the same model wait."""
        learned = self._models.renewed_or(entry.model, _Model)
        learned.first_tokens.sent(entry.uncached_tokens, now)
        if not queued:
            if learned.drain.since_s is not None:
                learned.drain = DecayingRate()
        else:
            learned.drain.note(now, self._size(entry))

    def resumed(self, model: str | None) -> None:
        """Forget the rate of `model`, or of all if None, after a pause of dispatching."""
        for learned in self._models.values() if model is None else filter(None, [self._models.get(model)]):
            learned.drain = DecayingRate()

    def first_token(self, model: str, prompt_tokens: int, after_s: float, now: float) -> None:
        """Record a first token `after_s` after the dispatch, for a prompt with `prompt_tokens` to compute."""
        self._models.renewed_or(model, _Model).first_tokens.came(prompt_tokens, after_s, now)

    def lease_ended(self, entry: Entry, after_s: float, now: float) -> None:
        """Note that a request was at an endpoint for `after_s`."""
        learned = self._models.renewed_or(entry.model, _Model)
        fade = math.exp((learned.ended_s - now) / WINDOW_S)
        learned.seconds = learned.seconds * fade + after_s
        learned.work = learned.work * fade + (1.0 if self._by_request else entry.work)
        learned.ended_s = now

    # --- deadlines ----------------------------------------------------------------------------------------------

    def first_token_s(self, entry: Entry, now: float) -> float:
        """Returns the time that a request needs at dispatch, by current evidence.

        If others with as much time are refused for want of room, that is as much as nearly all need: a slot given to
        one that is probably late is taken from one that would not be. Otherwise it is the recent minimum.
        """
        learned = self._models.get(entry.model)
        if learned is None:
            return 0.0
        if now < learned.scarce_until_s and entry.deadline_s - entry.waits_since_s <= learned.refused_s:
            return learned.first_tokens.mostly_s(entry.uncached_tokens, now)
        return learned.first_tokens.at_best_s(entry.uncached_tokens, now)

    def soonest_s(self, entry: Entry, now: float) -> float:
        """Returns the least time that a first token recently needed; 0 while unknown."""
        learned = self._models.get(entry.model)
        return learned.first_tokens.at_best_s(entry.uncached_tokens, now) if learned is not None else 0.0

    def may_try(self, entry: Entry, now: float) -> bool:
        """True if the request is to be sent although it is forecast to be late, to learn."""
        return self._models.renewed_or(entry.model, _Model).first_tokens.may_try(entry.uncached_tokens, now)

    def refused(self, model: str, within_s: float, now: float) -> None:
        """Record that a deadline `within_s` from arrival was refused because of the queue."""
        learned = self._models.renewed_or(model, _Model)
        if now >= learned.scarce_until_s or within_s >= learned.refused_s:
            learned.refused_s, learned.scarce_until_s = within_s, now + SCARCE_S

    # --- waits --------------------------------------------------------------------------------------------------

    def left(self, entry: Entry, now: float) -> None:
        """Note that a waiting request left without having been sent."""
        if entry.held:
            return  # nobody waited for it
        node = entry.node
        size = self._size(entry)
        node.left, node.left_s = _fading(node, now) + size, now
        while node.parent is not None:
            node = node.parent
        if node is not entry.node:
            node.left, node.left_s = _fading(node, now) + size, now

    def ahead(self, requests: int, work: float) -> float:
        """Returns the amount before a request in its own line, in requests or work."""
        return requests if self._by_request else work

    def wait_s(
        self,
        entry: Entry,
        bands: list[Band],
        slots: int,
        now: float,
        *,
        ahead: float | None = None,
        refusing: bool = False,
    ) -> float | None:
        """Returns the seconds until a request is sent that has so much `ahead` in its flow; None while unknown.

        By default it joins, or has joined, its flow's end. `refusing`: it is asked whether to wait at all. Then nothing
        ahead counts as leaving without dispatch, and only current evidence is used.
        """
        rate = self._rate(entry.model, slots, now - PRESENT_S if refusing else -math.inf, now)
        if rate is None:
            return None
        fades_s = math.inf if refusing else now
        return self._ahead(entry, bands, ahead, rate, fades_s) / rate

    def capped_s(self, entry: Entry, most: int, bands: list[Band], *, ahead: float | None = None) -> float:
        """Returns the seconds until a request is sent of whose tenant only `most` run at a time; 0 while unknown.

        Its own line moves as often as one of these ends, however many slots are free.
        """
        learned = self._models.get(entry.model)
        if learned is None or learned.work <= 0.0 or most <= 0:
            return 0.0
        own = self._size(entry)
        if ahead is None:
            queued = entry.seq in bands[entry.band].entries
            ahead = self._waiting(entry.node, entry.model) - (own if queued else 0.0)
        return (ahead + own) * learned.seconds / (learned.work * most)

    def _ahead(self, entry: Entry, bands: list[Band], ahead: float | None, rate: float, now: float) -> float:
        """Returns the amount sent before it, at `rate` per second. Late enough, no request has left recently."""
        flow = node = entry.node
        band, model = entry.band, entry.model
        own = self._size(entry) if entry.seq in bands[band].entries else 0.0
        if ahead is None:
            ahead = self._waiting(flow, model) - own
        stretch, debt = 1.0, 0.0
        while node.parent is not None:
            parent = node.parent
            active = parent.active_weight + (0.0 if node.active else node.weight)
            debt = (debt / node.weight + max(0.0, node.tag - parent.virtual)) * active
            stretch *= active / node.weight
            node = parent
        turn = ahead * stretch * _sent_share(flow, rate / stretch, now) + debt
        roots = [each.tree.root for each in bands[: band + 1]]
        in_all = [self._waiting(root, model) * _sent_share(root, rate, now) for root in roots]
        in_band = in_all[band] - own
        return sum(in_all[:band]) + max(0.0, min(turn, in_band))

    def _size(self, entry: Entry) -> float:
        return 1.0 if self._by_request else entry.work

    def _waiting(self, node: Node, model: str) -> float:
        return node.backlog.get(model, 0) if self._by_request else node.work.get(model, 0.0)

    def _rate(self, model: str, slots: int, since_s: float, now: float) -> float | None:
        learned = self._models.get(model)
        if learned is None:
            return None
        drain, by_slots = learned.drain.per_s(now), 0.0
        if learned.seconds > 0 and learned.work > 0 and slots > 0 and learned.ended_s >= since_s:
            by_slots = slots * learned.work / learned.seconds
        if drain > RATE_MIN and learned.drain.elapsed_s(now) >= RATE_TRUSTED_S:
            return max(drain, by_slots) if since_s > -math.inf else drain
        return by_slots or (drain if drain > RATE_MIN else None)


def _fading(node: Node, now: float) -> float:
    return node.left * math.exp((node.left_s - now) / WINDOW_S)


def _sent_share(node: Node, sent_per_s: float, now: float) -> float:
    """Returns the part of the waiting work that will be sent at this rate; the rest leaves before."""
    return sent_per_s / (sent_per_s + _fading(node, now) / WINDOW_S)


def retry_after_s(wait_s: float | None, jitter: float, most: float = RETRY_AFTER_S_MAX) -> float:
    """Returns the Retry-After of a refusal in seconds. `jitter` in 0..1 spreads those that were refused together."""
    seconds = RETRY_AFTER_UNKNOWN_S if wait_s is None else wait_s
    return min(max(seconds + jitter * min(0.25 * seconds, JITTER_S_MAX), RETRY_AFTER_S_MIN), most)
