"""What a gateway of several processes adds: its office for workers, and its part in a group, if it is in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.gateway import settings_map
from penstock.gateway.share.sharing import Sharing
from penstock.gateway.share.verbs import DeciderVerbs
from penstock.gateway.share.words import OperatorWords
from penstock.gateway.workers.office import Office
from penstock.gateway.workers.relayed import FromWorkers

if TYPE_CHECKING:
    from penstock.gateway.bootstrap import Parts
    from penstock.http.server.server import Handler


def several_processes(settings: Settings, parts: Parts) -> tuple[Office, Sharing | None, tuple[Handler, Handler]]:
    """Returns the office; the part in a group (None: nothing is shared); the handlers of workers and operators."""
    app, operators = parts.app, parts.operators_app
    office = Office(
        settings,
        count=settings_map.workers(settings),
        driver=parts.driver,
        endpoints=parts.endpoints,
        catalog=parts.catalog,
        metrics=parts.metrics,
        responses=parts.affinities.responses,
        events=parts.events,
        prefix_seed=parts.affinities.prefix_seed,
    )
    if not settings.share.enabled:
        return office, None, (FromWorkers(app), operators)
    sharing = Sharing(
        *(settings, office, parts.driver),
        app=app,
        operators=operators,
        refuse=app.refusals.refuse,
        metrics=parts.metrics,
        events=parts.events,
        words=OperatorWords(parts.driver, parts.endpoints, parts.orders),
    )
    DeciderVerbs(sharing.roles.step_down).add_to(parts.routes)
    return office, sharing, (FromWorkers(sharing.handlers[0]), sharing.handlers[1])
