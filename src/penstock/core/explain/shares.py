"""Present and recent use: one meter per tenant in a band, one per model.

A meter counts waiting and running requests and sums the charged service, forgetting over a minute: later service
counts for more by a growing factor, the same for all meters, so they compare as they stand; now and then all are
scaled. In a band of which nothing ran for a minute, nobody has got anything.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.core.dispatch.under_share import UnderShare
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Path, QueueTree, top
from penstock.core.queueing.queues import Queues
from penstock.core.values.rows import FlowSnapshot

SHARE_WINDOW_S: Final = 60.0  # long enough for some long answers, short enough to follow a change of weights
SCALE_FOR_S: Final = 0.1  # how long one factor serves: an exponential per request would cost more than all else here
RESCALE_S = 300 * SHARE_WINDOW_S  # e^300 is far from a float's end, and so is a day's service times it
METERS_MAX = 25_000  # tenants are bounded at the door (configured ones and `max_dynamic`); this only makes sure
MODELS_MAX = 1_000
WAITS_KEPT = 256  # per model, for the quantiles of the wait,
WAITS_S = 10.0  # the window of first tokens, which stand beside them
ALONE_SHARE = 0.98  # of its band's service: earlier tenants fade out within some minutes
SHOWN_MAX = 50  # tenants in a snapshot; the others are counted


class Meter:
    """The requests and service of one tenant in one band."""

    __slots__ = ("band", "entries", "got", "part", "path", "running", "tenant")

    def __init__(self, tenant: str, band: int) -> None:
        self.tenant = tenant
        self.band = band
        self.part = ""  # whose part it shares with others; "": it has its own
        self.path: Path = ()  # where its part stands in the band's tree, which knows what it weighs
        self.entries: dict[int, Entry] = {}  # that wait, in order of entering
        self.running = 0
        self.got = 0.0  # service, in the scale of the moment


class ModelMeter:
    """The requests and tokens of one model. Totals only grow: rates are differences between two snapshots."""

    __slots__ = (
        "ended", "name", "output_tokens", "prompt_tokens", "refused", "running", "served_s", "tried",
        "waits_s",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        self.ended = 0  # after a dispatch
        self.served_s = 0.0  # that these were at an endpoint, all together
        self.refused = 0  # rejected or evicted
        self.tried = 0  # sent although they were forecast to miss their deadlines
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.waits_s: deque[tuple[float, float]] = deque(maxlen=WAITS_KEPT)  # latest dispatches: when, after how long

    @property
    def real(self) -> bool:
        """Whether an engine has answered for the model: otherwise its name may be a caller's mistake."""
        return self.prompt_tokens + self.output_tokens > 0

    def wait_quantiles_s(self, now: float) -> tuple[float, float] | None:
        """Returns p50 and p99 of the waits that ended with a dispatch in the last seconds; None if there were none."""
        ordered = sorted([waited_s for at_s, waited_s in self.waits_s if now - at_s <= WAITS_S])
        return (ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]) if ordered else None


