"""The interface of a source of endpoints, and its supervision.

A source reports its *complete* set on each possible change. So no change can be lost, duplicated or reordered: an
endpoint in no set is gone, and one in a set exists. A failing source reports nothing, so its last set stays valid; it
is restarted after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from penstock.config.model import EndpointSection
from penstock.config.problems import Refused
from penstock.config.sections.discovery import Template

logger = logging.getLogger(__name__)

PAUSE_S = 0.2
PAUSE_S_MAX = 10.0  # an API server that comes back is asked within this time

Found = Callable[[Sequence[EndpointSection]], None]


class SourceError(Exception):
    """A source can't list its endpoints. The message is for the operator; its last set stays valid."""


class EndpointSource(Protocol):
    """A source of endpoints: a file, a DNS name, a Kubernetes API."""

    @property
    def name(self) -> str:
        """The source's name in the log and on the admin page. No two sources have the same."""

    async def watch(self, found: Found) -> None:
        """Call `found` with the complete set, again whenever it may have changed. Never returns.

        Ends by an exception (`SourceError` for external failures) or by cancellation.
        """


class Registry(Protocol):
    """The receiver of sources' sets, such as the endpoint registry."""

    def ranked(self, sources: Sequence[str], /) -> None:
        """These are all `sources`. If two differ under one name, the first wins."""

    def want(self, source: str, endpoints: Sequence[EndpointSection], /) -> None:
        """From now on `source` wants exactly these `endpoints`."""


class Discovery:
    """Runs all sources, one task each, and starts those again that fail."""

    def __init__(self, sources: Iterable[EndpointSource], registry: Registry) -> None:
        self._sources = {source.name: source for source in sources}
        self._started = False
        self._registry = registry
        registry.ranked(tuple(self._sources))
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start every source."""
        self._started = True
        for source in self._sources.values():
            self._begin(source)

    def use(self, sources: Iterable[EndpointSource], *, kept: Collection[str]) -> None:
        """Run exactly these `sources` from now on.

        Those named in `kept` are unchanged and continue. A source that is gone wants nothing any more.
        """
        before, self._sources = self._sources, {}
        for source in sources:
            self._sources[source.name] = before[source.name] if source.name in kept else source
        for name in before:
            if name not in self._sources or name not in kept:
                self._end(name)
        self._registry.ranked(tuple(self._sources))
        for name, source in self._sources.items():
            if self._started and name not in self._tasks:
                self._begin(source)

    async def close(self) -> None:
        """Stop every source. Their sets stay valid."""
        for name in list(self._tasks):
            self._end(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _begin(self, source: EndpointSource) -> None:
        self._tasks[source.name] = asyncio.get_running_loop().create_task(self._keep(source))

    def _end(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _keep(self, source: EndpointSource) -> None:
        failures = 0
        told = ""
        is_empty = False

        def found(endpoints: Sequence[EndpointSection]) -> None:
            nonlocal failures, told, is_empty
            failures, told = 0, ""
            if not endpoints and not is_empty:  # scaled to zero, or a name or a label that is written otherwise there
                logger.warning("%s: no endpoints; requests wait for one", source.name)
            is_empty = not endpoints
            self._registry.want(source.name, endpoints)

        while True:
            try:
                await source.watch(found)
            except SourceError as error:
                if str(error) != told:
                    logger.warning("%s: %s; keeping its last endpoints", source.name, error)
                told = str(error)
            except Exception:
                logger.exception("%s failed; keeping its last endpoints", source.name)
            failures = min(failures + 1, 16)
            await asyncio.sleep(min(PAUSE_S * 2 ** (failures - 1), PAUSE_S_MAX) * random.uniform(0.5, 1.0))


_OF_ALL = ("engine", "models", "slots", "weight", "api_key", "tls", "labels", "kv_events")


def described(
    template: Template, host: str, port: int, *, name: str | None = None, **more: object
) -> EndpointSection | None:
    """Returns an endpoint that a source found, as if the settings had listed it; None if it can't be one (logged).

    `template` has the common fields of the source; `more` are further fields of the endpoint.
    """
    address = f"[{host}]" if ":" in host else host
    given = {key: getattr(template, key) for key in _OF_ALL}
    try:
        return EndpointSection.model_validate(
            {**given, "url": f"{template.scheme}://{address}:{port}", "name": name or "", **more}
        )
    except (ValueError, Refused) as error:
        logger.warning("%s:%d is not an endpoint: %s", host, port, " ".join(str(error).split())[:300])
        return None
