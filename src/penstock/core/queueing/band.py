"""One priority band: its queue, and the endpoints known to be open to it.

Bands are strict: a band is asked only when those above it can send nothing, except for the share of the service that a
lower band may be promised (`min_share`). Asking every endpoint at every event would make each decision cost
O(endpoints), so a band keeps a `Verdict` on each: it stands until something happens to the endpoint (`touch`), or until
the time that the verdict names. `CandidateFilter.judge` is the one place that makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, QueueTree, top
from penstock.core.values.settings import BandSettings

if TYPE_CHECKING:
    from penstock.core.values.catalogue import Cause

Room = tuple[float, float]  # prompt tokens to compute, and tokens in all
UNBOUNDED: Room = (math.inf, math.inf)  # not final: compiled, a final pair of numbers is taken for one without a value
FLOWS_UNDER_SHARE_MAX = 64  # remembered per model; those beyond wait for their turn in the fair order


class Verdict:
    """May requests of a band go to an endpoint, and if not, why? Never changed: another one replaces it."""

    __slots__ = ("cause", "free_slots", "idle", "room", "room_over_share", "until_s")

    def __init__(
        self,
        cause: Cause | None,
        until_s: float,
        *,
        free_slots: float = 0.0,
        room: Room = UNBOUNDED,
        room_over_share: Room = UNBOUNDED,
        idle: bool = False,
    ) -> None:
        self.cause = cause  #: why the endpoint is closed; None: it is open
        self.until_s = until_s  #: time alone changes nothing of it until then
        self.free_slots = free_slots  #: of an open one, as the next two: those that a reserve may be kept of
        self.room = room  #: how large a request may be
        self.room_over_share = room_over_share  #: of a flow over its share, while others need room
        self.idle = idle  #: nothing is there, so a request may have any size


class Band:
    """The waiting requests of one band."""

    def __init__(self, settings: BandSettings, rank: int) -> None:
        self.settings = settings
        self.rank = rank
        self.tree = QueueTree()
        self.entries: dict[int, Entry] = {}  # by arrival number, in order of entering
        self.held: dict[str, int] = {}  # of these, by model: those in no flow, because their sessions wait
        self.bytes = 0
        self.tokens = 0
        self.tokens_of: dict[str, int] = {}  # per model
        self._under_share: dict[str, dict[Node, None]] = {}  # by model: when their last request came
        self._sizes: dict[int, int] = {}  # how many wait, by size class of their prompts
        self.credit = 0.0  # service promised by `min_share` and not yet given
        self.open: dict[Endpoint, Verdict] = {}  # those that are open to it
        self.closed: dict[Endpoint, Verdict] = {}  # those that are not
        self.unchecked: dict[Endpoint, None] = {}  # those to be judged, again or for the first time
        self.holds_until_s = math.inf  # until then no verdict changes by time alone
        self.free_slots = 0.0  # the sum of those of the open ones
        self.busy = 0  # how many of these are not idle
        self.bumped: dict[int, Entry] = {}  # requests that operators bumped, by arrival number, in that order
        self.away: dict[Endpoint, None] = {}  # those that take no request at all
        self.holds_changed = False  # perhaps: it is to be looked at again which models are held

    def touch(self, endpoint: Endpoint) -> None:
        """Judge the endpoint again, because something happened to it. Until then the last cause is the known one."""
        if endpoint in self.unchecked:
            return
        verdict = self.open.pop(endpoint, None)
        if verdict is not None:
            self.free_slots = self.free_slots - verdict.free_slots if self.open else 0.0
            self.busy -= not verdict.idle
        self.unchecked[endpoint] = None

    def forget(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that was removed."""
        self.touch(endpoint)
        del self.unchecked[endpoint]
        self.closed.pop(endpoint, None)
        self.away.pop(endpoint, None)

    def judged(self, endpoint: Endpoint, verdict: Verdict) -> None:
        """Keep the verdict on an endpoint."""
        if verdict.cause is None:
            self.open[endpoint] = verdict
            self.closed.pop(endpoint, None)
            self.free_slots += verdict.free_slots
            self.busy += not verdict.idle
        else:
            self.closed[endpoint] = verdict
        self.holds_until_s = min(self.holds_until_s, verdict.until_s)

    def closed_for(self, endpoint: Endpoint) -> Cause | None:
        """Returns why an endpoint is closed, as last judged; None: it was open, or is not judged yet."""
        verdict = self.closed.get(endpoint)
        return None if verdict is None else verdict.cause

    def touch_expired(self, now: float) -> None:
        """Judge those endpoints again whose verdicts may be others by now."""
        self.holds_until_s = math.inf
        for endpoint, verdict in [*self.open.items(), *self.closed.items()]:
            if verdict.until_s <= now:
                self.touch(endpoint)
            elif verdict.until_s < self.holds_until_s:
                self.holds_until_s = verdict.until_s

    def note_under_share(self, flow: Node, model: str) -> None:
        """Remember that `flow`, for which a request just came, is under its share."""
        flows = self._under_share.get(model)
        if flows is None:
            flows = self._under_share[model] = {}
        flows[flow] = None
        if len(flows) > FLOWS_UNDER_SHARE_MAX:
            waiting = [node for node in flows if model in node.backlog or node is flow]
            self._under_share[model] = dict.fromkeys(waiting[-FLOWS_UNDER_SHARE_MAX // 2 :])

    def flows_under_share(self, model: str) -> list[Node]:
        """Returns the flows with requests waiting for a model that were under their share when last looked at."""
        flows = self._under_share.get(model)
        return [node for node in flows if not node.capped and model in node.backlog] if flows else []

    def no_longer_under_share(self, flow: Node, model: str) -> None:
        """Forget that `flow` was under its share; its next request will be judged again."""
        self._under_share[model].pop(flow, None)

    def replant(self) -> None:
        """Begin a new tree. The caller inserts waiting and running requests."""
        self.tree = QueueTree()
        self.holds_changed = True
        self._under_share.clear()

    def adopt(self, entries: Iterable[Entry]) -> None:
        """Let the `entries` of a band that is gone wait here, among its own in the order in which all entered."""
        for entry in entries:
            self.push(entry)
        self.entries = dict(sorted(self.entries.items(), key=lambda item: (item[1].queued_since_s, item[0])))

    def by_age(self) -> None:
        """Put the entries in the order in which they began to wait, wherever that was."""
        self.entries = dict(sorted(self.entries.items(), key=lambda item: (item[1].waits_since_s, item[0])))

    def push(self, entry: Entry) -> None:
        """Let an entry wait. `Queues.push` counts it for all bands."""
        self.entries[entry.seq] = entry
        self.bytes += entry.request.body_bytes
        tokens, model = entry.prompt_tokens, entry.model
        self.tokens += tokens
        self.tokens_of[model] = self.tokens_of.get(model, 0) + tokens
        if entry.held:
            self.held[model] = self.held.get(model, 0) + 1
        else:
            self._line_up(entry)

    def let_in(self, entry: Entry) -> None:
        """Let a held `entry` wait in its flow from now on. `Queues.let_in` counts it for all bands."""
        self._count_out(entry.model)
        entry.held = False
        self._line_up(entry)

    def _line_up(self, entry: Entry) -> None:
        size = entry.size_class = _size_class(entry.uncached_tokens)
        self._sizes[size] = self._sizes.get(size, 0) + 1
        self.tree.push(entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry that no longer waits; `entry.state` is already set.

        `Queues.remove` counts it for all bands.
        """
        del self.entries[entry.seq]
        self.bumped.pop(entry.seq, None)
        self.bytes -= entry.request.body_bytes
        tokens, model = entry.prompt_tokens, entry.model
        self.tokens -= tokens
        self.tokens_of[model] -= tokens
        if entry.held:
            self._count_out(model)
        else:
            self._unsize(entry)
            self.tree.remove(entry)
        if model not in self.tree.root.backlog:
            if model not in self.held:
                del self.tokens_of[model]
            self._under_share.pop(model, None)
        elif (light := self._under_share.get(model)) is not None:
            flow = top(entry.node)
            if model not in flow.backlog:
                light.pop(flow, None)

    def models(self) -> list[str]:
        """Returns the models that requests wait for, those of held ones too."""
        return list(self.tokens_of)

    def waiting(self, model: str) -> int:
        """Returns how many requests wait for a model, held ones too."""
        return self.tree.root.backlog.get(model, 0) + self.held.get(model, 0)

    def _count_out(self, model: str) -> None:
        self.held[model] -= 1
        if not self.held[model]:
            del self.held[model]

    def resized(self, entry: Entry) -> None:
        """Note that the uncached part of a waiting prompt changed."""
        if entry.held:
            return
        self._unsize(entry)
        size = entry.size_class = _size_class(entry.uncached_tokens)
        self._sizes[size] = self._sizes.get(size, 0) + 1

    def _unsize(self, entry: Entry) -> None:
        size = entry.size_class
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]

    def prompt_tokens_min(self) -> int:
        """Returns a bound below all waiting prompts, in tokens to compute: a quarter too low at most; 0: none waits."""
        return _size_of(min(self._sizes)) if self._sizes else 0

    def over_bounds(self) -> bool:
        """True if more waits in this band than its own settings allow."""
        settings = self.settings
        return (
            (settings.requests_max is not None and len(self.entries) > settings.requests_max)
            or (settings.bytes_max is not None and self.bytes > settings.bytes_max)
            or (settings.tokens_max is not None and self.tokens > settings.tokens_max)
        )


def _size_class(tokens: int) -> int:
    """Four classes per power of two."""
    shift = max(tokens.bit_length() - 3, 0)
    return (shift << 3) + (tokens >> shift)


def _size_of(size_class: int) -> int:
    """The least number of tokens in a class."""
    return (size_class & 7) << (size_class >> 3)