class Shares:
    """All meters."""

    def __init__(self, queues: Queues, under_share: UnderShare, *, tenant_level: int | None) -> None:
        self._queues = queues
        self._under_share = under_share
        self._depth = 0 if tenant_level is None else tenant_level + 1
        self._meters: dict[tuple[int, str], Meter] = {}
        self._models: dict[str, ModelMeter] = {}
        self.waiting: list[dict[Meter, None]] = [{} for _ in queues.bands]  #: by band, those with requests that wait
        self._got = [0.0] * len(queues.bands)
        self.served_s = [-math.inf] * len(queues.bands)  #: by band, when an answer last ended
        self._epoch_s = self._scaled_s = -math.inf
        self._scale = 1.0

    def meter(self, entry: Entry) -> Meter:
        """Returns the meter of a request's tenant in its band."""
        request = entry.request
        key = (request.band, request.tenant)
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= METERS_MAX:
                self._forget_some()
            meter = self._meters[key] = Meter(request.tenant, request.band)
        meter.part = request.account
        meter.path = request.flow[: self._depth]
        return meter

    def account_of(self, tenant: str) -> str | None:
        """Returns the name for the limits of a tenant that had requests lately; None if it had none."""
        for band in range(len(self._got)):
            if (meter := self._meters.get((band, tenant))) is not None:
                return meter.part or tenant
        return None

    def model(self, name: str) -> ModelMeter:
        """Returns the meter of a model. Beyond `MODELS_MAX` names it counts and is not kept.

        Names that callers made up make room: those of which nothing runs, and nothing was ever answered.
        """
        model = self._models.get(name)
        if model is None:
            model = ModelMeter(name)
            if len(self._models) >= MODELS_MAX:
                self._models = {known: meter for known, meter in self._models.items() if meter.running or meter.real}
            if len(self._models) < MODELS_MAX:
                self._models[name] = model
        return model

    def models(self) -> dict[str, ModelMeter]:
        """Returns the meters of all models that are kept, by name."""
        return self._models

    def add(self, meter: Meter, service: float, now: float) -> None:
        """Count `service` that the tenant of `meter` gets now."""
        if now - self._scaled_s > SCALE_FOR_S:
            if now - self._epoch_s > RESCALE_S:
                self._rescale(now)
            self._scaled_s = now
            self._scale = math.exp((now - self._epoch_s) / SHARE_WINDOW_S)
        meter.got += service * self._scale
        self._got[meter.band] += service * self._scale

    def correct(self, meter: Meter, service: float, then: float) -> None:
        """Add to the service that was counted at `then`, or take from it if negative."""
        scaled = service * math.exp((then - self._epoch_s) / SHARE_WINDOW_S)
        meter.got += scaled
        self._got[meter.band] += scaled

    def rearranged(self, heirs: Sequence[int | None]) -> None:
        """Give bands other ranks: `heirs` has, for each present band, its old rank, or None.

        Nothing waits at this moment.
        """
        rank = {old: new for new, old in enumerate(heirs) if old is not None}
        meters = [meter for meter in self._meters.values() if meter.band in rank]
        for meter in meters:
            meter.band = rank[meter.band]
        self._meters = {(meter.band, meter.tenant): meter for meter in meters}
        self._got = [0.0 if old is None else self._got[old] for old in heirs]
        self.served_s = [-math.inf if old is None else self.served_s[old] for old in heirs]
        self.waiting = [{} for _ in heirs]

    def shares_of_bands(self, now: float) -> list[float]:
        """Returns the parts of all service over the last minute that went to each band."""
        lately = self._lately(now)
        total = sum(lately)
        return [got / total if total > 0 else 0.0 for got in lately]

    def _lately(self, now: float) -> list[float]:
        """Returns the service of each band over the last minute, in the scale of the moment."""
        ran = [
            band.tree.root.in_flight > 0 or now - served_s <= SHARE_WINDOW_S
            for band, served_s in zip(self._queues.bands, self.served_s, strict=True)
        ]
        return [max(got, 0.0) if it_ran else 0.0 for got, it_ran in zip(self._got, ran, strict=True)]

    def flows(self, names: list[str], now: float) -> tuple[list[FlowSnapshot], int]:
        """Returns the tenants with the most waiting, then those that got most; and how many more are active."""
        waiting = [meter for band in self.waiting for meter in band]
        shown = waiting
        if len(waiting) > SHOWN_MAX:
            longest = heapq.nlargest(SHOWN_MAX, [len(meter.entries) for meter in waiting])[-1]
            shown = [meter for meter in waiting if len(meter.entries) >= longest]
        shown = sorted(shown, key=_backlog, reverse=True)[:SHOWN_MAX]
        active, lately = len(waiting), self._lately(now)
        others: list[Meter] = []
        if active < SHOWN_MAX:
            least = [got * 1e-3 / SHOWN_MAX for got in lately]
            others = [m for m in self._meters.values() if not m.entries and (m.running or m.got > least[m.band] > 0)]
            active += len(others)
            shown += heapq.nlargest(SHOWN_MAX - len(shown), others, key=_got)
        fair = self._fair_units(others, lately)
        sharing = Counter([(meter.band, meter.part) for meter in waiting if meter.part])
        rows = []
        for meter in shown:
            fair_unit = fair[meter.band] / max(1, sharing[meter.band, meter.part])
            rows.append(self._flow(meter, names[meter.band], fair_unit, lately, now))
        return rows, active - len(shown)

    def _flow(self, meter: Meter, band: str, fair_unit: float, lately: list[float], now: float) -> FlowSnapshot:
        oldest = next(iter(meter.entries.values()), None)
        weight = self._queues.bands[meter.band].tree.weight(meter.path)
        total, all_got = lately[meter.band], sum(lately)
        others_wait = len(self.waiting[meter.band]) > bool(meter.entries)
        models = Counter([entry.model for entry in meter.entries.values()])
        return FlowSnapshot(
            tenant=meter.tenant,
            band=band,
            weight=weight,
            waiting=len(meter.entries),
            running=meter.running,
            oldest_wait_s=now - oldest.waits_since_s if oldest is not None else 0.0,
            share=min(max(meter.got / total, 0.0), 1.0) if total > 0 else 0.0,
            share_of_all=min(max(meter.got / all_got, 0.0), 1.0) if total > 0 else 0.0,
            is_alone=not others_wait and (total <= 0 or meter.got >= ALONE_SHARE * total),
            fair_share=min(fair_unit * weight, 1.0) if meter.entries else None,
            models=models,
            asks_for_more=oldest is not None and self._under_share.asks_for_more(top(oldest.node), models, now),
        )

    def _fair_units(self, others: list[Meter], lately: list[float]) -> list[float]:
        """Per band, the fair share of a weight of 1: service left by modest tenants, by weight among the rest."""
        units = []
        for band, waiting in enumerate(self.waiting):
            tree = self._queues.bands[band].tree
            parts: set[str] = set()  # that counted
            weight = _weight(tree, waiting, parts)
            running = [meter for meter in others if meter.band == band and meter.running]
            all_weight = weight + _weight(tree, running, parts)
            got, total = sum([meter.got for meter in waiting]), lately[band]
            share = got / total / weight if total > 0 and weight > 0 else 0.0
            units.append(max(share, 1.0 / all_weight) if weight > 0 else 0.0)
        return units

    def _rescale(self, now: float) -> None:
        factor = math.exp((self._epoch_s - now) / SHARE_WINDOW_S)
        for meter in self._meters.values():
            meter.got *= factor
        self._got = [got * factor for got in self._got]
        self._epoch_s = now

    def _forget_some(self) -> None:
        """Drop idle meters; a tenth at least, so that this is rare."""
        idle = [key for key, m in self._meters.items() if not m.entries and not m.running]
        idle.sort(key=lambda key: self._meters[key].got)
        for key in idle[: METERS_MAX // 10]:
            del self._meters[key]


def oldest_s(entries: Iterable[Entry], now: float) -> float:
    """Returns how long the longest of `entries` has waited; 0 if there are none."""
    return max((now - entry.waits_since_s for entry in entries), default=0.0)


def _weight(tree: QueueTree, meters: Iterable[Meter], parts: set[str]) -> float:
    """The weight of some meters together. A shared part counts once; those in `parts` have counted already."""
    total = 0.0
    for meter in meters:
        if meter.part:
            if meter.part in parts:
                continue
            parts.add(meter.part)
        total += tree.weight(meter.path)
    return total


def _backlog(meter: Meter) -> tuple[int, float]:
    return len(meter.entries), meter.got


def _got(meter: Meter) -> float:
    return meter.got
