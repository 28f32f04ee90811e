"""The paths under /admin: a table of routes, and their common parts.

A route is a method, a path whose `{…}` parts are names, its access, and a function that answers. The head decides
whether a request is served at all (path, method, token); only then its body is read. Handlers may raise `AdminError`;
it is answered in the shape of all errors. `verbs.py` and others add their routes to a table; `proxy/app.py` asks it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from urllib.parse import unquote

import msgspec

from penstock.batch.store.port import StoreError
from penstock.config.load import ConfigError, from_mapping
from penstock.config.model import Settings
from penstock.core.values.catalogue import Reason
from penstock.gateway.admin.auth import AdminAuth, Denied
from penstock.gateway.builtin.operators_app import is_admin
from penstock.gateway.openai import errors
from penstock.http.server.server import Exchange, Header

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = 1 << 16  # a thousand models' names; read on the event loop in two milliseconds
MEMBERS_MAX = 64  # of a body's object: each problem is reported, at some microseconds each
LATE_MAX = 256  # refusals that are held back at a time, each a connection and its timer; further ones go out at once

# Names in answers are callers' own: no browser shall take them for anything but text.
UNKEPT: list[Header] = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]

Audit = Callable[[str, str, str, Mapping[str, object], str | None], None]  # operator, method, path, body, refusal
#: One that has to wait returns a coroutine, which runs as a task.
Handler = Callable[[Exchange, Mapping[str, str]], Coroutine[None, None, None] | None]


class AdminError(Exception):
    """A refusal with a status of its own. `code` is a word for programs, the message a sentence for people."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class _Route(msgspec.Struct, frozen=True):
    parts: tuple[str, ...]
    handler: Handler
    writes: bool
    public: bool
    full: bool  #: needs the token for everything


