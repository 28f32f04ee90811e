"""How does an item of a batch become a request? As a request from inside: its exchange has no connection.

The item goes the way of every other request: its body is read the same way, and fairness, routing, retries and
accounting are the same. Only its answer is kept here, up to a bound, instead of going out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.batch.dispatch_port import ItemAnswer, Work
from penstock.core.values.actions import Dispatch, Requeue
from penstock.core.values.request import Usage
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.identity import rights
from penstock.gateway.identity.caller import Caller
from penstock.gateway.identity.callers import Callers
from penstock.gateway.openai.answers.usage import read_usage
from penstock.gateway.openai.errors import Api
from penstock.gateway.openai.routes import ROUTES
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.journey import QueuedJourney
from penstock.http.server.server import Exchange, Header

ANSWER_BYTES_MAX = 16 << 20  # an answer of 100,000 tokens has half a megabyte, an image has some megabytes
_HEADERS: tuple[Header, ...] = ((b"content-type", b"application/json"),)


class ItemExchange(Exchange):
    """A request from inside, which keeps its answer."""

    __slots__ = ("_ended", "_ended_fn", "_pieces", "_reason", "_retry_after_s", "_sent_fn", "_size", "caller")

    def __init__(
        self, work: Work, caller: Caller, sent: Callable[[bool], None], ended: Callable[[ItemAnswer], None]
    ) -> None:
        super().__init__(("", 0))
        self.method = "POST"
        self.target_path = work.path
        self.headers = [*_HEADERS, (b"x-request-id", work.name.encode())]
        self.lookup = dict(self.headers)
        self.body = work.body
        self.caller = caller
        self._sent_fn = sent
        self._ended_fn = ended
        self._ended = False
        self._reason: str | None = None
        self._retry_after_s: float | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    # --- from the journey -------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self._ended

    def sent(self, *, sent: bool) -> None:
        self._sent_fn(sent)

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        self.start(status, headers, length=len(body))
        self.write(body)
        self.end()

    def start(self, status: int, headers: Sequence[Header], *, length: int | None) -> None:  # noqa: ARG002
        self.status = status
        for name, value in headers:
            lower = name.lower()
            if lower == b"x-penstock-reason":
                self._reason = value.decode("latin-1")
            elif lower == b"retry-after" and value.isdigit():
                self._retry_after_s = float(value)

    def write(self, data: bytes) -> None:
        if self._ended:
            return
        self._size += len(data)
        if self._size <= ANSWER_BYTES_MAX:
            self._pieces.append(data)
            return
        hang_up = self.on_disconnect
        if hang_up is not None:
            hang_up()
        self._finish(too_large=True)

    def end(self) -> None:
        self._finish()

    def abort(self) -> None:
        """The answer broke off; the part received is dropped."""
        self.status, self._reason = 502, self._reason or "stream_broken"
        self._pieces = [b'{"error":{"message":"The engine\'s answer broke off.","type":"server_error","param":null,']
        self._pieces.append(b'"code":"stream_broken"}}')
        self._finish()

    def let_go(self) -> None:
        """The runner itself counts an item's bytes."""

    def _finish(self, *, too_large: bool = False) -> None:
        if self._ended:
            return
        self._ended = True
        body = b"" if too_large else b"".join(self._pieces)
        self._pieces = []
        usage: Usage | None = read_usage(body) if self.status < 400 else None
        name = self.lookup[b"x-request-id"].decode()
        self.on_disconnect = self.on_pause = self.on_resume = None
        self._ended_fn(ItemAnswer(self.status, body, name, usage, self._reason, self._retry_after_s, too_large))

    # --- from the runner --------------------------------------------------------------------------------------

    def withdraw(self) -> None:
        hang_up, self._ended = self.on_disconnect, True
        if hang_up is not None:
            hang_up()
        self._pieces = []


class ItemJourney(QueuedJourney):
    """A journey that notifies its item when it leaves the queue and when it returns there."""

    __slots__ = ()

    def dispatched(self, action: Dispatch, /) -> None:
        assert isinstance(self.exchange, ItemExchange)
        self.exchange.sent(sent=True)
        super().dispatched(action)

    def requeued(self, action: Requeue, /) -> None:
        assert isinstance(self.exchange, ItemExchange)
        self.exchange.sent(sent=False)
        super().requeued(action)


class GatewayPort:
    """The `DispatchPort` of a gateway: submits items as requests of the gateway itself."""

    def __init__(
        self,
        *,
        submit: Callable[[Exchange, Caller, type[QueuedJourney]], None],
        driver: Driver,
        callers: Callers,
        catalog: Catalog,
        decides: Callable[[], bool],
    ) -> None:
        self._submit = submit
        self._driver = driver
        self._callers = callers
        self._catalog = catalog
        self._decides = decides

    @property
    def decides(self) -> bool:
        return self._decides()

    def offer(self, work: Work, *, sent: Callable[[bool], None], ended: Callable[[ItemAnswer], None]) -> ItemExchange:
        caller = self._callers.inside(work.tenant, work.user, self._driver.now(), rights.read(work.rights))
        exchange = ItemExchange(work, caller, sent, ended)
        self._submit(exchange, caller, ItemJourney)
        return exchange

    def room(self, tenant: str, user: str, model: str) -> int:
        now = self._driver.now()
        caller = self._callers.inside(tenant, user, now)
        return self._driver.scheduler.room(self._served(model), caller.account, caller.band, now=now)

    def serves(self, model: str) -> bool:
        split, now = self._catalog.split(model), self._driver.now()
        names = (model,) if split is None else split.weights
        return any(self._driver.scheduler.knows(name, now=now) is not False for name in names)

    def _served(self, model: str) -> str:
        """The engines' name of a model, which may be an alias."""
        return self._catalog.aliases.get(model, model)

    def takes(self, path: str) -> bool:
        ways = ROUTES.get(path)  # a path of the settings may be gone when a batch goes on after a restart
        return (
            ways is not None
            and not ways["POST"].free
            and ways["POST"].api is Api.OPENAI
            and not path.startswith(("/v1/audio/", "/v1/images/"))
        )
