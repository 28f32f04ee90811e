"""A gateway of more than one process, put together: the table of edges, the workers, and its part in a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock import clock
from penstock.config.model import Settings
from penstock.gateway import settings_map
from penstock.gateway.admin.routes import AdminError, answer
from penstock.gateway.cluster.edge_table import Table
from penstock.gateway.cluster.forwarding import ForwardingApp, GroupPaths, is_callers_of_group, is_of_group
from penstock.gateway.cluster.listener import Dialler, GroupListener
from penstock.gateway.cluster.operator_orders import OperatorOrders
from penstock.gateway.cluster.role import GroupNow, GroupRole
from penstock.gateway.cluster.supervisor import Supervisor
from penstock.gateway.elect.choose import election_of
from penstock.gateway.telemetry.exposition import Levels
from penstock.http.server.server import Exchange, Handler, HttpServer
from penstock.share.messages import Leave

if TYPE_CHECKING:
    from penstock.gateway.bootstrap import Parts

CLOSE_TIMEOUT_S = 1.0  # for other gateways to take the end of an answer
WORKERS_TIMEOUT_S = 2.0  # for workers to end, beyond the time for their clients


class GatewayCluster:
    """Owns the edges, the workers' processes and the group's port."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self.table = Table(
            settings,
            driver=parts.driver,
            endpoints=parts.endpoints,
            catalog=parts.catalog,
            affinities=parts.affinities,
            metrics=parts.metrics,
            events=parts.events,
        )
        self._supervisor = Supervisor(self.table, settings, parts.events)
        self.group: Group | None = None
        self.handlers: tuple[Handler, Handler] = ForwardingApp(parts.app), parts.operators_app
        if settings.share.enabled:
            self.group = group = Group(settings, self.table, parts)
            self.handlers = ForwardingApp(group.handlers[0]), group.handlers[1]

    @property
    def decides(self) -> bool:
        """Returns True if the decider of what comes here is in this process."""
        return self.group is None or self.group.role.decides

    @property
    def port(self) -> int:
        """The port that workers serve."""
        return self._supervisor.port

    def group_now(self) -> GroupNow | None:
        """Returns the status of the group; None without one."""
        return None if self.group is None else self.group.role.now()

    def follow(self, settings: Settings) -> None:
        """Follow other settings."""
        self.table.follow(settings)
        if self.group is not None:
            self.group.questions.limits = settings_map.server_limits(settings)

    async def bind(self, host: str, port: int, backlog: int) -> str:
        """Listen, and return the socket at which workers ask this process. OSError: the address is taken."""
        await self._supervisor.bind(host, port, backlog)
        return self._supervisor.relay

    async def start(self) -> None:
        """Take part in the group, and start the workers. OSError: the text names the part that cannot start."""
        self.table.start()
        if self.group is not None:
            try:
                await self.group.start()
            except OSError as error:
                raise OSError(None, f"share.listen: {error.strerror or error}") from None
        await self._supervisor.start()

    def leave(self, idle_s: float) -> None:
        """Serve clients on, each on a connection that closes then, or when it was idle for another `idle_s`."""
        self.table.tell_workers(Leave(idle_s))

    def drain(self, queue_s: float) -> None:
        """Let nothing new in. In a group another gateway goes on to decide; requests queued here end by `queue_s`."""
        if self.group is not None:
            self.group.role.step_down()
        self._supervisor.drain(None if self.group is None else queue_s)

    async def close(self, timeout_s: float) -> None:
        """Stop everything that was started; `timeout_s` is for clients to take what was answered."""
        await self._supervisor.close(timeout_s + WORKERS_TIMEOUT_S)
        if self.group is not None:
            await self.group.close()
        self.table.close()


class Group:
    """This gateway's part in its group: its port and its role."""

    def __init__(self, settings: Settings, table: Table, parts: Parts) -> None:
        app, operators, driver = parts.app, parts.operators_app, parts.driver
        share, is_apart = settings.share, settings.admin_address is not None  # operators have an address of their own
        # A question from another gateway is answered here, never passed on.
        asked = ForwardingApp(app, operators if is_apart else None)
        self.questions = HttpServer(asked, settings_map.server_limits(settings), wall_clock=clock.wall)
        dial, listener = Dialler(share), GroupListener(share, edge=table.came, question=self.questions.adopt)
        self.role = role = GroupRole(
            *(share, table, election_of(share), listener, dial),
            events=parts.events,
            orders=OperatorOrders(driver, parts.endpoints, parts.orders),
            now=driver.now,
            drains=lambda: driver.draining,
        )
        refuse = app.refusals.refuse
        of_callers = is_callers_of_group if is_apart else is_of_group
        self.handlers: tuple[Handler, Handler] = (
            GroupPaths(app, of_callers, dial, lambda: role.leader, refuse),
            GroupPaths(operators, is_of_group, dial, lambda: role.leader, refuse),
        )
        parts.metrics.add_sources(
            [
                _level("decides", "Whether this gateway decides, for all or alone.", lambda: role.decides),
                _level("alone", "Whether it decides alone, with its part of slots and limits.", self._is_alone),
                _level("gateways", "Gateways of the group, as last known.", lambda: role.gateways),
                _level("epoch", "The number of the decider that it follows; it grows with each.", lambda: role.epoch),
            ]
        )

    async def start(self) -> None:
        """Take part. OSError: the port is taken."""
        await self.role.start()

    async def close(self) -> None:
        """Take part no longer."""
        await self.role.close()
        await self.questions.wait_closed(CLOSE_TIMEOUT_S)

    def steps_down(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        """`POST /admin/decider/step-down`: let another gateway of the group decide."""
        if why := self.role.step_down():
            raise AdminError(409, "conflict", why)
        answer(exchange, {"decides": False})

    def _is_alone(self) -> bool:
        return self.role.role == "alone"


def _level(name: str, text: str, value: Callable[[], float]) -> Levels:
    return Levels(f"penstock_share_{name}", text, [], lambda: [((), float(value()))])