class AdminRoutes:
    """The table, and the way through it."""

    def __init__(self, auth: AdminAuth, audit: Audit | None = None) -> None:
        self.auth = auth
        self._audit = audit
        self._routes: dict[str, list[_Route]] = {}  # by method
        self._late = 0
        self._tasks: set[asyncio.Task[None]] = set()  # as many as have connections

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        writes: bool | None = None,
        public: bool = False,
        full: bool = False,
    ) -> None:
        """Serve a path. All but GET change something, unless `writes` is given.

        `public`: it shows nothing of the gateway, so it needs no token. `full`: a token that only reads is not enough.
        """
        changes = method != "GET" if writes is None else writes
        route = _Route(_split(path), handler, changes, public, full or changes)
        self._routes.setdefault(method, []).append(route)

    def absent(self, method: str, path: str, why: str) -> None:
        """Answer a path of a part that is off with 409 and the reason."""

        def refuse(_: Exchange, __: Mapping[str, str]) -> None:
            raise AdminError(409, "conflict", why)

        self.add(method, path, refuse)

    def who(self, exchange: Exchange) -> str:
        """Return the operator's name, if its token has one, and its address."""
        name = self.auth.operator(exchange)
        return f"{name}, {exchange.client}" if name else exchange.client

    @staticmethod
    def owns(path: str) -> bool:
        return is_admin(path)

    def begin(self, exchange: Exchange) -> int:
        """Refuse by the head, if it is not to be served. Returns the limit on the body."""
        method = "GET" if exchange.method == "HEAD" else exchange.method
        found = self._find(method, exchange.target_path)
        if found is None:
            allowed = [m for m in self._routes if self._find(m, exchange.target_path) is not None]
            denied = self.auth.denied(exchange, writes=False)
            if denied is not None:  # without access nothing is shown of the paths
                self._refuse(exchange, denied)
            elif allowed:
                takes = ", ".join(allowed)
                message = errors.wrong_method(exchange.method, takes)
                _deny(exchange, Reason.METHOD_NOT_ALLOWED, message, extra=[(b"allow", takes.encode())])
            else:
                _deny(exchange, Reason.PATH_NOT_FOUND)
            return 0
        denied = self.auth.denied(exchange, writes=found[0].full, public=found[0].public)
        if denied is not None:
            self._refuse(exchange, denied)
            return 0
        return BODY_BYTES_MAX

    def _refuse(self, exchange: Exchange, denied: Denied) -> None:
        """At once, or late: then `complete` has it, once all of the request is here. No body is waited for."""
        has_body = exchange.header(b"content-length") not in (None, b"0") or exchange.header(b"transfer-encoding")
        if denied.delay_s and not has_body and self._late < LATE_MAX:
            exchange.note = denied
        else:
            _deny(exchange, denied.reason, denied.message, denied.retry_after_s)

    def _answer_late(self, exchange: Exchange, denied: Denied) -> None:
        def answer_now() -> None:
            self._late -= 1
            _deny(exchange, denied.reason, denied.message, denied.retry_after_s)

        self._late += 1
        asyncio.get_running_loop().call_later(denied.delay_s, answer_now)

    def complete(self, exchange: Exchange) -> None:
        """Serve a request that `begin` let through."""
        if isinstance(exchange.note, Denied):
            self._answer_late(exchange, exchange.note)
            return
        found = self._find("GET" if exchange.method == "HEAD" else exchange.method, exchange.target_path)
        assert found is not None, "begin refuses unknown paths"
        route, names = found
        ended = self._ended(exchange, route)
        try:
            work = route.handler(exchange, names)
        except AdminError as error:
            ended(error)
            return
        if work is None:
            ended(None)
            return
        task = asyncio.get_running_loop().create_task(_serve(exchange, work, ended, writes=route.writes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, exchange: Exchange, route: _Route) -> Callable[[AdminError | None], None]:
        """Returns a function to call at the end of a request: it answers its error, if any, and notes a change."""
        by, method, path = self.who(exchange), exchange.method, unquote(exchange.target_path)
        said = _said(exchange) if route.writes else {}

        def ended(error: AdminError | None) -> None:
            if error is not None:
                answer_error(exchange, error)
            if route.writes and self._audit is not None:
                self._audit(by, method, path, said, None if error is None else error.code)

        return ended

    def _find(self, method: str, path: str) -> tuple[_Route, dict[str, str]] | None:
        parts = _split(path)
        for route in self._routes.get(method, ()):
            names = _match(route.parts, parts)
            if names is not None:
                return route, names
        return None


async def _serve(
    exchange: Exchange, work: Coroutine[None, None, None], ended: Callable[[AdminError | None], None], *, writes: bool
) -> None:
    try:
        await work
    except AdminError as error:
        ended(error)
    except StoreError as error:
        what = "Nothing was changed" if writes else "The store can't be read"
        ended(AdminError(503, "store_down", f"{what}: {error}"))
    except Exception:
        logger.exception("unexpected error at %s %s", exchange.method, exchange.target_path)
        ended(AdminError(500, "internal_error", "It failed; see the log."))
    else:
        ended(None)


def settings_of(document: Mapping[str, object], place: str) -> Settings:
    """Returns settings that an operator sent, by the rules of the file. Raises AdminError, without `place` in it."""
    try:
        return from_mapping(document)
    except ConfigError as error:
        lines = [problem.line().removeprefix(f"{place}.") for problem in error.problems]
        raise AdminError(400, "bad_request", "; ".join(lines)) from None


def _said(exchange: Exchange) -> Mapping[str, object]:
    try:
        return body_of(exchange)
    except AdminError:
        return {}


def body_of(exchange: Exchange) -> dict[str, object]:
    """The JSON object in a request's body; empty if nothing was sent."""
    if not exchange.body.strip():
        return {}
    try:
        value = msgspec.json.decode(exchange.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise AdminError(400, Reason.BAD_REQUEST, "The body is not JSON.") from None
    if not isinstance(value, dict):
        raise AdminError(400, Reason.BAD_REQUEST, "The body has to be a JSON object.")
    if len(value) > MEMBERS_MAX:
        raise AdminError(400, Reason.BAD_REQUEST, f"The body has {len(value)} members; {MEMBERS_MAX} are read at most.")
    return value


def answer(exchange: Exchange, value: object, status: int = 200, *, extra: list[Header] | None = None) -> None:
    """Answer with JSON that nobody keeps."""
    headers = [(b"content-type", b"application/json"), *UNKEPT, *(extra or ())]
    exchange.respond(status, headers, msgspec.json.encode(value))


def answer_error(exchange: Exchange, error: AdminError, **more: object) -> None:
    """Answer with a refusal, in the shape of all errors; `more` stands beside it."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    answer(exchange, {"error": body, **more}, error.status, extra=[(b"x-penstock-reason", error.code.encode())])


def _deny(
    exchange: Exchange,
    reason: Reason,
    message: str | None = None,
    retry_after_s: float | None = None,
    *,
    extra: list[Header] | None = None,
) -> None:
    status, headers, body = errors.refusal(errors.Api.OPENAI, reason, message, retry_after_s=retry_after_s)
    exchange.respond(status, [*headers, *UNKEPT, *(extra or ())], body)


def _split(path: str) -> tuple[str, ...]:
    """`/admin/` has an empty last part, so it is another path than `/admin`."""
    return tuple(path.split("/")[1:])


def _match(route: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(route) != len(parts):
        return None
    names: dict[str, str] = {}
    for expected, part in zip(route, parts, strict=True):
        if expected.startswith("{") and part:
            names[expected[1:-1]] = unquote(part)
        elif expected != part:
            return None
    return names
