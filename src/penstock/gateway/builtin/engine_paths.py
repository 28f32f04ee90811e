"""`/engines`, `/sleep`, `/wake_up`, `/is_sleeping`: engines by their names, as production-stack's router has them.

`?id=` is an endpoint's name. Any client may look; putting an engine to sleep or waking it affects everybody, so it
needs the admin token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import msgspec

from penstock.core.values.catalogue import Reason
from penstock.gateway.admin.auth import AdminAuth
from penstock.gateway.builtin.operators_app import ENGINE_PATHS
from penstock.gateway.identity.caller import Unauthorized
from penstock.gateway.identity.callers import Callers
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.refusals import Refusals
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import UpstreamException
from penstock.http.server.server import Exchange

logger = logging.getLogger(__name__)

ENGINES = "/engines"
VERBS = {"/sleep": "POST", "/wake_up": "POST", "/is_sleeping": "GET"}
BODY_BYTES_MAX = 1 << 16  # vLLM reads none; passed on anyway
ANSWER_BYTES_MAX = 1 << 16
TIMEOUT_S = 300.0  # to move a large model's weights takes a minute
FIELDS_MAX = 20  # of the query
_UNREAD: dict[bytes, bytes] = {b"content-type": b"application/json"}


class EnginePaths:
    """Answers them."""

    def __init__(
        self,
        *,
        driver: Driver,
        callers: Callers,
        targets: Mapping[str, Target],
        auth: AdminAuth,
        refusals: Refusals,
    ) -> None:
        self._driver = driver
        self._callers = callers
        self._targets = targets
        self._auth = auth
        self._refuse = refusals.refuse
        self._request_id = refusals.request_id
        self._tasks: set[asyncio.Task[None]] = set()  # as many as have connections

    @staticmethod
    def owns(path: str) -> bool:
        return path in ENGINE_PATHS

    def begin(self, exchange: Exchange) -> int:
        """Refuse unauthorised requests. Returns the limit on the body."""
        path = exchange.target_path
        method = VERBS.get(path, "GET")
        if exchange.method != method and (exchange.method, method) != ("HEAD", "GET"):
            self._refuse(exchange, Reason.METHOD_NOT_ALLOWED, extra=[(b"allow", method.encode())])
        elif method == "POST":
            denied = self._auth.denied(exchange, writes=True)
            if denied is not None:
                self._refuse(exchange, denied.reason, denied.message)
        else:
            key = self._callers.key(exchange.lookup.get, exchange.repeats)
            if isinstance(key, Unauthorized):
                exchange.note = key
                self._refuse(exchange, key.reason, key.message)
        return BODY_BYTES_MAX

    def complete(self, exchange: Exchange) -> None:
        if exchange.target_path == ENGINES:
            self._json(exchange, 200, self._engines())
            return
        try:
            query = parse_qsl(exchange.query, keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError:
            self._refuse(exchange, Reason.BAD_REQUEST, "The query has too many fields.")
            return
        names = [value for key, value in query if key == "id"]
        target = self._targets.get(names[0]) if len(names) == 1 else None
        if len(names) != 1:
            self._refuse(exchange, Reason.BAD_REQUEST, "One engine has to be named: `?id=`, as /engines lists it.")
        elif target is None:
            self._refuse(exchange, Reason.ENDPOINT_NOT_FOUND, "No engine has this id; /engines lists them.", param="id")
        else:
            rest = urlencode([(key, value) for key, value in query if key != "id"])
            path = f"{exchange.target_path}?{rest}" if rest else exchange.target_path
            task = asyncio.get_running_loop().create_task(self._ask(exchange, names[0], target, path))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _engines(self) -> list[dict[str, object]]:
        snapshot = self._driver.scheduler.snapshot(now=self._driver.now())
        return [
            {"engine_id": e.name, "serving_models": e.models or [], "created": self._targets[e.name].created_s}
            for e in snapshot.endpoints
            if e.name in self._targets
        ]

    async def _ask(self, exchange: Exchange, name: str, target: Target, path: str) -> None:
        headers = [*target.own_headers(), (b"x-request-id", self._request_id(exchange)), *_UNREAD.items()]
        try:
            answer = await target.upstream.fetch(
                exchange.method.replace("HEAD", "GET"),
                path,
                headers=headers,
                body=exchange.body,
                timeout_s=TIMEOUT_S,
                bytes_max=ANSWER_BYTES_MAX,
            )
        except UpstreamException as failure:
            self._refuse(exchange, Reason.UPSTREAM_ERROR, f"Engine `{name}` gave no answer: {failure.error.detail}.")
            return
        if target.unreachable is not None and exchange.method == "POST":
            target.unreachable()  # it is looked at now, and not only when its turn comes
        verb = exchange.target_path.strip("/")
        if not 200 <= answer.status < 300:
            hint = " It has to be started with --enable-sleep-mode." if answer.status == 404 else ""
            self._refuse(exchange, Reason.UPSTREAM_ERROR, f"Engine `{name}` answers {verb} {answer.status}.{hint}")
        elif exchange.method == "POST":
            logger.info("endpoint %s: %s, asked for by %s", name, verb, exchange.client)
            self._json(exchange, answer.status, {"status": "success"})
        else:
            self._answer(exchange, answer.status, answer.body)

    def _json(self, exchange: Exchange, status: int, value: object) -> None:
        self._answer(exchange, status, msgspec.json.encode(value))

    def _answer(self, exchange: Exchange, status: int, body: bytes) -> None:
        headers = [(b"content-type", b"application/json"), (b"x-request-id", self._request_id(exchange))]
        exchange.respond(status, headers, body)
