"""What do batches add to `/metrics`? Series with bounded labels, read from the runner and the open batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.batch.manager import Manager
from penstock.batch.runner import Runner
from penstock.batch.states import OPEN
from penstock.batch.store.thread import StoreThread


class BatchMetrics(Collector):
    """Collects all series of batches. Each exists from the start, with value 0."""

    def __init__(self, manager: Manager, runner: Runner, store: StoreThread) -> None:
        self._manager = manager
        self._runner = runner
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        manager, runner = self._manager, self._runner
        up = self._store.trouble is None
        yield GaugeMetricFamily("penstock_batch_store_up", "1 where the store of files and batches works.", float(up))
        items = CounterMetricFamily("penstock_batch_items", "Items of batches that ended here.", labels=["outcome"])
        for outcome, count in (("completed", runner.completed), ("failed", runner.failed), ("lost", runner.lost)):
            items.add_metric([outcome], count)
        yield items
        yield CounterMetricFamily("penstock_batch_retries", "Items that were given back to run again.", runner.retried)
        held = GaugeMetricFamily("penstock_batch_held_items", "Items that this gateway holds.", labels=["state"])
        for state, count in (
            ("ready", runner.ready),
            ("waiting", runner.waiting),
            ("running", runner.running),
            ("writing", runner.held - runner.ready - runner.waiting - runner.running),
        ):
            held.add_metric([state], count)
        yield held
        open_batches = GaugeMetricFamily("penstock_batch_open", "Batches that have not ended.", labels=["status"])
        counts = Counter(one.status for one in manager.outlook)
        for status in OPEN:
            open_batches.add_metric([str(status)], counts[status])
        yield open_batches
        left = sum(one.total - one.completed - one.failed for one in manager.outlook)
        yield GaugeMetricFamily("penstock_batch_left_items", "Items of open batches that have not ended.", left)
        late = sum(one.misses_window for one in manager.outlook)
        yield GaugeMetricFamily("penstock_batch_misses_window", "Open batches that will miss their window.", late)
