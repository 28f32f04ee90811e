"""What a gateway has that is more than one process: its office, and its part in a group, if it is in one."""

from __future__ import annotations

from penstock.config.model import Settings
from penstock.gateway import settings_map
from penstock.gateway.admin.events import EventLog
from penstock.gateway.admin.routes import AdminRoutes
from penstock.gateway.admin.tenant_orders import TenantOrders
from penstock.gateway.builtin.operators import OperatorsApp
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.ties import Responses
from penstock.gateway.share.sharing import Sharing
from penstock.gateway.share.verbs import DeciderVerbs
from penstock.gateway.share.words import OperatorWords
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.workers.office import Office
from penstock.gateway.workers.relayed import FromWorkers
from penstock.http.server.server import Handler


def several(
    settings: Settings,
    app: App,
    operators: OperatorsApp,
    *,
    driver: Driver,
    endpoints: EndpointRegistry,
    catalog: Catalog,
    metrics: Metrics,
    responses: Responses,
    events: EventLog,
    prefix_seed: int,
    routes: AdminRoutes,
    orders: TenantOrders,
) -> tuple[Office, Sharing | None, tuple[Handler, Handler]]:
    """The office; the part in a group, None where nothing is shared; what answers workers, and operators."""
    office = Office(
        settings,
        count=settings_map.workers(settings),
        driver=driver,
        endpoints=endpoints,
        catalog=catalog,
        metrics=metrics,
        responses=responses,
        events=events,
        prefix_seed=prefix_seed,
    )
    if not settings.share.enabled:
        return office, None, (FromWorkers(app), operators)
    refuse = app.refusals.refuse
    words = OperatorWords(driver, endpoints, orders)
    sharing = Sharing(
        *(settings, office, driver),
        app=app,
        operators=operators,
        refuse=refuse,
        metrics=metrics,
        events=events,
        words=words,
    )
    DeciderVerbs(sharing.roles.step_down).add_to(routes)
    return office, sharing, (FromWorkers(sharing.handlers[0]), sharing.handlers[1])
