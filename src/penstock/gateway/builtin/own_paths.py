"""The paths that Penstock answers itself: health, models, and a client's queue and use.

`/admin` and the files and batches have their own (`admin/routes.py`, `batch/api/routes.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

import penstock
from penstock.core.endpoints.roles import Role, one_sided
from penstock.core.explain.snapshot import ALL, Snapshot
from penstock.core.values.catalogue import AWAY, Reason
from penstock.engines.recognise import PENSTOCK
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.identity.caller import Caller, Key, Unauthorized
from penstock.gateway.identity.callers import Callers
from penstock.gateway.openai import errors
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.refusals import Refusals
from penstock.gateway.queueing import Queueing
from penstock.gateway.telemetry.exposition import Page
from penstock.gateway.telemetry.metrics import CONTENT_TYPE, Metrics
from penstock.http.server.server import Exchange, Header

if TYPE_CHECKING:
    from penstock.gateway.usage.own import OwnUse

MODEL = "/v1/models/"  # and its name
SHOW = "/api/show"
USAGE = "/usage"
#: Paths about models. With `identity.require_key` they take a key, and they show a key its models only.
_OF_MODELS = ("/v1/", "/api/tags", SHOW)
_ROOT = b"""This is Penstock, a gateway in front of LLM inference engines.

