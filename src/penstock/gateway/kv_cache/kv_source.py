"""KV events of one endpoint: finding its publishers, and the blocks it holds.

`auto` asks the engine: vLLM lists its publishers at `/kv_event_sources`, SGLang at `/server_info`; for other engines
vLLM's documented ports are used. Only ports are taken from the answer, never a host, which is the bound address, not
the reachable one. All ranks are followed together. If one is lost, everything of the endpoint is forgotten (the
scheduler learns it at once) and the stream restarts, after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import zmq.asyncio

from penstock.engines.kv_blocks import RANKS_MAX, Changes, EndpointBlocks
from penstock.engines.kv_events import Event
from penstock.gateway.endpoints.probe import asking
from penstock.gateway.kv_cache.kv_stream import KvStream, Lost, PublisherAddress
from penstock.http.client.pool import Headers, Upstream

logger = logging.getLogger(__name__)

AUTO = "auto"
DEFAULT_PORT = 5557  # by vLLM's documentation, for the first rank; replays one above
PAUSE_S = 0.2
PAUSE_S_MAX = 5.0
STEADY_S = 30.0  # a session that lasted so long was no failure to begin one
ASK_TIMEOUT_S = 2.0


class KvSource:
    """One endpoint's blocks, by its events. `tell` is called with each change of its blocks."""

    def __init__(
        self,
        name: str,
        setting: str,
        upstream: Upstream,
        headers: Headers,
        *,
        url: str,
        context: zmq.asyncio.Context,
        tell: Callable[[Changes], None],
    ) -> None:
        self.name = name
        self.blocks = EndpointBlocks()
        self.listening = False  #: whether its events are heard right now
        self._setting = setting
        self._host = urlsplit(url).hostname or "127.0.0.1"
        self._ask = asking(upstream, headers, timeout_s=ASK_TIMEOUT_S)
        self._context = context
        self._tell = tell
        self._missed = False  # and it was logged

    async def run(self) -> None:
        """Follow it until cancelled."""
        pause_s = PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            heard, began_s = False, loop.time()
            try:
                heard = await self._follow(await self.addresses())
            except Exception:
                logger.exception("KV events of %s failed", self.name)
            if not heard and not self._missed:
                logger.warning("no KV events from %s (%s); using its history", self.name, self._setting)
            self._missed = not heard
            await asyncio.sleep(pause_s)
            pause_s = pause_after(pause_s, loop.time() - began_s)

    async def _follow(self, addresses: Sequence[PublisherAddress]) -> bool:
        """Listen to all ranks until one of them is lost. Whether anybody was there."""
        streams = [KvStream(at, self._context, take=self._take, forget=self._forget) for at in addresses]
        try:
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(stream.follow())
                group.create_task(self._announce(streams))
        except* Lost as lost:
            level = logging.INFO if self.listening else logging.DEBUG
            logger.log(level, "KV events of %s lost: %s", self.name, lost.exceptions[0])
        finally:
            self.listening = False
        return all(stream.connected.is_set() for stream in streams)

    async def _announce(self, streams: Sequence[KvStream]) -> None:
        for stream in streams:
            await stream.connected.wait()
        self.listening = True
        logger.info("following the KV events of %s (ranks: %d)", self.name, len(streams))

    def _take(self, rank: int, events: Sequence[Event]) -> None:
        self._changed(self.blocks.apply(rank, events))

    def _forget(self, rank: int) -> None:
        self._changed(self.blocks.forget(rank))

    def _changed(self, changes: Changes) -> None:
        if changes.cleared or changes.lost or changes.stored or changes.removed:
            self._tell(changes)

    # --- addresses --------------------------------------------------------------------------------------------

    async def addresses(self) -> list[PublisherAddress]:
        told = [
            PublisherAddress(rank, self._at(port), None if replay is None else self._at(replay))
            for rank, port, replay in await self._publishers()
        ]
        if self._setting == AUTO:
            return told or [PublisherAddress(0, self._at(DEFAULT_PORT), self._at(DEFAULT_PORT + 1))]
        if any(address.events == self._setting for address in told):
            return told
        host, _, port = self._setting.rpartition(":")
        return [PublisherAddress(0, self._setting, f"{host}:{int(port) + 1}")]

    def _at(self, port: int) -> str:
        return f"tcp://[{self._host}]:{port}" if ":" in self._host else f"tcp://{self._host}:{port}"

    async def _publishers(self) -> list[tuple[int, int, int | None]]:
        """Returns rank, port and replay port of each publisher, as reported by the engine."""
        for path, read in (("/kv_event_sources", _vllm), ("/server_info", _sglang)):
            if found := read((await self._ask(path)).json()):
                return found[:RANKS_MAX]
        return []


def pause_after(pause_s: float, lasted_s: float) -> float:
    """Returns how long to wait before the session after the next. Each begins with a replay, which has its cost."""
    return PAUSE_S if lasted_s >= STEADY_S else min(2 * pause_s, PAUSE_S_MAX)


def _vllm(told: Any) -> list[tuple[int, int, int | None]]:
    """`{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": …}, "1": …}`, a publisher for each rank."""
    found: list[tuple[int, int, int | None]] = []
    for rank, source in told.items() if isinstance(told, dict) else ():
        port = _port(source.get("endpoint")) if isinstance(source, dict) and str(rank).isdecimal() else None
        if port is not None:
            found.append((int(rank), port, _port(source.get("replay_endpoint"))))
    return found


def _sglang(told: Any) -> list[tuple[int, int, int | None]]:
    """`{"kv_events": {"endpoint_port_base": …, "replay_endpoint_port_base": …, "dp_size": …}}`: base and rank."""
    source = told.get("kv_events") if isinstance(told, dict) else None
    if not isinstance(source, dict):
        return []
    base, replay = _number(source.get("endpoint_port_base")), _number(source.get("replay_endpoint_port_base"))
    if base is None:
        return []
    ranks = source.get("dp_size")
    count = ranks if isinstance(ranks, int) and 0 < ranks <= RANKS_MAX else 1
    return [(rank, base + rank, None if replay is None else replay + rank) for rank in range(count)]


def _port(address: object) -> int | None:
    """Of `tcp://host:port`."""
    port = address.rpartition(":")[2] if isinstance(address, str) and address.startswith("tcp://") else ""
    return _number(int(port)) if port.isdecimal() and len(port) <= 5 else None


def _number(value: object) -> int | None:
    """A port that leaves room for the ranks above it."""
    return value if isinstance(value, int) and 0 < value < 65_536 - RANKS_MAX else None
