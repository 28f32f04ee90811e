"""The names that production-stack's dashboards, KEDA and prom-adapter read of its router (`metrics.aliases`).

Only these: engines export the engines' own. `server` is an endpoint's URL, as there. The load of the machine comes from
/proc, if there is one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock import clock
from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.catalogue import AWAY
from penstock.gateway.telemetry.exposition import Levels, columns, level
from penstock.gateway.telemetry.series import OTHER

WINDOW_S = 60  # of `vllm:current_qps`: their chart's `requestStatsWindow`
MODELS_MAX = 500  # names with a series of their own; callers choose them, so further ones are `other`
_OUT_OF_USE = (*AWAY, "refused_key", "ejected", "draining")


class LastMinute:
    """How often something happened in each of the last sixty seconds."""

    __slots__ = ("_counts", "_second")

    def __init__(self) -> None:
        self._counts = [0] * WINDOW_S
        self._second = 0

    def note(self, now: float, times: int = 1) -> None:
        """It happened."""
        self._forget(now)
        self._counts[self._second % WINDOW_S] += times

    def per_s(self, now: float) -> float:
        """The rate over the whole window."""
        self._forget(now)
        return sum(self._counts) / WINDOW_S

    def _forget(self, now: float) -> None:
        second = int(now)
        for gone in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._counts[gone % WINDOW_S] = 0
        self._second = second


class _Endpoint:
    """What is counted of one endpoint."""

    __slots__ = ("cached_tokens", "name", "prompt_tokens", "sent", "sent_total", "url")

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.sent = LastMinute()
        self.sent_total = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0


class ProductionStack:
    """Counts and prints those series."""

    def __init__(self, snapshot: Callable[[], Snapshot], *, now: Callable[[], float] = clock.now) -> None:
        self._snapshot = snapshot
        self._now = now
        self._endpoints: dict[str, _Endpoint] = {}
        self._came: dict[str, int] = {}  # by model
        self._machine = Machine()

    def endpoint_added(self, name: str, url: str) -> None:
        """It has series from now on."""
        self._endpoints[name] = _Endpoint(name, url)

    def endpoint_removed(self, name: str) -> None:
        """Its series end."""
        self._endpoints.pop(name, None)

    def model_known(self, name: str) -> None:
        """A model that engines serve has its series before anybody asks for it."""
        self._came.setdefault(name, 0)

    def arrived(self, model: str) -> None:
        """A request for a model was let into the queue, whether or not anybody serves it now: scalers wake by it."""
        if model not in self._came and len(self._came) >= MODELS_MAX:
            model = OTHER
        self._came[model] = self._came.get(model, 0) + 1

    def sent(self, endpoint: str, requests: int = 1) -> None:
        """So many requests were sent."""
        if (its := self._endpoints.get(endpoint)) is not None:
            its.sent.note(self._now(), requests)
            its.sent_total += requests

    def used(self, endpoint: str, prompt_tokens: int, cached_tokens: int) -> None:
        """An engine reported the usage of an answer."""
        if (its := self._endpoints.get(endpoint)) is not None:
            its.prompt_tokens += prompt_tokens
            its.cached_tokens += cached_tokens

    def values(self) -> Iterator[tuple[tuple[str, ...], list[float]]]:
        """The counts, by kind and name; for another process."""
        for model, count in self._came.items():
            yield ("model", model), [count]
        for name, its in self._endpoints.items():
            yield ("endpoint", name), [its.sent_total, its.prompt_tokens, its.cached_tokens]

    def add(self, labels: tuple[str, ...], values: Sequence[float]) -> None:
        """Add another process's counts."""
        match labels, [int(value) for value in values]:
            case ("model", model), [count]:
                self._came[model] = self._came.get(model, 0) + count
            case ("endpoint", name), [sent, prompt_tokens, cached_tokens] if name in self._endpoints:
                its = self._endpoints[name]
                its.sent.note(self._now(), sent)
                its.sent_total += sent
                its.prompt_tokens += prompt_tokens
                its.cached_tokens += cached_tokens

    def lines(self) -> Iterator[str]:
        """For `/metrics`."""
        now = self._now()
        well = {e.name for e in self._snapshot().endpoints if e.state not in _OUT_OF_USE}
        of_engines: list[tuple[str, str, Callable[[_Endpoint], float]]] = [
            ("healthy_pods_total", "1 while an engine may be used.", lambda its: its.name in well),
            ("current_qps", "Requests per second, of the last minute.", lambda its: its.sent.per_s(now)),
            ("gpu_prefix_cache_hits_total", "Prompt tokens from its cache, by answers.", lambda its: its.cached_tokens),
            ("gpu_prefix_cache_queries_total", "Prompt tokens, by answers.", lambda its: its.prompt_tokens),
        ]
        engines = self._endpoints.values()
        for family in columns("vllm:", "server", of_engines, lambda: ((e.url, e) for e in engines), "gauge"):
            yield from family.lines()
        came = [((model,), count) for model, count in self._came.items()]
        text = "Requests that came, also while no engine is there."
        yield from Levels("vllm:num_incoming_requests_total", text, ["model"], lambda: came).lines()
        for name, percent in self._machine.usage():
            yield from level(f"router_{name}_usage_percent", "Of this machine or container.", percent)


class Machine:
    """The load of this machine, as far as known."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._busy = self._whole = 0.0

    def usage(self) -> Iterator[tuple[str, float]]:
        """Percent of each thing. Of the CPUs: since this was last asked."""
        try:
            ticks = [float(word) for word in (self._proc / "stat").read_text().splitlines()[0].split()[1:9]]
            lines = [line.split() for line in (self._proc / "meminfo").read_text().splitlines()]
            kib = {words[0]: float(words[1]) for words in lines if len(words) > 1}
            whole, idle = sum(ticks), ticks[3] + ticks[4]
            passed, busy = whole - self._whole, whole - idle - self._busy
            self._whole, self._busy = whole, whole - idle
            yield "cpu", 100.0 * busy / passed if passed > 0 else 0.0
            yield "memory", 100.0 * (1.0 - kib["MemAvailable:"] / kib["MemTotal:"])
        except (OSError, ValueError, LookupError):
            pass  # another system: no series is better than a wrong one
        disk = shutil.disk_usage("/")
        yield "disk", 100.0 * disk.used / (disk.used + disk.free)
