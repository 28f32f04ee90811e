"""Which endpoints are there now? The only place that adds, changes and removes endpoints at runtime.

Every origin of endpoints (the settings file, each discovery, the operator) is a *source*. A source reports its complete
desired set on each change; there are no "added" and "removed" messages to be lost, duplicated or reordered. The sets
are merged by name: first the operator's, then the file's, then the discoveries' in the order of their settings. The
result is compared with the current set.

An endpoint that no source wants any longer is drained: it gets nothing new, its requests finish, then it is forgotten
with its connections, gauges and models. An endpoint that is wanted again meanwhile goes on. Without a discovery nothing
replaces what the file drops: models that only it served are unknown at once. The operator overrides the sources: an
endpoint drained by hand stays drained, one removed by hand stays away as long as its source keeps naming it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.config.address import NOWHERE, is_own, same_place
from penstock.config.model import ENDPOINTS_MAX, EndpointSection, Settings
from penstock.core.values.settings import EndpointLimits, EndpointSpec
from penstock.engines.base import Model
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.factory import EndpointFactory, trust
from penstock.gateway.endpoints.observer import Observer
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.target import Target
from penstock.gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from penstock.gateway.kv_cache.locator import Locator

logger = logging.getLogger(__name__)

OPERATOR = "operator"  # the source of endpoints added by hand
SETTINGS = "settings"  # the source of the file's endpoints
QUIET_LOOK_S = 0.1  # how often we look whether all requests of a drained endpoint have ended


#: Fields that may change while requests run. If others change, it is another endpoint.
FOLLOWED = (
    "slots",
    "kv_tokens",
    "price",
    "weight",
    "max_kv_usage",
    "max_prefill_tokens",
    "max_time_per_output_token",
    "max_engine_waiting",
)


def limits_of(endpoint: EndpointSection) -> EndpointLimits:
    """Returns an endpoint's own thresholds, as the scheduler takes them; None in a field means no threshold."""
    return EndpointLimits(
        kv_usage_max=endpoint.max_kv_usage,
        prefill_tokens_max=endpoint.max_prefill_tokens,
        time_per_output_token_s_max=endpoint.max_time_per_output_token,
        engine_waiting_max=endpoint.max_engine_waiting,
    )


UNVERIFIED = "its certificate is not checked (`tls.verify: false`), so traffic can be read and changed in transit"


def _nobody() -> None:
    """For a gateway of one process."""


class EndpointView(msgspec.Struct, frozen=True):
    """One endpoint as the registry knows it; its load and health are in the scheduler's snapshot."""

    name: str
    url: str
    source: str
    engine: str
    drained: bool  #: by an operator
    leaving: bool  #: no source wants it any more; its requests end first


class _Member:
    """One endpoint and its parts. `leave_at_s`, a driver's time, is set while the endpoint is on its way out."""

    __slots__ = ("drained", "leave_at_s", "observer", "source", "spec", "target", "task")

    def __init__(self, spec: EndpointSection, source: str, target: Target, observer: Observer) -> None:
        self.spec = spec
        self.source = source
        self.target = target
        self.observer = observer
        self.task: asyncio.Task[None] | None = None
        self.drained = False
        self.leave_at_s: float | None = None


