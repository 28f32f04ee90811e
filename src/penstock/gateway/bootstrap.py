"""From settings to a gateway that stands: the one place where the parts are put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import penstock
from penstock import clock
from penstock.batch.api.dispatch import GatewayLane
from penstock.batch.api.wiring import batch_lane
from penstock.config.load import config_hash
from penstock.config.model import Settings
from penstock.core.scheduler import Scheduler
from penstock.gateway import settings_map
from penstock.gateway.admin.auth import AdminAuth
from penstock.gateway.admin.events import EventLog
from penstock.gateway.admin.own_token import OwnToken, folder_of
from penstock.gateway.admin.pages import Pages
from penstock.gateway.admin.reload_verb import ReloadVerb
from penstock.gateway.admin.requests import RequestVerbs
from penstock.gateway.admin.routes import AdminRoutes
from penstock.gateway.admin.verbs import EndpointVerbs
from penstock.gateway.admin.watch import GatewayFacts, Watch
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.discovery.base import Discovery
from penstock.gateway.endpoints.discovery.sources import sources
from penstock.gateway.endpoints.registry import SETTINGS, EndpointRegistry
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.origins import Origins
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.queueing import queueing
from penstock.gateway.reload import Reload, Subscribers
from penstock.gateway.serve import Gateway
from penstock.gateway.telemetry.metrics import Metrics
from penstock.http.server.server import HttpServer


def gateway(settings: Settings, read: Callable[[], Settings] | None = None) -> Gateway:
    """Everything that `penstock serve` runs. Call on a running event loop; nothing is started yet.

    `read` gives the settings anew, for a reload; without it they stay.
    """
    scheduler = Scheduler(settings_map.scheduler_settings(settings), random=Random())
    driver = Driver(scheduler)
    metrics = Metrics(
        settings, snapshot=lambda: scheduler.snapshot(now=driver.now()), config_hash=config_hash(settings)
    )
    catalog = Catalog(settings_map.aliases(settings))
    locator = settings_map.locator(settings, driver, catalog)
    endpoints = EndpointRegistry(
        driver=driver,
        metrics=metrics,
        catalog=catalog,
        parts=settings_map.endpoint_parts(settings, driver),
        locator=locator,
    )
    endpoints.want(SETTINGS, settings.endpoints)
    discovery = Discovery(sources(settings.discovery, os.environ), endpoints)
    events = EventLog()
    host, own = settings.listen_address[0], OwnToken(folder_of(settings.state_dir, os.environ))
    origins = Origins(settings.identity, listens_on=host)
    tokens = settings_map.admin_tokens(settings)
    auth = AdminAuth(*tokens, listens_on=host, now=driver.now, origins=origins, own=own.token)
    callers, affinities = Callers(settings), Affinities(settings.routing)
    heartbeats = Heartbeats(
        driver, after_s=settings.queue.heartbeat_after, wait_s_max=settings_map.wait_s_max(settings)
    )
    routes = AdminRoutes(auth, events.audit)
    batch = None
    if settings.batch.enabled:
        lane = GatewayLane(
            submit=lambda *request: app.submit(*request),  # noqa: PLW0108 - the app comes after it
            caller=lambda tenant, user: callers.inside(tenant, user, driver.now()),
            room=lambda caller, model: scheduler.room(model, caller.account, caller.band, now=driver.now()),
            knows=lambda model: scheduler.knows(model, now=driver.now()),
            aliases=lambda: catalog.aliases,
        )
        batch = batch_lane(settings.batch, lane, driver, callers, metrics)
    app = App(
        settings,
        batch=None if batch is None else batch.routes,
        driver=driver,
        targets=endpoints.targets,
        metrics=metrics,
        catalog=catalog,
        admin=routes,
        origins=origins,
        callers=callers,
        locator=locator,
        affinities=affinities,
        heartbeats=heartbeats,
    )
    app.tracer, app.on_end = settings_map.tracer(settings), settings_map.on_end(settings)
    server = HttpServer(app, settings_map.server_limits(settings), wall_clock=clock.wall)
    reload = Reload(
        settings,
        read or (lambda: settings),
        Subscribers(
            driver=driver,
            app=app,
            callers=callers,
            affinities=affinities,
            heartbeats=heartbeats,
            server=server,
            metrics=metrics,
            catalog=catalog,
            endpoints=endpoints,
            discovery=discovery,
            auth=auth,
            origins=origins,
            own_token=own,
            events=events,
        ),
    )
    facts = GatewayFacts(
        version=penstock.__version__,
        config_hash=lambda: reload.hash,
        loop_lag_s=lambda: metrics.loop_lag_s,
        queueing=lambda: queueing(reload.settings),
        batches=tuple if batch is None else lambda: batch.keeper.outlook,
        batch_store=lambda: None if batch is None else batch.keeper.trouble,
    )
    watch = Watch(driver, events, facts)
    Pages().add_to(routes)
    watch.add_to(routes)
    EndpointVerbs(endpoints, driver).add_to(routes)
    RequestVerbs(driver).add_to(routes)
    ReloadVerb(reload).add_to(routes)
    return Gateway(
        reload=reload,
        driver=driver,
        server=server,
        metrics=metrics,
        endpoints=endpoints,
        discovery=discovery,
        watch=watch,
        own_token=own,
        batch=batch,
        app=app,
    )
