"""The parts of a gateway, built from the settings: the one place where they are put together.

`Parts` is one record: each part is built by its constructor from those above it. What a part needs of a later one it
asks through the record, when it is used. `Gateway` (`serve.py`) adds how they live.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import penstock
from penstock import clock
from penstock.config.model import Settings
from penstock.config.sections.batch import folder_of
from penstock.core.scheduler import Scheduler
from penstock.gateway import settings_map
from penstock.gateway.admin.auth import AdminAuth
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.own_token import OwnToken
from penstock.gateway.admin.picture.facts import GatewayFacts
from penstock.gateway.admin.tenant_orders import TenantOrders
from penstock.gateway.admin.watch import Watch
from penstock.gateway.builtin.autoscale import Autoscale
from penstock.gateway.builtin.operators_app import OperatorsApp, is_admin, is_engine_path, is_operators
from penstock.gateway.builtin.own_paths import OwnPaths
from penstock.gateway.certificate import Certificate
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.discovery.sources import SettingsSources
from penstock.gateway.endpoints.pool_rules import RuleBook
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.origins import Origins
from penstock.gateway.proxy.app import App, LatePart
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.queueing import queueing
from penstock.gateway.reload import Reload
from penstock.gateway.telemetry.exposition import Levels
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.gateway.telemetry.tenant_series import SPENT
from penstock.gateway.usage.use_counts import NO_LEDGER
from penstock.http.server.server import Handler, HttpServer

if TYPE_CHECKING:  # parts that few gateways have, or few callers ask: each is imported where it is built
    from penstock.batch.api.wiring import BatchService
    from penstock.batch.store.thread import StoreThread
    from penstock.batch.values import MadeKey
    from penstock.gateway.admin.requests import RequestVerbs
    from penstock.gateway.admin.routes import AdminRoutes
    from penstock.gateway.builtin.engine_paths import EnginePaths
    from penstock.gateway.cluster.cluster import GatewayCluster
    from penstock.gateway.epp.server import PickerServer  # needs an extra
    from penstock.gateway.keys.key_book import KeyBook
    from penstock.gateway.usage.own import OwnUse
    from penstock.gateway.usage.usage_book import UsageBook


class Parts:
    """Everything that `penstock serve` runs, in the order in which it is built. Nothing is started."""

    cluster: GatewayCluster | None = None  #: None: this one process carries all requests
    batch: BatchService | None = None  #: None: no files and batches
    book: KeyBook | None = None  #: None: no keys are issued
    usage: UsageBook | None = None  #: None: nobody has asked for the ledger of use yet (`ledger`)
    store: StoreThread | None  #: of batches, issued keys and the ledger; None: likewise
    _uses: OwnUse | None = None
    picker: PickerServer | None = None  #: None: no proxy asks here; workers have their own
    requests: RequestVerbs | None = None  #: None: no operator has asked anything

    def __init__(self, settings: Settings, read: Callable[[], Settings] | None = None) -> None:  # noqa: PLR0915  (a list)
        """Call on a running event loop. `read` gives the settings again, for a reload; without it they stay."""
        self.scheduler = scheduler = Scheduler(settings_map.scheduler_settings(settings), random=Random())
        self.driver = driver = Driver(scheduler, now=clock.now)
        self.metrics = metrics = Metrics(snapshot=lambda: scheduler.snapshot(requests=False, now=driver.now()))
        metrics.add_sources([Levels(*SPENT, lambda: scheduler.budgets(now=driver.now()))])
        self.catalog = catalog = Catalog()
        self.endpoints = endpoints = EndpointRegistry(driver=driver, metrics=metrics, catalog=catalog)
        self.events = events = EventLog()
        own_address, (host, _) = settings.admin_address, settings.listen_address
        admin_host = host if own_address is None else own_address[0]
        origins, admin_origins = Origins(listens_on=host), Origins(listens_on=admin_host, for_operators=True)
        self.own_token = OwnToken(folder_of(settings.state_dir, os.environ), _own_token(settings))
        self.auth = auth = AdminAuth(
            listens_on=admin_host, now=driver.now, origins=admin_origins, own=self.own_token.token
        )
        self.orders = orders = TenantOrders(events)
        self.callers = callers = Callers()
        rules = RuleBook(callers.objectives.know, catalog.know)
        self.discovery = SettingsSources(endpoints, os.environ, rules)
        self.affinities = affinities = Affinities(_prefix_seed(settings))
        heartbeats = Heartbeats(driver)
        self.store = self._store(settings) if settings.needs_store else None
        if self.store is not None and settings.identity.made_keys:
            from penstock.gateway.keys.key_book import KeyBook  # noqa: PLC0415

            self.book = KeyBook(self.store, self._keys_made)
        self.reporting = Reporting(metrics.dropped_lines, metrics.events)
        several = settings.share.enabled or settings_map.workers(settings) > 1
        self.app = app = App(
            driver=driver,
            endpoints=endpoints,
            metrics=metrics,
            catalog=catalog,
            origins=origins,
            callers=callers,
            affinities=affinities,
            heartbeats=heartbeats,
            reporting=self.reporting,
            elsewhere=None if own_address is None else is_operators,
            answers_pages=not several,
        )
        if self.store is not None and settings.batch.serve:
            from penstock.batch.api.dispatch import GatewayPort  # noqa: PLC0415
            from penstock.batch.api.wiring import batch_service  # noqa: PLC0415

            port = GatewayPort(
                submit=app.submit,
                driver=driver,
                callers=callers,
                catalog=catalog,
                decides=lambda: self.cluster is None or self.cluster.decides,
            )
            self.batch = batch_service(
                *(settings.batch, self.store),
                port=port,
                driver=driver,
                callers=callers,
                refused=app.refusals.count,
                metrics=metrics,
            )
        own_paths = OwnPaths(
            driver=driver,
            callers=callers,
            catalog=catalog,
            metrics=metrics,
            refusals=app.refusals,
            queueing=lambda: queueing(self.reload.settings),
            operators_here=own_address is None,
            own_use=self._own_use,
        )
        self.autoscale = Autoscale(driver, catalog, app.refusals)
        metrics.add_sources([self.autoscale])
        for_operators = (own_paths, LatePart(is_engine_path, self._engine_paths), self.autoscale)
        for part in for_operators:
            app.serve_picked(part)
        routes = LatePart(is_admin, self._admin_routes)
        app.serve(routes, guarded=True)
        if self.batch is not None:
            app.serve(self.batch.routes)
        self.operators_app = OperatorsApp(for_operators, routes, admin_origins, app.refusals)
        handlers: tuple[Handler, Handler] = app, self.operators_app
        if several:
            from penstock.gateway.cluster.cluster import GatewayCluster  # noqa: PLC0415 - one process needs none of it
            from penstock.share.messages import NewKeys, NewRules  # noqa: PLC0415

            self.cluster = cluster = GatewayCluster(settings, self)
            handlers = cluster.handlers
            rules.tell_workers(lambda document: cluster.table.tell_workers(NewRules(document)))
            if self.book is not None:
                self.book.tell_workers(lambda document: cluster.table.tell_workers(NewKeys(document)))
        self.server, operators = (
            HttpServer(handler, settings_map.server_limits(settings), wall_clock=clock.wall) for handler in handlers
        )
        self.operators = None if own_address is None else operators  #: the server at `admin.listen`
        if settings.epp.listen and not several:
            from penstock.gateway.epp.server import picker_server  # noqa: PLC0415 - needs an extra

            self.picker = picker_server(
                settings,
                app=app,
                driver=driver,
                targets=endpoints.targets,
                hold=self.server.hold,
            )
        self.certificate = Certificate()
        reads_requests = (
            *(callers, affinities, heartbeats, catalog),
            *(settings_map.ToServer(self.server), settings_map.ToServer(operators, for_operators=True)),
            *(auth, self.own_token),
        )
        reports = (
            *(self.operators_app, origins, admin_origins, metrics, self.reporting, app, self.autoscale),
            settings_map.ToLog(),
        )
        # The scheduler follows last: what it decides anew, it decides for the endpoints that are left.
        decides = (orders, endpoints, settings_map.ToScheduler(driver, orders.limits, orders.weights))
        self.reload = Reload(
            settings,
            read or (lambda: settings),
            (*reads_requests, *reports, *decides, *(it for it in (self.cluster, self.picker) if it)),
            certificate=self.certificate,
            discovery=self.discovery,
            metrics=metrics,
            events=events,
        )
        self.watch = Watch(driver, events, self._facts())

    def _engine_paths(self) -> EnginePaths:
        from penstock.gateway.builtin.engine_paths import EnginePaths  # noqa: PLC0415

        return EnginePaths(
            driver=self.driver,
            callers=self.callers,
            targets=self.endpoints.targets,
            auth=self.auth,
            refusals=self.app.refusals,
        )

    def _admin_routes(self) -> AdminRoutes:
        """Return the paths below /admin, with all parts that answer them."""
        from penstock.gateway.admin.pages import Pages  # noqa: PLC0415
        from penstock.gateway.admin.picture.looks import Looks  # noqa: PLC0415
        from penstock.gateway.admin.reload_verb import ReloadVerb  # noqa: PLC0415
        from penstock.gateway.admin.requests import RequestVerbs  # noqa: PLC0415
        from penstock.gateway.admin.routes import AdminRoutes  # noqa: PLC0415
        from penstock.gateway.admin.tenant_verbs import TenantVerbs  # noqa: PLC0415
        from penstock.gateway.admin.verbs import EndpointVerbs  # noqa: PLC0415
        from penstock.gateway.builtin.trial import Trial  # noqa: PLC0415
        from penstock.gateway.keys.key_verbs import KeyVerbs  # noqa: PLC0415
        from penstock.gateway.sessions.session_verbs import SessionVerbs  # noqa: PLC0415

        driver, routes = self.driver, AdminRoutes(self.auth, self.events.audit)
        self.requests = requests = RequestVerbs(driver, routes.who)
        keys = KeyVerbs(self.book, lambda: self.reload.settings, clock.wall)
        steering = (
            EndpointVerbs(self.endpoints, driver, self.watch.state_s),
            TenantVerbs(driver, self.callers, self.orders),
            keys,
        )
        trial = Trial(self.app, driver, self.callers)
        for verbs in (
            Pages(),
            Looks(self.watch),
            requests,
            SessionVerbs(driver),
            *steering,
            trial,
            ReloadVerb(self.reload),
        ):
            verbs.add_to(routes)
        if (book := self.ledger()) is None:
            routes.absent("GET", "/admin/usage", NO_LEDGER)
        else:
            from penstock.gateway.usage.report import UsageReport  # noqa: PLC0415

            UsageReport(book, lambda: self.reload.settings, clock.wall).add_to(routes)
        if self.cluster is not None and self.cluster.group is not None:
            routes.add("POST", "/admin/decider/step-down", self.cluster.group.steps_down)
        return routes

    def ledger(self) -> UsageBook | None:
        """Return the ledger of use, made when it is first asked for, because no start needs it; None: there is none."""
        settings = self.reload.settings
        if self.usage is None and settings.store.enabled:
            from penstock.gateway.usage.usage_book import UsageBook  # noqa: PLC0415

            self.store = self.store or self._store(settings)
            self.usage = UsageBook(self.store, self.metrics.usage, lambda: self.reload.settings, clock.wall)
            self.metrics.add_sources([self.usage])
        return self.usage

    def _own_use(self) -> OwnUse | None:
        if self._uses is None and (book := self.ledger()) is not None:
            from penstock.gateway.usage.own import OwnUse  # noqa: PLC0415

            self._uses = OwnUse(book, lambda: self.reload.settings, clock.wall)
        return self._uses

    @staticmethod
    def _store(settings: Settings) -> StoreThread:
        from penstock.batch.store.opening import store_thread  # noqa: PLC0415

        return store_thread(settings, os.environ)

    def _keys_made(self, keys: Sequence[MadeKey]) -> None:
        """These keys are issued now: know them, and hold them to their limits."""
        self.callers.made(keys)
        if self.orders.made_keys(keys):
            driver = self.driver
            driver.tell(driver.scheduler.tenants_limited(self.orders.limits(), now=driver.now()))

    def _tenants(self) -> list[tuple[str, float]]:
        """The tenants of the settings, with the weights in force."""
        ordered = self.orders.weights()
        return [(tenant.name, ordered.get(tenant.name, tenant.weight)) for tenant in self.callers.profiles()]

    def _facts(self) -> GatewayFacts:
        """What the page shows beside the scheduler's snapshot."""
        batch, book, cluster = self.batch, self.book, self.cluster
        return GatewayFacts(
            version=penstock.__version__,
            config_hash=lambda: self.reload.hash,
            loop_lag_s=lambda: self.metrics.loop_lag_s,
            queueing=lambda: queueing(self.reload.settings),
            batches=tuple if batch is None else lambda: batch.manager.outlook,
            batch_store=lambda: None if batch is None else batch.manager.trouble,
            key_store=lambda: None if book is None else book.trouble,
            edges=tuple if cluster is None else cluster.table.edges,
            share=lambda: None if cluster is None else cluster.group_now(),
            proxies=str if self.picker is None else self.picker.problems,
            failures=self.metrics.failures,
            times=self.metrics.times,
            keeps_usage=lambda: self.reload.settings.keeps_usage,
            stops=lambda: {} if self.requests is None else self.requests.stops(),
            tenants=self._tenants,
        )


def _prefix_seed(settings: Settings) -> int:
    """Return the seed of prompts' keys: the group's if this gateway shares, otherwise a random one."""
    if not settings.share.enabled:
        return secrets.randbits(64)
    from penstock.gateway.cluster.listener import prefix_seed  # noqa: PLC0415

    return prefix_seed(settings.share)


def _own_token(settings: Settings) -> str | None:
    """Return the admin token that the group of this gateway shares; None: the gateway makes its own."""
    if not settings.share.enabled:
        return None
    from penstock.gateway.cluster.listener import own_token  # noqa: PLC0415

    return own_token(settings.share)
