"""One priority band: its queue, and the endpoints known to be open to it.

Bands are strict: a band is asked only when those above it can send nothing, except for the share of the service that a
lower band may be promised (`min_share`). Asking every endpoint at every event would make each decision cost
O(endpoints), so a band remembers answers: an endpoint found closed is not asked again until something happened to it
(`touch`), one found open stays so until it is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, QueueTree, top
from penstock.core.values.settings import BandSettings

if TYPE_CHECKING:
    from penstock.core.values.catalogue import Cause

FLOWS_UNDER_SHARE_MAX = 64  # remembered per model; those beyond wait for their turn in the fair order


class Band:
    """The waiting requests of one band."""

    def __init__(self, settings: BandSettings, rank: int) -> None:
        self.settings = settings
        self.rank = rank
        self.tree = QueueTree()
        self.entries: dict[int, Entry] = {}  # by arrival number, in order of entering
        self.bytes = 0
        self.tokens = 0
        self.tokens_of: dict[str, int] = {}  # per model
        self._under_share: dict[str, dict[Node, None]] = {}  # by model: when their last request came
        self._sizes: dict[int, int] = {}  # how many wait, by size class of their prompts
        self.credit = 0.0  # service promised by `min_share` and not yet given
        self.open: dict[Endpoint, float] = {}  # with the slots each had free when it was found open
        self.free_slots = 0.0  # the sum of these
        self.unchecked: dict[Endpoint, None] = {}
        self.bumped: dict[int, Entry] = {}  # requests that operators bumped, by arrival number, in that order
        self.closed: dict[Endpoint, Cause] = {}  # why each was closed when it was last found so
        self.away: dict[Endpoint, None] = {}  # those that take no request at all
        self.holds_changed = False  # perhaps: it is to be looked at again which models are held

    def touch(self, endpoint: Endpoint) -> None:
        """Ask again whether the endpoint is open, because something happened to it."""
        free = self.open.pop(endpoint, None)
        if free is not None:
            self.free_slots = self.free_slots - free if self.open else 0.0
        self.unchecked[endpoint] = None

    def forget(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that was removed."""
        self.touch(endpoint)
        del self.unchecked[endpoint]
        self.closed.pop(endpoint, None)
        self.away.pop(endpoint, None)

    def opened(self, endpoint: Endpoint, free_slots: float) -> None:
        """Remember that the endpoint is open, with so many `free_slots`, until it is touched."""
        self.open[endpoint] = free_slots
        self.closed.pop(endpoint, None)
        self.free_slots += free_slots

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
        self._unsize(entry)
        self.tree.remove(entry)
        if model not in self.tree.root.backlog:
            del self.tokens_of[model]
            self._under_share.pop(model, None)
        elif (light := self._under_share.get(model)) is not None:
            flow = top(entry.node)
            if model not in flow.backlog:
                light.pop(flow, None)

    def resized(self, entry: Entry) -> None:
        """Note that the uncached part of a waiting prompt changed."""
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
            (settings.requests_max is not None and self.tree.waiting > settings.requests_max)
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
