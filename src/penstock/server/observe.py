"""What do the engines say of themselves: probes, model lists and gauges, asked for again and again.

Two loops per endpoint, so that a metrics page which hangs never delays the probe that tells whether the engine is
alive. A page that is slow, dead or nonsense is reported as "no reading": it neither opens nor closes anything by
itself (DESIGN §4.4). Gauges are read every `interval`, and every `fast_interval` while requests wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from penstock.engines import vllm
from penstock.server.driver import Driver
from penstock.server.relay import Target
from penstock.server.upstream import UpstreamErrorKind, UpstreamException

logger = logging.getLogger(__name__)

METRICS_BYTES_MAX = 4 << 20
MODELS_BYTES_MAX = 4 << 20
MODELS_MAX = 10_000
DOWN_PROBE_S = 0.5  # a dead endpoint is asked more often than a live one: its return is worth a cheap connect


class ObserveSettings(msgspec.Struct, frozen=True):
    """How often, and how long to wait for an answer (seconds)."""

    interval_s: float = 1.0
    fast_interval_s: float = 0.5
    probe_interval_s: float = 5.0
    timeout_s: float = 2.0


class Model(msgspec.Struct):
    """One entry of an engine's model list, as it came."""

    id: str
    fields: dict[str, object]


class Observer:
    """Asks one endpoint, and tells the scheduler."""

    def __init__(
        self,
        name: str,
        target: Target,
        driver: Driver,
        settings: ObserveSettings,
        *,
        reads_metrics: bool,
        asks_models: bool,
        on_models: Callable[[str, list[Model]], None],
    ) -> None:
        self._name = name
        self._target = target
        self._driver = driver
        self._settings = settings
        self._reads_metrics = reads_metrics
        self._asks_models = asks_models
        self._on_models = on_models
        self._up = True
        self._poked = asyncio.Event()
        self._told: list[str] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forever(self._probe, self._probe_pause))
            if self._reads_metrics:
                group.create_task(self._forever(self._read_gauges, self._gauges_pause))

    def poke(self) -> None:
        """A request found nobody there: probe it now, and then often until it is back."""
        self._poked.set()

    async def _forever(self, ask: Callable[[], Awaitable[None]], pause: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await ask()
            except UpstreamException:
                logger.debug("%s did not answer %s", self._name, ask)
            except Exception:
                logger.exception("observing %s failed", self._name)
            await pause()

    # --- alive, and serving what ------------------------------------------------------------------------------

    async def _probe_pause(self) -> None:
        pause_s = self._settings.probe_interval_s
        if not self._up or (self._asks_models and self._told is None):
            pause_s = min(DOWN_PROBE_S, pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._poked.wait()
        self._poked.clear()

    async def _probe(self) -> None:
        up = await self._alive()
        if up and (self._asks_models or self._told is None):
            await self._ask_models()
        if up != self._up:
            self._up = up
            logger.info("endpoint %s is %s", self._name, "up" if up else "down")
        scheduler, now = self._driver.scheduler, self._driver.now()
        tell = scheduler.endpoint_up if up else scheduler.endpoint_down
        self._driver.tell(tell(self._name, now=now))

    async def _alive(self) -> bool:
        """Whether anything answers that is no error. A path that is unknown there is an answer too."""
        try:
            answer = await self._target.upstream.fetch(
                "GET", "/health", headers=self._headers(), timeout_s=self._settings.timeout_s
            )
        except UpstreamException as failure:
            # Slow is not dead: an engine busy with a long step answers late. Its requests' own time-outs judge it.
            return self._up and failure.error.kind in (
                UpstreamErrorKind.FIRST_BYTE_TIMEOUT,
                UpstreamErrorKind.IDLE_TIMEOUT,
            )
        return answer.status < 500

    async def _ask_models(self) -> None:
        try:
            answer = await self._target.upstream.fetch(
                "GET",
                "/v1/models",
                headers=self._headers(),
                timeout_s=self._settings.timeout_s,
                bytes_max=MODELS_BYTES_MAX,
            )
        except UpstreamException:
            return
        models = _models(answer.body) if answer.status == 200 else None
        now = self._driver.now()
        scheduler = self._driver.scheduler
        if models is not None:
            names = [model.id for model in models]
            self._on_models(self._name, models)
            if self._asks_models and names != self._told:
                self._driver.tell(scheduler.endpoint_changed(self._name, models=names, now=now))
            self._told = names
        elif answer.status in (404, 405, 501) and self._asks_models and self._told is None:
            logger.warning("endpoint %s does not list its models: it is taken to serve any", self._name)
            self._told = []
            self._driver.tell(scheduler.endpoint_changed(self._name, tells_models=False, now=now))

    # --- how loaded -------------------------------------------------------------------------------------------

    async def _gauges_pause(self) -> None:
        wanted = self._driver.scheduler.wanted(self._name)
        await asyncio.sleep(self._settings.fast_interval_s if wanted else self._settings.interval_s)

    async def _read_gauges(self) -> None:
        asked_s = self._driver.now()
        reading = None
        try:
            answer = await self._target.upstream.fetch(
                "GET",
                "/metrics",
                headers=self._headers(),
                timeout_s=self._settings.timeout_s,
                bytes_max=METRICS_BYTES_MAX,
            )
            if answer.status == 200:
                reading = vllm.observation(answer.body, asked_s=asked_s)
                self._target.takes_priority |= reading is not None  # it speaks vLLM, so lower goes first
        except UpstreamException as failure:
            logger.debug("no metrics from %s: %s", self._name, failure)
        self._driver.tell(self._driver.scheduler.observed(self._name, reading, now=self._driver.now()))

    def _headers(self) -> list[tuple[bytes, bytes]]:
        api_key = self._target.api_key
        return [(b"authorization", b"Bearer " + api_key.encode())] if api_key else []


def _models(body: bytes) -> list[Model] | None:
    """The entries of a model list, None when it is not one."""
    try:
        page = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    data = page.get("data") if isinstance(page, dict) else None
    if not isinstance(data, list):
        return None
    found: dict[str, Model] = {}
    for item in data[:MODELS_MAX]:
        if isinstance(item, dict) and isinstance(item.get("id"), str) and item["id"]:
            found[item["id"]] = Model(item["id"], item)
    return list(found.values())
