"""What a gateway of a group has beside what any gateway has, put together: its port, its links, its role."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock import clock
from penstock.config.model import Settings
from penstock.config.sections.share import ShareSection
from penstock.gateway import settings_map
from penstock.gateway.admin.events import EventLog
from penstock.gateway.builtin.paths import Refuse
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.share.dial import Dialler, SharePort
from penstock.gateway.share.door import Door
from penstock.gateway.share.elsewhere import CALLERS_PLACE, AskedByOthers, Elsewhere, is_whole
from penstock.gateway.share.roles import GroupRole
from penstock.gateway.share.static import StaticElection
from penstock.gateway.telemetry.exposition import Levels
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.workers.office import Office
from penstock.gateway.workers.relayed import FromWorkers
from penstock.http.server.server import Handler, HttpServer
from penstock.share.election import Election

CLOSE_TIMEOUT_S = 1.0  # for other gateways to take the end of an answer


class Sharing:
    """This gateway's part in the group."""

    def __init__(
        self,
        settings: Settings,
        office: Office,
        driver: Driver,
        *,
        app: Handler,
        operators: Handler,
        refuse: Refuse,
        metrics: Metrics,
        events: EventLog,
    ) -> None:
        share, is_apart = settings.share, settings.admin_address is not None  # operators have an address of their own
        port = SharePort(share)
        # Whoever asks there has asked another gateway: what this one says of the whole, it says itself.
        asked = FromWorkers(AskedByOthers(app, operators) if is_apart else app)
        self._questions = HttpServer(asked, settings_map.server_limits(settings), wall_clock=clock.wall)
        port.question = self._questions.adopt
        door = Door(port, office, events, address=share.place, now=driver.now)
        self.roles = GroupRole(
            *(share, office, election_of(share), door, events), now=driver.now, drains=lambda: driver.draining
        )
        dial, of_callers = Dialler(share), (lambda path: path == CALLERS_PLACE) if is_apart else is_whole
        self.handlers: tuple[Handler, Handler] = (
            Elsewhere(app, of_callers, dial, lambda: self.roles.leader, refuse),
            Elsewhere(operators, is_whole, dial, lambda: self.roles.leader, refuse),
        )
        metrics.add_sources(_levels(self.roles))

    def follow(self, settings: Settings) -> None:
        """Other settings."""
        self._questions.limits = settings_map.server_limits(settings)

    async def start(self) -> None:
        """Take part. OSError: the port is taken."""
        await self.roles.start()

    async def close(self) -> None:
        """Take part no more."""
        await self.roles.close()
        await self._questions.wait_closed(CLOSE_TIMEOUT_S)


def election_of(share: ShareSection) -> Election:
    """Who says which gateway decides."""
    if share.elect.static is not None:
        return StaticElection(share.elect.static, ours=share.place)
    from penstock.gateway.elect.choose import elector  # noqa: PLC0415 - and what its store needs

    return elector(share.elect, address=share.place, env=os.environ)


def _levels(roles: GroupRole) -> list[Levels]:
    rows: list[tuple[str, str, Callable[[], float]]] = [
        ("decides", "Whether this gateway decides, for all or alone.", lambda: roles.decides),
        ("alone", "Whether it decides alone, with its part of slots and limits.", lambda: roles.role == "alone"),
        ("gateways", "Gateways of the group, as last known.", lambda: roles.now().gateways),
        ("epoch", "The number of the decider that it follows; it grows with each.", lambda: roles.now().epoch),
    ]
    return [_level(f"penstock_share_{name}", text, value) for name, text, value in rows]


def _level(name: str, text: str, value: Callable[[], float]) -> Levels:
    return Levels(name, text, [], lambda: [((), float(value()))])
