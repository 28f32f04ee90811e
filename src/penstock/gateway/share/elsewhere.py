"""What is asked of the group as a whole is answered by the gateway that decides: how does the question get there?

Over the port that gateways have for each other, greeted as an edge is, then as HTTP: one connection for each question.
What concerns this gateway alone stays here: `/metrics`, `/ready`, a reload of its own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.values.catalogue import Reason
from penstock.gateway.builtin.operators import is_operators
from penstock.gateway.builtin.paths import Refuse
from penstock.gateway.share.dial import QUESTION, Dialler
from penstock.gateway.workers.relayed import RelayedQuestion
from penstock.http.server.server import Handler, Header, Refusal, SocketExchange

if TYPE_CHECKING:
    import asyncio

CALLERS_PLACE = "/queue"
_WHOLE = (CALLERS_PLACE, "/autoscale", "/admin")
_PREFIXES = ("/autoscale/", "/admin/")
_OWN = ("/admin/reload",)  # of this gateway, whoever decides


def is_whole(path: str) -> bool:
    """Whether a path is about the group, and so for the gateway that decides."""
    return path not in _OWN and (path in _WHOLE or path.startswith(_PREFIXES))


class Elsewhere:
    """Stands before an app: asks the decider what `asks` says of a path, or lets the app answer."""

    def __init__(
        self,
        app: Handler,
        asks: Callable[[str], bool],
        dial: Dialler,
        leader: Callable[[], str | None],
        refuse: Refuse,
    ) -> None:
        self._app = app
        self._asks = asks
        self._dial = dial
        self._leader = leader
        self._refuse = refuse
        self._open: set[RelayedQuestion] = set()  # as many as there are connections

    def begin(self, exchange: SocketExchange) -> int | None:
        leader = self._leader()
        if leader is None or not self._asks(exchange.target_path):
            return self._app.begin(exchange)
        question = RelayedQuestion(exchange, self._failed, self._open.discard)
        self._open.add(question)
        question.ask(partial(self._connect, leader))
        return None

    def complete(self, exchange: SocketExchange) -> None:
        if isinstance(exchange.note, RelayedQuestion):
            exchange.note.whole()
        else:
            self._app.complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        return self._app.refused(exchange, refusal, detail)

    async def _connect(self, leader: str, protocol: asyncio.Protocol) -> None:
        transport, came = await self._dial(leader, QUESTION)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if came:
            protocol.data_received(came)
        if not transport.is_closing():
            transport.resume_reading()

    def _failed(self, exchange: SocketExchange) -> None:
        if exchange.started:
            exchange.abort()
        else:
            self._refuse(exchange, Reason.OVERLOAD, "The gateway that decides can't be asked at this moment.")


class AskedByOthers:
    """What another gateway asks, where operators have an address of their own: each path where it is served here."""

    def __init__(self, app: Handler, operators: Handler) -> None:
        self._app = app
        self._operators = operators

    def begin(self, exchange: SocketExchange) -> int | None:
        return self._of(exchange).begin(exchange)

    def complete(self, exchange: SocketExchange) -> None:
        self._of(exchange).complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        return self._app.refused(exchange, refusal, detail)

    def _of(self, exchange: SocketExchange) -> Handler:
        return self._operators if is_operators(exchange.target_path) else self._app