class EndpointRegistry:
    """All endpoints of a running gateway. `targets` is shared with the parts that send requests to them."""

    def __init__(
        self,
        *,
        driver: Driver,
        metrics: Metrics,
        catalog: Catalog,
    ) -> None:
        self._driver = driver
        self._metrics = metrics
        self._catalog = catalog
        self._locating: object = None  # the settings that the locator was made by
        self.locator: Locator | None = None  #: what finds out where prompts are cached, where that is asked for
        self.targets: dict[str, Target] = {}
        self._members: dict[str, _Member] = {}
        self._wanted: dict[str, list[EndpointSection]] = {OPERATOR: [], SETTINGS: []}  # in order of precedence
        self._kept_out: set[str] = set()  # removed by hand although a source names them
        self._dropped = 0  # last logged number of surplus or duplicate endpoints
        self._cut: list[Target] = []  # replaced by another of their name: closed when their requests have ended
        self._sweeper: asyncio.Task[None] | None = None
        self._started = False
        self._discovers = False  # the settings have other sources of endpoints
        self._listen = NOWHERE  # where the gateway itself is
        self.changed: Callable[[], None] = (
            _nobody  #: notified when one is added, removed or replaced, before it is used
        )
        self.told: Callable[[], None] = _nobody  #: notified of changes of one
        self.in_use: Callable[[str], bool] = lambda _: False  #: whether other processes have requests there
        self._closing: asyncio.Task[None] | None = None  # closes a locator that was replaced
        driver.took_movement = self._took_movement

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to observe the endpoints, those there and those to come."""
        self._started = True
        for member in self._members.values():
            self._observe(member)
        if self.locator is not None:
            self.locator.start()

    async def looked_at(self, within_s: float) -> None:
        """Wait until each present endpoint was polled once, within a limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for member in tuple(self._members.values()):
                    await member.observer.looked.wait()

    async def close(self) -> None:
        """Stop observing. Call `disconnect` later, when no request needs the connections any more."""
        self._started = False
        tasks = [member.task for member in self._members.values() if member.task is not None]
        tasks += [task for task in (self._sweeper, self._closing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.locator is not None:
            await self.locator.close()

    def disconnect(self) -> None:
        """Close all connections to all endpoints."""
        for target in (*self.targets.values(), *self._cut):
            target.upstream.close()

    def follow(self, settings: Settings) -> None:
        """Have the settings' endpoints, and make new ones by these. Present ones follow as far as possible."""
        parts = self._parts = EndpointFactory.of(settings, self._driver)
        for member in self._members.values():
            member.target.upstream.retime(parts.timeouts)
            member.observer.pace(parts.observe, parts.timeouts)
            if (context := trust(member.spec.name, member.spec.tls)) is not None:
                member.target.upstream.retrust(context)
                member.observer.retrust(context)
        locating = settings.routing.locality, settings.routing.lmcache
        if locating != self._locating:
            self._locating = locating
            self._relocate(self._locator_by(settings))
        self._discovers = bool(settings.discovery)
        self._listen = settings.listen
        self.want(SETTINGS, settings.endpoints)

    def _took_movement(self) -> list[str]:
        return [name for name, target in self.targets.items() if target.took_movement()]

    def _locator_by(self, settings: Settings) -> Locator | None:
        if settings.routing.locality == "history":
            return None
        from penstock.gateway.kv_cache.choice import locator, tells  # noqa: PLC0415 - most have their own history

        return locator(settings, self._driver, self._catalog.names_of, tells(self._driver))

    def _relocate(self, locator: Locator | None) -> None:
        """Use `locator` for cached prompts; None: none. The old one's reports are forgotten."""
        before, self.locator = self.locator, locator
        now = self._driver.now()
        for name, member in self._members.items():
            if before is not None:
                self._driver.tell(self._driver.scheduler.kv_cleared(name, now=now))
            if locator is not None:
                locator.endpoint_added(member.spec, member.target)
        if before is not None:
            self._closing = asyncio.get_running_loop().create_task(before.close())
        if locator is not None and self._started:
            locator.start()

    # --- desired endpoints ----------------------------------------------------------------------------------------

    def ranked(self, sources: Sequence[str], /) -> None:
        """These are the `sources` besides the operator and the file, in order of precedence. Forget any other."""
        self._wanted = {source: self._wanted.get(source, []) for source in (OPERATOR, SETTINGS, *sources)}
        self._reconcile()

    def want(self, source: str, endpoints: Iterable[EndpointSection], /) -> None:
        """From now on `source` wants exactly these `endpoints`; an empty set means none."""
        self._wanted[source] = list(endpoints)
        self._reconcile()

    def add(self, endpoint: EndpointSection) -> None:
        """Add an endpoint by hand.

        Raises ValueError, with a sentence for the operator, if its name or address is taken or there are too many.
        """
        if is_own(endpoint.url, self._listen):
            raise ValueError("That is this gateway's own address (`listen`): requests would go round in circles.")
        name, place = endpoint.name, same_place(endpoint.url)
        for other in self._members.values():
            if other.leave_at_s is None and (other.spec.name == name or same_place(other.spec.url) == place):
                what = "name" if other.spec.name == name else "address"
                raise ValueError(f"An endpoint with this {what} exists: `{other.spec.name}`.")
        if sum(member.leave_at_s is None for member in self._members.values()) >= ENDPOINTS_MAX:
            raise ValueError(f"There are {ENDPOINTS_MAX} endpoints already, the maximum.")
        self._kept_out.discard(name)
        self.want(OPERATOR, [*self._wanted[OPERATOR], endpoint])

    def remove(self, name: str, *, at_once: bool = False) -> None:
        """Remove an endpoint by hand; it must be there. Its requests end first, unless `at_once` cuts them.

        Aborted requests are retried at another endpoint if possible.
        """
        member = self._members[name]
        self._kept_out.add(name)
        self.want(OPERATOR, [e for e in self._wanted[OPERATOR] if e.name != name])
        if at_once:
            member.leave_at_s = self._driver.now()
            self._sweep()

    def drain(self, name: str) -> None:
        """Drain an endpoint by hand: send it nothing more until `resume`. `name` must be there."""
        self._members[name].drained = True
        self._tell_drained(self._members[name])

    def resume(self, name: str) -> None:
        """End a drain by hand: the endpoint may be sent requests again, unless no source wants it any more."""
        member = self._members[name]
        member.drained = False
        if member.leave_at_s is None:
            self._tell_resumed(name)

    def slots(self, name: str, slots: int | Literal["auto"]) -> None:
        """Set an endpoint's slots by hand, until its source changes them; `auto`: learnt."""
        self._resize(name, slots)

    def by_hand(self) -> tuple[list[str], list[str]]:
        """Returns the endpoints that operators have drained, and those that they have removed."""
        return sorted(name for name, member in self._members.items() if member.drained), sorted(self._kept_out)

    def go_by_hand(self, *, drained: Collection[str], removed: Collection[str]) -> None:
        """Have these drained and these removed by hand, and no others, as far as they are known here."""
        for name, member in self._members.items():
            if member.drained and name not in drained:
                self.resume(name)
            elif not member.drained and name in drained:
                self.drain(name)
        if self._kept_out != set(removed):
            self._kept_out = set(removed)
            self._reconcile()

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def views(self) -> list[EndpointView]:
        """Returns all endpoints, in order of arrival."""
        return [
            EndpointView(m.spec.name, m.spec.url, m.source, m.spec.engine, m.drained, m.leave_at_s is not None)
            for m in self._members.values()
        ]

    def known(self) -> Iterator[tuple[EndpointSection, Target]]:
        """All endpoints that may still have requests, each with how it is reached."""
        return ((member.spec, member.target) for member in self._members.values())

    # --- from wanted to there -------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        wanted = self._merged()
        self._kept_out &= {endpoint.name for source in self._wanted.values() for endpoint in source}
        for name in [name for name in self._members if name not in wanted]:
            self._leave(self._members[name])
        for name, (source, endpoint) in wanted.items():
            member = self._members.get(name)
            if member is None:
                self._enter(source, endpoint)
            else:
                member.source = source
                self._update(member, endpoint)

    def _merged(self) -> dict[str, tuple[str, EndpointSection]]:
        """Returns all wanted endpoints with their source, by name, without the gateway itself.

        Of two with one name or address the first stands.
        """
        merged: dict[str, tuple[str, EndpointSection]] = {}
        places: set[tuple[str, str]] = set()
        dropped: list[str] = []
        for source, endpoints in self._wanted.items():
            for endpoint in endpoints:
                place = same_place(endpoint.url)
                if endpoint.name in self._kept_out:
                    continue
                taken = endpoint.name in merged or place in places or is_own(endpoint.url, self._listen)
                if taken or len(merged) >= ENDPOINTS_MAX:
                    dropped.append(endpoint.name)
                    continue
                merged[endpoint.name] = (source, endpoint)
                places.add(place)
        if len(dropped) > self._dropped:
            shown = ", ".join(dropped[:5])
            logger.warning(
                "%d endpoints ignored as duplicates, the gateway itself, or beyond %d: %s",
                len(dropped),
                ENDPOINTS_MAX,
                shown,
            )
        self._dropped = len(dropped)
        return merged

    def _update(self, member: _Member, endpoint: EndpointSection) -> None:
        before = member.spec
        followed = {key: getattr(endpoint, key) for key in FOLLOWED}
        if before.model_copy(update=followed) != endpoint:
            self._replace(member, endpoint)
            return
        if member.leave_at_s is not None:
            self._stay(member)
        if endpoint == before:
            return
        member.spec = endpoint
        if endpoint.slots != before.slots:
            self._resize(endpoint.name, endpoint.slots)
        now = self._driver.now()
        changed = self._driver.scheduler.endpoint_changed(
            endpoint.name,
            price=endpoint.price,
            weight=endpoint.weight,
            limits=limits_of(endpoint),
            kv_tokens=endpoint.kv_tokens or 0,
            now=now,
        )
        self._driver.tell(changed)

    def _enter(self, source: str, endpoint: EndpointSection) -> _Member:
        name = endpoint.name
        models = None if endpoint.models == "auto" else frozenset(endpoint.models)
        target = self._parts.target(endpoint)
        target.names = endpoint.names
        if endpoint.tls is not None and not endpoint.tls.verify:
            logger.warning("endpoint %s: %s", name, UNVERIFIED)
        member = _Member(endpoint, source, target, self._parts.observer(endpoint, target, self._listed))
        self._members[name] = member
        self.targets[name] = target
        target.changed = lambda: self.told()  # noqa: PLW0108 - what is told may come later
        self._metrics.endpoint_added(name, endpoint.url)
        if models is not None:
            self._catalog.configured(name, sorted(models))
            self._metrics.models_known(sorted(models))
        slots = self._parts.slots_initial if endpoint.slots == "auto" else endpoint.slots
        by_word = endpoint.engine != "auto" and models is not None
        spec = EndpointSpec(
            name,
            slots,
            models,
            endpoint.labels,
            adaptive_slots=endpoint.slots == "auto",
            price=endpoint.price,
            weight=endpoint.weight,
            limits=limits_of(endpoint),
            kv_tokens=endpoint.kv_tokens,
            vouched=by_word,
            by_word=by_word,
        )
        self.changed()
        self._driver.tell(self._driver.scheduler.endpoint_added(spec, now=self._driver.now()))
        if self.locator is not None:
            self.locator.endpoint_added(endpoint, target)
        if self._started:
            logger.info("endpoint %s (%s) added, from %s", name, endpoint.url, source)
            self._observe(member)
        return member

    def _leave(self, member: _Member) -> None:
        if member.leave_at_s is not None:
            return
        logger.info("endpoint %s removed from the configuration; draining it", member.spec.name)
        member.leave_at_s = self._driver.now() + self._parts.leave_s
        self._unobserve(member)
        self._tell_drained(member)
        self._sweep()

    def _stay(self, member: _Member) -> None:
        """It is wanted again before it was gone. Its requests continue; its kind and models are polled again."""
        logger.info("endpoint %s is configured again", member.spec.name)
        member.leave_at_s = None
        member.observer = self._parts.observer(member.spec, member.target, self._listed)
        if self._started:
            self._observe(member)
        if member.drained:
            self._tell_drained(member)
        else:
            self._tell_resumed(member.spec.name)

    def _replace(self, member: _Member, endpoint: EndpointSection) -> None:
        """Put another endpoint in the place of one with the same name. Requests at the old one end there."""
        logger.info("endpoint %s is now %s", endpoint.name, endpoint.url)
        self._cut.append(member.target)
        member.leave_at_s = self._driver.now()
        self._tell_drained(member)
        self._forget(member)
        successor = self._enter(member.source, endpoint)
        if member.drained:
            successor.drained = True
            self._tell_drained(successor)
        self._sweep()

    def _forget(self, member: _Member) -> None:
        name = member.spec.name
        self._unobserve(member)
        if self.locator is not None:
            self.locator.endpoint_removed(name)
        del self._members[name], self.targets[name]
        self._driver.tell(self._driver.scheduler.endpoint_removed(name, now=self._driver.now()))
        self._catalog.forgotten(name)
        self._metrics.endpoint_removed(name)

    # --- leaving endpoints ----------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Forget leaving endpoints that are idle or timed out; check again while some are left."""
        now = self._driver.now()
        for member in [m for m in self._members.values() if m.leave_at_s is not None]:
            assert member.leave_at_s is not None
            if now >= member.leave_at_s:
                member.target.upstream.close()  # its requests fail, and are retried elsewhere if possible
            name = member.spec.name
            if now >= member.leave_at_s or not (member.target.upstream.busy or self.in_use(name)):
                logger.info("endpoint %s removed", name)
                self._forget(member)
                member.target.upstream.close()
                self.changed()
        for target in [target for target in self._cut if not target.upstream.busy]:
            self._cut.remove(target)
            target.upstream.close()
        leaving = self._cut or any(member.leave_at_s is not None for member in self._members.values())
        if leaving and (self._sweeper is None or self._sweeper.done()):
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep_later())

    async def _sweep_later(self) -> None:
        while self._cut or any(member.leave_at_s is not None for member in self._members.values()):
            await asyncio.sleep(QUIET_LOOK_S)
            self._sweep()

    # --- small things ---------------------------------------------------------------------------------------------

    def _observe(self, member: _Member) -> None:
        if member.task is None:
            member.task = asyncio.get_running_loop().create_task(member.observer.run())

    def _unobserve(self, member: _Member) -> None:
        if member.task is not None:
            member.task.cancel()
            member.task = None

    def _listed(self, name: str, models: Sequence[Model]) -> None:
        """An endpoint reported its models; those not named in the settings are left out."""
        configured = self._members[name].spec.models
        if configured != "auto":
            models = [model for model in models if model.id in configured]
        self._catalog.listed(name, list(models))
        self._metrics.models_known(model.id for model in models)

    def _resize(self, name: str, slots: int | Literal["auto"]) -> None:
        self._driver.tell(self._driver.scheduler.endpoint_changed(name, slots=slots, now=self._driver.now()))

    def _tell_drained(self, member: _Member) -> None:
        name, dropped = member.spec.name, member.leave_at_s is not None and member.source == SETTINGS
        leaves = dropped and not self._discovers and name not in self._kept_out
        self._driver.tell(self._driver.scheduler.endpoint_drained(name, leaves=leaves, now=self._driver.now()))

    def _tell_resumed(self, name: str) -> None:
        self._driver.tell(self._driver.scheduler.endpoint_resumed(name, now=self._driver.now()))