OpenAI's clients: the base URL is this address with /v1 behind it (POST /v1/chat/completions, GET /v1/models).
Anthropic's clients: the base URL is this address, without /v1.
What is served and what is missing: GET /ready. Where your requests stand in the queue: GET /queue.
What your tenant used, by month: GET /usage.
"""
_ROOT_OPERATORS = b"For operators: the page is at /admin/, metrics are at /metrics.\n"
#: Asked by load balancers, some of which send `OPTIONS` (HAProxy's `httpchk` without arguments does).
PROBED = frozenset({"/", "/health", "/healthz", "/livez", "/ready", "/readyz"})
METHODS = {**dict.fromkeys(PROBED, ("GET", "HEAD", "OPTIONS")), SHOW: ("POST",)}  #: where they are not GET and HEAD
BODY_BYTES_MAX = 4096  # of a query: ignored, but some clients send `{}`


class OwnPaths:
    """Answers them."""

    def __init__(
        self,
        *,
        driver: Driver,
        callers: Callers,
        catalog: Catalog,
        metrics: Metrics,
        refusals: Refusals,
        queueing: Callable[[], Queueing],
        operators_here: bool = True,
        own_use: Callable[[], OwnUse | None] = lambda: None,
    ) -> None:
        self._driver = driver
        self._callers = callers
        self._catalog = catalog
        self._page = Page(metrics.lines, driver.now)
        self._refuse = refusals.refuse
        self._request_id = refusals.request_id
        self._queueing = queueing
        self._own_use = own_use
        self._tasks: set[asyncio.Task[None]] = set()  # as many as have connections
        self._root_page = _ROOT + (_ROOT_OPERATORS if operators_here else b"")
        self._answers: dict[str, Callable[[Exchange], None]] = {
            "/": self._root,
            "/health": self._health,
            "/healthz": self._health,
            "/livez": self._health,
            "/ready": self._ready,
            "/readyz": self._ready,
            "/metrics": self._metrics_page,
            "/version": self._version,
            "/queue": self._of_caller,
            USAGE: self._of_caller,
            "/v1/models": self._models,
            "/api/version": self._ollama_version,
            "/api/tags": self._tags,
            "/api/show": self._show,
        }

    def owns(self, path: str) -> bool:
        return path in self._answers or path.startswith(MODEL)

    def begin(self, exchange: Exchange) -> int:
        """Refuse other methods, and clients that may not see the models. Returns the limit on the body."""
        methods = METHODS.get(exchange.target_path, ("GET", "HEAD"))
        if exchange.method not in methods:
            allow = ", ".join(methods).encode()
            self._refuse(exchange, Reason.METHOD_NOT_ALLOWED, extra=[(b"allow", allow)])
        elif exchange.target_path.startswith(_OF_MODELS):
            key = self._callers.key(exchange.lookup.get, exchange.repeats)
            if isinstance(key, Unauthorized):
                exchange.note = key
                self._refuse(exchange, key.reason, key.message)
            else:
                exchange.note = key
        return BODY_BYTES_MAX

    def complete(self, exchange: Exchange) -> None:
        self._answers.get(exchange.target_path, self._model)(exchange)

    def _root(self, exchange: Exchange) -> None:
        self._answer(exchange, 200, b"text/plain; charset=utf-8", self._root_page)

    def _health(self, exchange: Exchange) -> None:
        self._json(exchange, 200, {"status": "ok"})

    def _ready(self, exchange: Exchange) -> None:
        snapshot = self._driver.scheduler.snapshot(now=self._driver.now())
        unusable = (*AWAY, "refused_key")
        served = {model for e in snapshot.endpoints if e.state not in unusable for model in (e.models or ())}
        known = {model for e in snapshot.endpoints for model in (e.models or ())}
        draining = self._driver.leaving or snapshot.draining or ALL in snapshot.drained
        self._json(
            exchange,
            503 if draining else 200,
            {
                "status": "draining" if draining else "ready",
                "queueing": self._queueing(),
                "models": sorted(served),
                "missing": {
                    "models": sorted(known - served),
                    "endpoints": [e.name for e in snapshot.endpoints if e.state in unusable or e.models is None],
                    **_roles_missing(snapshot),
                },
                "states": {e.name: e.state for e in snapshot.endpoints if e.state != "up"},
            },
        )

    def _of_caller(self, exchange: Exchange) -> None:
        """Answer a caller about itself, or show a browser the page that asks."""
        header = exchange.lookup.get
        if b"text/html" in (header(b"accept") or b"").lower():
            from penstock.gateway.builtin.queue import queue_page  # noqa: PLC0415 - few clients look

            page = queue_page()
            exchange.respond(200, page.headers, page.body)
            return
        key = self._callers.key(header, exchange.repeats)
        caller = self._callers.identify(key, header, exchange.peer[0], client=exchange.client, now=self._driver.now())
        if isinstance(caller, Unauthorized):
            exchange.note = caller
            self._refuse(exchange, caller.reason, caller.message)
        elif exchange.target_path == USAGE or exchange.query == "usage=today":
            asked = self._own_usage if exchange.target_path == USAGE else self._queue_and_use
            task = asyncio.get_running_loop().create_task(asked(exchange, caller))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._json(exchange, 200, self._own_queue(caller), no_store=True)

    async def _own_usage(self, exchange: Exchange, caller: Caller) -> None:
        from penstock.gateway.usage.own import answer_use  # noqa: PLC0415

        await answer_use(exchange, self._own_use(), caller)

    async def _queue_and_use(self, exchange: Exchange, caller: Caller) -> None:
        uses = self._own_use()
        use = None if uses is None else await uses.today(caller)
        self._json(exchange, 200, {**self._own_queue(caller), "usage": use}, no_store=True)

    def _own_queue(self, caller: Caller) -> dict[str, object]:
        from penstock.gateway.builtin.queue import own_queue  # noqa: PLC0415

        return own_queue(self._driver, caller, self._callers.own_accounts)

    def _metrics_page(self, exchange: Exchange) -> None:
        self._page.ask(lambda page: self._answer(exchange, 200, CONTENT_TYPE.encode(), page))

    def _version(self, exchange: Exchange) -> None:
        self._json(exchange, 200, {"version": penstock.__version__, "name": PENSTOCK})

    def _models(self, exchange: Exchange) -> None:
        self._json(exchange, 200, {"object": "list", "data": self._entries(exchange)})

    def _entries(self, exchange: Exchange) -> list[dict[str, object]]:
        """Returns the models that the key, if any, may use."""
        return [entry for entry in self._catalog.entries() if _may_use(exchange, str(entry["id"]))]

    def _ollama_version(self, exchange: Exchange) -> None:
        from penstock.gateway.builtin import ollama  # noqa: PLC0415 - no start needs it

        self._json(exchange, 200, ollama.VERSION)

    def _tags(self, exchange: Exchange) -> None:
        from penstock.gateway.builtin import ollama  # noqa: PLC0415 - no start needs it

        self._json(exchange, 200, {"models": [ollama.tag(entry) for entry in self._entries(exchange)]})

    def _show(self, exchange: Exchange) -> None:
        from penstock.gateway.builtin import ollama  # noqa: PLC0415 - no start needs it

        model = ollama.model_asked(exchange.body)
        if not model:
            self._refuse(exchange, Reason.BAD_REQUEST, ollama.NO_MODEL)
            return
        found = filter(None, map(self._catalog.entry, ollama.names(model)))
        entry = next((e for e in found if _may_use(exchange, model) or _may_use(exchange, str(e["id"]))), None)
        if entry is None:
            self._refuse(exchange, Reason.MODEL_NOT_FOUND, errors.model_not_found(model))
        else:
            self._json(exchange, 200, ollama.show(entry))

    def _model(self, exchange: Exchange) -> None:
        name = unquote(exchange.target_path.removeprefix(MODEL))
        entry = self._catalog.entry(name)
        if entry is None or not _may_use(exchange, name):
            self._refuse(exchange, Reason.MODEL_NOT_FOUND, errors.model_not_found(name), param="model")
        else:
            self._json(exchange, 200, entry)

    def _json(self, exchange: Exchange, status: int, value: object, *, no_store: bool = False) -> None:
        extra = [(b"cache-control", b"no-store"), (b"vary", b"accept")] if no_store else []
        self._answer(exchange, status, b"application/json", msgspec.json.encode(value), extra)

    def _answer(
        self, exchange: Exchange, status: int, content_type: bytes, body: bytes, extra: Sequence[Header] = ()
    ) -> None:
        headers = [(b"content-type", content_type), (b"x-request-id", self._request_id(exchange)), *extra]
        exchange.respond(status, headers, body)


def _may_use(exchange: Exchange, model: str) -> bool:
    """Whether the key that `begin` found, if any, may use a model."""
    key = exchange.note
    return not isinstance(key, Key) or key.rights is None or key.rights.allows(model)


def _roles_missing(snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """Returns models with endpoints of only one role in service; empty without roles."""
    roles: dict[str, list[Role]] = {}
    for e in snapshot.endpoints:
        for model in (e.models or ()) if e.state not in AWAY else ():
            roles.setdefault(model, []).append(Role(e.role))
    missing = one_sided(roles)
    return {"roles": missing} if missing else {}
