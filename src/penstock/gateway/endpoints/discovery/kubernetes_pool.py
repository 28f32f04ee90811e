"""An InferencePool (inference.networking.k8s.io/v1): which pods does it select, and what do its rules say?

The pool names labels and up to eight target ports; each ready pod stands for one endpoint per port.
InferenceObjectives and InferenceModelRewrites of the pool are followed beside it, in both of their API groups: their
faults and their absence never affect the endpoints. A pool that can't be used changes nothing, and one that was
deleted has no endpoints.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable

from penstock.config.sections.discovery import Kubernetes
from penstock.gateway.endpoints.discovery.base import PAUSE_S_MAX, Found, SourceError
from penstock.gateway.endpoints.discovery.kubernetes import pods_path, unique
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from penstock.gateway.endpoints.discovery.kubernetes_cache import T
from penstock.gateway.endpoints.discovery.kubernetes_follower import MissingError, ObjectFollower, connect
from penstock.gateway.endpoints.discovery.kubernetes_objects import Meta, Pod
from penstock.gateway.endpoints.discovery.kubernetes_pool_objects import (
    POOL_GROUP,
    RULE_GROUPS,
    Custom,
    ObjectiveSpec,
    PoolSpec,
    RewriteSpec,
    Specs,
    priorities,
    rewrites,
)
from penstock.gateway.endpoints.pool_rules import PoolRules
from penstock.http.client.pool import Upstream, UpstreamException

logger = logging.getLogger(__name__)

IMPORT_TIMEOUT_S = 5.0
MISSING_PAUSE_S = 30.0  # between two looks for a kind of object whose definition is not installed

Tell = Callable[[str, PoolRules], None]


class PoolSource:
    """The endpoints of one InferencePool. `tell` gets its name and rules on each change."""

    def __init__(self, settings: Kubernetes, access: Access, tell: Tell) -> None:
        assert settings.pool is not None
        self.pool = settings.pool
        self.name = f"kubernetes {access.namespace} pool {settings.pool}"
        self.settings = settings
        self.access = access
        self._tell = tell
        self.pools = Specs("InferencePool", PoolSpec)
        self._objectives = {group: Specs("InferenceObjective", ObjectiveSpec) for group in RULE_GROUPS}
        self._rewrites = {group: Specs("InferenceModelRewrite", RewriteSpec) for group in RULE_GROUPS}
        self._priorities: dict[str, dict[str, int]] = {}
        self._rules: dict[str, list[tuple[Meta, RewriteSpec]]] = {}

    async def watch(self, found: Found) -> None:
        upstream = connect(self.access)
        try:
            await _PoolWatch(self, upstream, found).run()
        finally:
            upstream.close()

    def path(self, group: str, version: str, plural: str) -> str:
        return f"/apis/{group}/{version}/namespaces/{self.access.namespace}/{plural}"

    def rules(self, group: str) -> tuple[tuple[str, Callable[[Iterable[Custom]], None]], ...]:
        """Returns the kinds of rules in a group of the API, and what takes all objects of each."""
        return (
            ("inferenceobjectives", lambda objects: self._take_objectives(group, objects)),
            ("inferencemodelrewrites", lambda objects: self._take_rewrites(group, objects)),
        )

    def _take_objectives(self, group: str, objects: Iterable[Custom]) -> None:
        self._priorities[group] = priorities(self._objectives[group].read(objects), self.pool)
        self._report()

    def _take_rewrites(self, group: str, objects: Iterable[Custom]) -> None:
        self._rules[group] = self._rewrites[group].read(objects)
        self._report()

    def _report(self) -> None:
        named: dict[str, int] = {}
        for group in reversed(RULE_GROUPS):
            named |= self._priorities.get(group, {})
        rules = [rule for group in self._rules.values() for rule in group]
        self._tell(self.name, PoolRules(named, tuple(rewrites(rules, self.pool))))


class _PoolWatch:
    """One connection's life: the pool, its pods, and its rules."""

    def __init__(self, source: PoolSource, upstream: Upstream, found: Found) -> None:
        self._source = source
        self._upstream = upstream
        self._found = found
        self._read: PoolSpec | None = None
        self._spec: PoolSpec | None = None  # the last one that is usable
        self._pods: Iterable[Pod] | None = None  # None: not listed yet
        self._pods_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Follow until the pool or its pods can't be followed any more. Raises `SourceError`."""
        source = self._source
        pools = self._follower(
            source.path(POOL_GROUP, "v1", "inferencepools"), {"fieldSelector": f"metadata.name={source.pool}"}, Custom
        )
        self._begin(pools.follow(self._take_pool))
        for group in RULE_GROUPS:
            for plural, take in source.rules(group):
                self._begin(self._follow_rules(source.path(group, "v1alpha2", plural), take))
        try:
            await self._failed
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _follower(self, path: str, select: dict[str, str], kind: type[T]) -> ObjectFollower[T]:
        return ObjectFollower(self._upstream, self._source.access, path, select=select, kind=kind)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    # --- the pool -------------------------------------------------------------------------------------------------

    def _take_pool(self, objects: Iterable[Custom]) -> None:
        listed = [found for found in objects if found.metadata.deletion_timestamp is None]
        specs = [spec for _, spec in self._source.pools.read(listed)]
        if not listed:
            self._no_pool()
        elif specs and specs[0] != self._read:  # gateways write a pool's status often
            self._read = specs[0]
            self._use(specs[0])

    def _no_pool(self) -> None:
        self._read = self._spec = None
        self._forget_pods()
        self._begin(self._say_why())
        self._found([])

    async def _say_why(self) -> None:
        """Log that there is no such pool; one of another cluster is not followed."""
        source = self._source
        path = source.path("inference.networking.x-k8s.io", "v1alpha1", f"inferencepoolimports/{source.pool}")
        imported = False
        try:
            headers = await source.access.headers()
            answer = await self._upstream.fetch("GET", path, headers=headers, timeout_s=IMPORT_TIMEOUT_S)
            imported = answer.status == 200
        except (UpstreamException, SourceError):
            pass  # what the log says then is true all the same
        if imported:
            logger.warning(
                "%s: %s is an InferencePoolImport, a pool of another cluster, which is not followed: "
                "send its requests to a gateway there",
                *(source.name, source.pool),
            )
        else:
            logger.warning("%s: there is no InferencePool %s", source.name, source.pool)

    def _use(self, spec: PoolSpec) -> None:
        if (why := spec.why_unusable()) is not None:
            logger.warning("%s can't be used: %s; its last endpoints stay", self._source.name, why)
            return
        if spec.app_protocol not in (None, "http"):
            logger.warning(
                "%s: its engines take %s; Penstock itself polls and proxies with HTTP/1.1",
                *(self._source.name, spec.app_protocol),
            )
        before, self._spec = self._spec, spec
        if before is None or before.labels != spec.labels:
            self._forget_pods()
            path = pods_path(self._source.access.namespace)
            pods = self._follower(path, {"labelSelector": spec.labels}, Pod)
            self._pods_task = self._begin(pods.follow(self._take_pods))
        elif self._pods is not None:
            self._take_pods(self._pods)

    def _forget_pods(self) -> None:
        self._pods = None
        if self._pods_task is not None:
            self._pods_task.cancel()
            self._pods_task = None

    def _take_pods(self, pods: Iterable[Pod]) -> None:
        self._pods = pods
        if self._spec is not None:
            ports, settings = self._spec.ports, self._source.settings
            self._found(unique(endpoint for pod in pods for endpoint in pod.at(ports, settings)))

    # --- its rules ------------------------------------------------------------------------------------------------

    async def _follow_rules(self, path: str, take: Callable[[Iterable[Custom]], None]) -> None:
        """Follow one kind of object for ever. While its kind is not known there, there are none of it."""
        told = ""

        def taken(objects: Iterable[Custom]) -> None:
            nonlocal told
            told = ""
            take(objects)

        while True:
            pause_s = PAUSE_S_MAX
            try:
                await self._follower(path, {}, Custom).follow(taken)
            except MissingError:
                take([])
                pause_s = MISSING_PAUSE_S
            except SourceError as error:
                if str(error) != told:
                    logger.warning("%s: %s; its objects read before stay", self._source.name, error)
                told = str(error)
            await asyncio.sleep(pause_s)
