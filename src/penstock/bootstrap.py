"""From settings to a gateway that stands: the one place where the parts are put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import penstock
from penstock import clock
from penstock.config import config_hash
from penstock.core.admission import AdmissionSettings
from penstock.core.band import BandSettings
from penstock.core.fairness.base import Prices
from penstock.core.health import HealthSettings
from penstock.core.queues import QueueBounds
from penstock.core.routing.registry import RoutingSettings
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.engines.recognise import ENGINES
from penstock.server.admin.auth import AdminAuth
from penstock.server.admin.events import EventLog
from penstock.server.admin.pages import Pages
from penstock.server.admin.requests import RequestVerbs
from penstock.server.admin.routes import AdminRoutes
from penstock.server.admin.verbs import EndpointVerbs
from penstock.server.admin.watch import Facts, Watch
from penstock.server.affinity import Affinities
from penstock.server.app import App
from penstock.server.catalog import Catalog
from penstock.server.discovery.base import Discovery
from penstock.server.discovery.sources import sources
from penstock.server.driver import Driver
from penstock.server.endpoints import SETTINGS, Endpoints, Parts
from penstock.server.heartbeat import Heartbeats
from penstock.server.http1 import HttpServer, ServerLimits
from penstock.server.identity import Callers, core_limits
from penstock.server.locality.lmcache import Controller, Coordinator, LmCache, Service
from penstock.server.locality.locator import Locator
from penstock.server.metrics import Metrics
from penstock.server.observe import Model, Observer, ObserveSettings
from penstock.server.relay import Target
from penstock.server.serve import Gateway
from penstock.server.upstream import Upstream, UpstreamTimeouts
from penstock.settings.model import Endpoint, Settings


def scheduler_settings(settings: Settings) -> SchedulerSettings:
    """The part of the settings that decides."""
    queue, health, admission = settings.queue, settings.health, settings.admission
    prices, levels = settings.fairness.prices, settings.fairness.levels
    return SchedulerSettings(
        bands=tuple(
            BandSettings(
                name=band.name,
                engine_waiting_max=band.max_engine_waiting,
                ceiling=band.ceiling,
                min_share=band.min_share,
                wait_s_max=band.max_wait,
                deadline_s=band.deadline,
                time_per_output_token_s_max=band.max_time_per_output_token,
                requests_max=band.max_requests,
                bytes_max=band.max_bytes,
                tokens_max=band.max_tokens,
                shed_target_s=band.shed_target if band.best_effort else None,
                shed_interval_s=band.shed_interval,
            )
            for band in settings.bands
        ),
        queue_enabled=queue.enabled,
        bounds=QueueBounds(requests_max=queue.max_requests, bytes_max=queue.max_bytes, tokens_max=queue.max_tokens),
        wait_s_max=queue.max_wait,
        fairness=settings.fairness.policy,
        prices=Prices(prompt=prices.prompt, cached_prompt=prices.cached_prompt, completion=prices.completion),
        levels=levels,
        tenant_level=levels.index("tenant")
        if "tenant" in levels
        else levels.index("user")
        if "user" in levels
        else None,
        ordering=settings.ordering,
        admission=AdmissionSettings(
            kv_usage_max=admission.max_kv_usage,
            prefill_tokens_max=admission.max_prefill_tokens,
            time_per_output_token_s_max=admission.max_time_per_output_token,
            reserved_share=None if admission.reserved_slots == "auto" else admission.reserved_slots,
        ),
        engine_priority=admission.engine_priority,
        tenants={t.name: limits for t in settings.tenants if (limits := core_limits(t.limits)) is not None},
        tenant_weights={t.name: t.weight for t in settings.tenants},
        routing=settings.routing.policy,
        router=RoutingSettings(
            affinity_escape_s=settings.routing.affinity_escape,
            affinity_wait_s=settings.routing.affinity_wait,
            imbalance_threshold=settings.routing.imbalance_threshold,
            strict_sessions=settings.routing.session.strict,
        ),
        attempts_max=settings.retry.max_attempts,
        retry_budget=settings.retry.budget,
        health=HealthSettings(
            eject_after=health.eject_after,
            eject_for_s=health.eject_for,
            eject_for_s_max=health.eject_for_max,
            panic_threshold=health.panic_threshold,
        ),
        stale_after_s=max(3 * settings.observe.interval, 2.0),
    )


def gateway(settings: Settings) -> Gateway:
    """Everything that `penstock serve` runs. Call on a running event loop; nothing is started yet."""
    scheduler = Scheduler(scheduler_settings(settings), random=Random())
    driver = Driver(scheduler)
    metrics = Metrics(
        bands=[band.name for band in settings.bands],
        tenants=[tenant.name for tenant in settings.tenants],
        snapshot=lambda: scheduler.snapshot(now=driver.now()),
        config_hash=config_hash(settings),
        router_aliases="vllm_router" in settings.metrics.aliases,
    )
    catalog = Catalog({alias: target.to for alias, target in settings.models.items()})
    locator = _locator(settings, driver, catalog)
    endpoints = Endpoints(
        driver=driver, metrics=metrics, catalog=catalog, parts=_parts(settings, driver), locator=locator
    )
    endpoints.want(SETTINGS, settings.endpoints)
    discovery = Discovery(sources(settings.discovery, os.environ), endpoints.want)
    events = EventLog()
    watch = Watch(driver, events, _facts(settings, metrics))
    limits = settings.limits
    names = [band.name for band in settings.bands]
    app = App(
        driver=driver,
        targets=endpoints.targets,
        metrics=metrics,
        catalog=catalog,
        admin=_admin(settings, driver, endpoints, events, watch),
        bands=names,
        callers=Callers(settings),
        levels=settings.fairness.levels,
        asks_usage=settings.accounting.usage == "auto",
        body_bytes_max=limits.max_body,
        locator=locator,
        affinities=Affinities(settings.routing),
        heartbeats=Heartbeats(
            driver,
            after_s=settings.queue.heartbeat_after,
            wait_s_max=max(band.max_wait or settings.queue.max_wait for band in settings.bands),
        ),
    )
    timeouts = settings.timeouts
    server = HttpServer(
        app,
        ServerLimits(
            header_bytes_max=limits.max_header,
            body_bytes_max=limits.max_body,
            bodies_bytes_max=max(settings.queue.max_bytes, limits.max_body),
            connections_max=limits.max_connections,
            header_timeout_s=timeouts.client_header,
            body_timeout_s=timeouts.client_body,
            write_timeout_s=timeouts.client_write,
        ),
        wall_clock=clock.wall,
    )
    return Gateway(
        settings=settings,
        driver=driver,
        server=server,
        metrics=metrics,
        endpoints=endpoints,
        discovery=discovery,
        watch=watch,
    )


def _facts(settings: Settings, metrics: Metrics) -> Facts:
    shown = config_hash(settings)
    return Facts(
        version=penstock.__version__,
        config_hash=lambda: shown,
        loop_lag_s=lambda: metrics.loop_lag_s,
    )


def _admin(settings: Settings, driver: Driver, endpoints: Endpoints, events: EventLog, watch: Watch) -> AdminRoutes:
    token, read_token = settings.admin.token, settings.admin.read_token
    auth = AdminAuth(
        token=None if token is None else token.get_secret_value(),
        read_token=None if read_token is None else read_token.get_secret_value(),
        listens_on=settings.listen_address[0],
        now=driver.now,
    )
    routes = AdminRoutes(auth, events.audit)
    Pages().add_to(routes)
    watch.add_to(routes)
    EndpointVerbs(endpoints, driver).add_to(routes)
    RequestVerbs(driver).add_to(routes)
    return routes


def _locator(settings: Settings, driver: Driver, catalog: Catalog) -> Locator | None:
    """Who finds out where prompts are cached, where our own history is not enough and the policy cares."""
    routing = settings.routing
    if routing.locality == "history":  # nor is any other asked with a policy that would not listen
        return None
    lmcache = None
    if routing.locality == "lmcache":
        named = routing.lmcache
        services: list[Service] = [Coordinator(named.coordinator)] if named.coordinator else []
        services += [Controller(named.controller)] if named.controller else []
        lmcache = LmCache(services)
    return Locator(driver, lmcache=lmcache, names_of=catalog.names_of)


def _parts(settings: Settings, driver: Driver) -> Parts:
    """How the parts of an endpoint are made, whenever it comes."""

    def observer(endpoint: Endpoint, target: Target, on_models: Callable[[str, list[Model]], None]) -> Observer:
        return Observer(
            endpoint.name,
            target,
            driver,
            ObserveSettings(
                interval_s=settings.observe.interval,
                fast_interval_s=settings.observe.fast_interval,
                probe_interval_s=settings.health.probe_interval,
            ),
            engine=ENGINES.get(endpoint.engine),
            asks_models=endpoint.models == "auto",
            on_models=on_models,
        )

    return Parts(
        target=lambda endpoint: _target(endpoint, settings),
        observer=observer,
        slots_initial=settings.admission.slots_initial,
        leave_s=settings.queue.stop_timeout,
    )


def _target(endpoint: Endpoint, settings: Settings) -> Target:
    timeouts = settings.timeouts
    upstream = Upstream(
        endpoint.url,
        timeouts=UpstreamTimeouts(
            connect_s=timeouts.connect,
            first_byte_s=timeouts.first_byte,
            between_bytes_s=timeouts.between_bytes,
        ),
    )
    key = endpoint.api_key
    return Target(upstream, key.get_secret_value() if key is not None else None)
