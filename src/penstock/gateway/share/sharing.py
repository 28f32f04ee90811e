"""What a gateway of a group has beside what any gateway has, put together: its port, its links, its role."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import clock
from penstock.config.model import Settings
from penstock.config.problems import ConfigError, Problem
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
from penstock.gateway.share.words import OperatorWords
from penstock.gateway.telemetry.exposition import Levels
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.workers.office import Office
from penstock.gateway.workers.relayed import FromWorkers
from penstock.http.server.server import Handler, HttpServer
from penstock.share.election import Election

if TYPE_CHECKING:
    from penstock.gateway.budgets.together import Together

APART = (
    "penstock_share_budgets_apart",
    "Whether the budgets that other groups have too can't be reached, so that a part of each is used here.",
)
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
        words: OperatorWords,
    ) -> None:
        share, is_apart = settings.share, settings.admin_address is not None  # operators have an address of their own
        port = SharePort(share)
        # Whoever asks there has asked another gateway: what this one says of the whole, it says itself.
        asked = FromWorkers(AskedByOthers(app, operators) if is_apart else app)
        self._questions = HttpServer(asked, settings_map.server_limits(settings), wall_clock=clock.wall)
        port.question = self._questions.adopt
        door = Door(port, office, events, address=share.place, now=driver.now)
        self.roles = GroupRole(
            *(share, office, election_of(share), door, events),
            words=words,
            now=driver.now,
            drains=lambda: driver.draining,
        )
        dial, of_callers = Dialler(share), (lambda path: path == CALLERS_PLACE) if is_apart else is_whole
        self.handlers: tuple[Handler, Handler] = (
            Elsewhere(app, of_callers, dial, lambda: self.roles.leader, refuse),
            Elsewhere(operators, is_whole, dial, lambda: self.roles.leader, refuse),
        )
        self._budgets = budgets_of(share, driver, decides=lambda: self.roles.role == "leads")
        if self._budgets is not None:
            self.roles.beside = self._budgets.why_apart
        metrics.add_sources([*_levels(self.roles), _level(*APART, self._apart)])

    def follow(self, settings: Settings) -> None:
        """Other settings."""
        self._questions.limits = settings_map.server_limits(settings)

    async def start(self) -> None:
        """Take part. OSError: the port is taken."""
        await self.roles.start()
        if self._budgets is not None:
            self._budgets.start()

    async def close(self) -> None:
        """Take part no more."""
        if self._budgets is not None:
            await self._budgets.close()
        await self.roles.close()
        await self._questions.wait_closed(CLOSE_TIMEOUT_S)

    def _apart(self) -> float:
        return self._budgets is not None and self._budgets.apart


def budgets_of(share: ShareSection, driver: Driver, *, decides: Callable[[], bool]) -> Together | None:
    """What keeps tenants' budgets with other groups; None where nothing is kept with others."""
    if share.budgets.valkey is None:
        return None
    from penstock.gateway.budgets.together import Together  # noqa: PLC0415
    from penstock.gateway.budgets.valkey_budgets import ValkeyBudgets  # noqa: PLC0415

    valkey = share.budgets.valkey
    try:
        bank = ValkeyBudgets(
            valkey.url.get_secret_value(), valkey.key, id_=secrets.token_hex(8), ca_file=valkey.ca_file
        )
    except (ValueError, OSError) as error:
        raise ConfigError([Problem("share.budgets.valkey.url", str(error))]) from None
    return Together(driver.scheduler, bank, decides=decides)


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
