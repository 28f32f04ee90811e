"""From settings to a gateway that stands: the one place where the parts are put together."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import penstock
from penstock import clock
from penstock.batch.api.dispatch import GatewayPort
from penstock.batch.api.wiring import batch_service, store_thread
from penstock.batch.store.thread import StoreThread
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
from penstock.gateway.admin.tenant_orders import TenantOrders
from penstock.gateway.admin.tenants import TenantVerbs
from penstock.gateway.admin.verbs import EndpointVerbs
from penstock.gateway.admin.watch import GatewayFacts, Watch
from penstock.gateway.builtin.autoscale import Autoscale
from penstock.gateway.builtin.engine_paths import EnginePaths
from penstock.gateway.builtin.operators import OperatorsApp, is_operators
from penstock.gateway.builtin.paths import OwnPaths
from penstock.gateway.certificate import Certificate
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.discovery.base import Discovery
from penstock.gateway.endpoints.discovery.sources import SettingsSources
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.cors import Cors
from penstock.gateway.identity.origins import Origins
from penstock.gateway.keys.book import KeyBook
from penstock.gateway.keys.key_verbs import KeyVerbs
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.queueing import queueing
from penstock.gateway.reload import Reload
from penstock.gateway.serve import Gateway
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.http.server.server import Handler, HttpServer

if TYPE_CHECKING:
    from penstock.gateway.share.sharing import Sharing
    from penstock.gateway.workers.office import Office


def gateway(settings: Settings, read: Callable[[], Settings] | None = None) -> Gateway:
    """Everything that `penstock serve` runs. Call on a running event loop; nothing is started yet.

    `read` gives the settings again, for a reload; without it they stay.
    """
    scheduler = Scheduler(settings_map.scheduler_settings(settings), random=Random())
    driver = Driver(scheduler, now=clock.now)
    metrics = Metrics(snapshot=lambda: scheduler.snapshot(now=driver.now()))
    catalog = Catalog()
    endpoints = EndpointRegistry(driver=driver, metrics=metrics, catalog=catalog)
    discovery = Discovery((), endpoints)
    events = EventLog()
    own_token = OwnToken(folder_of(settings.state_dir, os.environ), _own_token(settings))
    (host, _), (admin_host, _) = settings.listen_address, settings.admin_address or settings.listen_address
    origins, admin_origins = Origins(listens_on=host), Origins(listens_on=admin_host, for_operators=True)
    auth = AdminAuth(listens_on=admin_host, now=driver.now, origins=admin_origins, own=own_token.token)
    callers, heartbeats, affinities = Callers(), Heartbeats(driver), Affinities(_prefix_seed(settings))
    orders, routes = TenantOrders(events), AdminRoutes(auth, events.audit)
    store, book = _kept(settings, callers)
    is_several = settings.share.enabled or settings_map.workers(settings) > 1
    batch = None
    if store is not None and settings.batch.enabled:
        port = GatewayPort(
            submit=lambda *request: app.submit(*request),  # noqa: PLW0108 - the app comes after it
            caller=lambda tenant, user, rights: callers.inside(tenant, user, driver.now(), rights),
            room=lambda caller, model: scheduler.room(model, caller.account, caller.band, now=driver.now()),
            knows=lambda model: scheduler.knows(model, now=driver.now()),
            aliases=lambda: catalog.aliases,
            decides=lambda: sharing is None or sharing.roles.decides,
        )
        batch = batch_service(settings.batch, store, port=port, driver=driver, callers=callers, metrics=metrics)
    app = App(
        driver=driver,
        endpoints=endpoints,
        metrics=metrics,
        catalog=catalog,
        origins=origins,
        callers=callers,
        affinities=affinities,
        heartbeats=heartbeats,
        reporting=(reporting := Reporting()),
        elsewhere=None if settings.admin_address is None else is_operators,
        cors=None if is_several else Cors(),
    )
    own_paths = OwnPaths(
        driver=driver,
        callers=callers,
        catalog=catalog,
        metrics=metrics,
        refuse=app.refusals.refuse,
        request_id=app.refusals.request_id,
        queueing=lambda: queueing(reload.settings),
        operators_here=settings.admin_address is None,
    )
    app.serve(own_paths)
    app.serve(routes, guarded=True)
    engine_paths = EnginePaths(
        driver=driver,
        callers=callers,
        targets=endpoints.targets,
        auth=auth,
        refuse=app.refusals.refuse,
        request_id=app.refusals.request_id,
    )
    app.serve(engine_paths)
    autoscale = Autoscale(driver, catalog, app.refusals.refuse)
    metrics.add_source(autoscale)
    app.serve(autoscale)
    if batch is not None:
        app.serve(batch.routes)
    operators_app = OperatorsApp((own_paths, engine_paths, autoscale), routes, admin_origins, app.refusals)
    office: Office | None = None
    sharing: Sharing | None = None
    handlers: tuple[Handler, Handler] = app, operators_app
    if is_several:
        # Only here: one process alone needs none of it.
        from penstock.gateway.several import several  # noqa: PLC0415

        office, sharing, handlers = several(
            *(settings, app, operators_app),
            driver=driver,
            endpoints=endpoints,
            catalog=catalog,
            metrics=metrics,
            responses=affinities.responses,
            events=events,
            prefix_seed=affinities.prefix_seed,
            routes=routes,
            orders=orders,
        )
        if book is not None:
            book.tell_workers(office.know_keys)
    server, operators = (
        HttpServer(handler, settings_map.server_limits(settings), wall_clock=clock.wall) for handler in handlers
    )
    servers = (settings_map.ToServer(server), settings_map.ToServer(operators, for_operators=True))
    reads_requests = (callers, affinities, heartbeats, catalog, *servers, auth, own_token)
    reports = (operators_app, origins, admin_origins, metrics, reporting, app, autoscale, settings_map.ToLog())
    reload = Reload(
        settings,
        read or (lambda: settings),
        (
            *(*reads_requests, *reports, orders, settings_map.ToScheduler(driver, orders.limits), endpoints),
            *(part for part in (office, sharing) if part is not None),
        ),
        certificate=(certificate := Certificate()),
        discovery=SettingsSources(discovery, os.environ),
        metrics=metrics,
        events=events,
    )
    facts = GatewayFacts(
        version=penstock.__version__,
        config_hash=lambda: reload.hash,
        loop_lag_s=lambda: metrics.loop_lag_s,
        queueing=lambda: queueing(reload.settings),
        batches=tuple if batch is None else lambda: batch.manager.outlook,
        batch_store=lambda: None if batch is None else batch.manager.trouble,
        key_store=lambda: None if book is None else book.trouble,
        edges=tuple if office is None else office.edges,
        share=lambda: None if sharing is None else sharing.roles.now(),
        failures=metrics.failures,
        stops=(request_verbs := RequestVerbs(driver)).stops,
    )
    watch = Watch(driver, events, facts)
    key_verbs = KeyVerbs(book, lambda: reload.settings, clock.wall)
    steering = (EndpointVerbs(endpoints, driver), request_verbs, TenantVerbs(driver, callers, orders), key_verbs)
    for part in (Pages(), watch, *steering, ReloadVerb(reload)):
        part.add_to(routes)
    return Gateway(
        reload=reload,
        driver=driver,
        server=server,
        operators=None if settings.admin_address is None else operators,
        metrics=metrics,
        endpoints=endpoints,
        tokens=callers.tokens,
        discovery=discovery,
        watch=watch,
        own_token=own_token,
        certificate=certificate,
        reporting=reporting,
        autoscale=autoscale,
        batch=batch,
        book=book,
        store=store,
        office=office,
        sharing=sharing,
    )


def _kept(settings: Settings, callers: Callers) -> tuple[StoreThread | None, KeyBook | None]:
    """The store of batches and made keys, and the made keys in it; None each where there is no such thing."""
    makes_keys = settings.identity.made_keys
    if not settings.batch.enabled and not makes_keys:
        return None, None
    store = store_thread(settings.batch)
    return store, KeyBook(store, callers.made) if makes_keys else None


def _prefix_seed(settings: Settings) -> int:
    """Return the seed of prompts' keys: the group's if this gateway shares, otherwise a random one."""
    if not settings.share.enabled:
        return secrets.randbits(64)
    from penstock.gateway.share.dial import prefix_seed  # noqa: PLC0415

    return prefix_seed(settings.share)


def _own_token(settings: Settings) -> str | None:
    """An admin token that the group of this gateway has in common; None: it makes one for itself."""
    if not settings.share.enabled:
        return None
    from penstock.gateway.share.dial import own_token  # noqa: PLC0415

    return own_token(settings.share)
