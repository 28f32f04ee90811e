"""Metrics of batches. Series with bounded labels, read from the runner and the open batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.batch.manager import Manager
from penstock.batch.runner import Runner
from penstock.batch.states import OPEN
from penstock.batch.store.thread import StoreThread
from penstock.gateway.telemetry.exposition import Levels, level


class BatchMetrics:
    """All series of batches. Each exists from the start, with value 0."""

    def __init__(self, manager: Manager, runner: Runner, store: StoreThread) -> None:
        self._manager = manager
        self._runner = runner
        self._store = store

    def lines(self) -> Iterator[str]:
        runner, outlook = self._runner, self._manager.outlook
        held = {"ready": runner.ready, "waiting": runner.waiting, "running": runner.running}
        held["writing"] = runner.held - sum(held.values())
        ended = {"completed": runner.completed, "failed": runner.failed, "lost": runner.lost}
        counts = Counter(one.status for one in outlook)
        is_open = {str(status): counts[status] for status in OPEN}
        left = sum(one.total - one.completed - one.failed for one in outlook)
        late = sum(one.misses_window for one in outlook)
        up = float(self._store.trouble is None)
        yield from level("penstock_batch_store_up", "1 while the store of files and batches works.", up)
        yield from _by("items_total", "Items of batches that ended here.", "outcome", ended)
        yield from level("penstock_batch_retries_total", "Items that were given back to run again.", runner.retried)
        yield from _by("held_items", "Items that this gateway holds.", "state", held)
        yield from _by("open", "Batches that have not ended.", "status", is_open)
        yield from level("penstock_batch_left_items", "Items of open batches that have not ended.", left)
        yield from level("penstock_batch_misses_window", "Open batches that will miss their window.", late)


def _by(name: str, text: str, label: str, values: dict[str, int]) -> Iterator[str]:
    rows = [((key,), float(value)) for key, value in values.items()]
    return Levels(f"penstock_batch_{name}", text, [label], lambda: rows).lines()
