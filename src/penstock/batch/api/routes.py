"""The paths of the files and batches API: methods, access, and handlers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from penstock.batch.api.batches import Batches
from penstock.batch.api.calls import ApiError, CallKind, Calls, Owner
from penstock.batch.api.files import Files
from penstock.batch.api.upload import Upload
from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.caller import Unauthorized
from penstock.gateway.identity.callers import Callers
from penstock.gateway.openai import errors
from penstock.http.server.server import SocketExchange

BODY_BYTES_MAX = 64 * 1024  # of a call that is no upload: the metadata of a batch has 9 KB at most
NAME_CHARACTERS_MAX = 128
_PATHS = ("/v1/files", "/v1/batches")

_Work = Callable[[], Coroutine[None, None, None]]


class BatchRoutes:
    """Serves the paths of the API, from the head of a request to its answer."""

    def __init__(
        self, calls: Calls, callers: Callers, files: Files, batches: Batches, *, now: Callable[[], float]
    ) -> None:
        self._calls = calls
        self._callers = callers
        self._files = files
        self._batches = batches
        self._now = now
        self._uploads: dict[SocketExchange, Upload] = {}
        self.draining = False

    @staticmethod
    def owns(path: str) -> bool:
        """Returns True if `path` belongs to this API."""
        return path in _PATHS or path.startswith(("/v1/files/", "/v1/batches/"))

    def begin(self, exchange: SocketExchange) -> int:
        """Refuse a request that its head already rules out. Returns the limit on the body in bytes."""
        try:
            if self._work(exchange, Owner("", "")) is None:
                return self._begin_upload(exchange, self._owner(exchange))
            self._owner(exchange)
        except ApiError as error:
            extra = [(b"allow", str(error.param).encode())] if error.reason is Reason.METHOD_NOT_ALLOWED else None
            param = None if extra else error.param
            self._calls.refuse(exchange, error.reason, str(error), param, extra=extra)
        return BODY_BYTES_MAX

    def complete(self, exchange: SocketExchange) -> None:
        """Serve a request whose body has been read."""
        upload = self._uploads.get(exchange)
        if upload is not None:
            upload.complete()
            return
        try:
            owner = self._owner(exchange)
            work = self._work(exchange, owner)
        except ApiError as error:  # the key was revoked since the head was read
            self._calls.refuse(exchange, error.reason, str(error), error.param)
            return
        assert work is not None
        downloads = exchange.target_path.endswith("/content")
        self._calls.spawn(exchange, work(), owner.payer, CallKind.DOWNLOAD if downloads else CallKind.SHORT)

    def _begin_upload(self, exchange: SocketExchange, owner: Owner) -> int:
        if self.draining:
            raise ApiError(Reason.DRAINING, "The service is shutting down. Please try again.")
        upload = self._files.upload(exchange, owner)

        async def run() -> None:
            try:
                await upload.run()
            finally:
                self._uploads.pop(exchange, None)

        if self._calls.spawn(exchange, run(), owner.payer, CallKind.UPLOAD):
            self._uploads[exchange] = upload
        return self._files.upload_bytes_max

    def _owner(self, exchange: SocketExchange) -> Owner:
        header, peer = exchange.lookup.get, exchange.peer[0]
        caller = self._callers.identify(self._callers.key(header, exchange.repeats), header, peer, now=self._now())
        if isinstance(caller, Unauthorized):
            exchange.note = caller
            raise ApiError(caller.reason, caller.message)
        owner = self._callers.owner(header, peer, caller)
        return Owner(owner, caller.user, ANONYMOUS if owner == ANONYMOUS else caller.tenant, caller.rights)

    def _work(self, exchange: SocketExchange, owner: Owner) -> _Work | None:
        """Returns the function that serves the request; None for an upload. Raises `ApiError` if nothing does."""
        parts = exchange.target_path.removeprefix("/v1/").split("/")
        method, resource, name = exchange.method, parts[0], parts[1] if len(parts) > 1 else ""
        if len(parts) > 3 or (len(parts) > 1 and not 0 < len(name) <= NAME_CHARACTERS_MAX):
            raise ApiError(Reason.PATH_NOT_FOUND, Reason.PATH_NOT_FOUND.message)
        files, batches = self._files, self._batches
        table: dict[str, _Work | None] = {}
        if resource == "files":
            if len(parts) == 1:
                table = {"GET": lambda: files.list(exchange, owner), "POST": None}
            elif len(parts) == 2:
                table = {
                    "GET": lambda: files.show(exchange, owner, name),
                    "DELETE": lambda: files.delete(exchange, owner, name),
                }
            elif parts[2] == "content":
                table = {"GET": lambda: files.content(exchange, owner, name)}
        elif len(parts) == 1:
            table = {"GET": lambda: batches.list(exchange, owner), "POST": lambda: batches.create(exchange, owner)}
        elif len(parts) == 2:
            table = {"GET": lambda: batches.show(exchange, owner, name)}
        elif parts[2] == "cancel":
            table = {"POST": lambda: batches.cancel(exchange, owner, name)}
        if not table:
            raise ApiError(Reason.PATH_NOT_FOUND, Reason.PATH_NOT_FOUND.message)
        if method not in table:
            takes = ", ".join(table)
            raise ApiError(Reason.METHOD_NOT_ALLOWED, errors.wrong_method(method, takes), takes)
        return table[method]
