"""How is a call of the files and batches API served, when the store has to be waited for?

Each call is a task. The number of tasks is bounded, in all and for one tenant, so that no tenant keeps the others out.
Uploads and downloads last as long as their clients like: they are counted apart, and never hold up a short call. All
errors are answered here, in OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import StrEnum
from urllib.parse import parse_qs

import msgspec

from penstock.batch.store.port import InUseError, QuotaError, StorageFullError, StoreError
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.rights import Rights
from penstock.gateway.openai import errors
from penstock.http.server.server import Header, SocketExchange

logger = logging.getLogger(__name__)

CALLS_MAX = 256  # concurrent, of each kind; further ones get a Retry-After. A download holds 256 KB of its file
CALLS_TENANT_MAX = 64  # of these, for one tenant
QUOTA_RETRY_S = 60.0  # files and batches end in minutes, not seconds
BUSY_RETRY_S = 1.0


class ApiError(Exception):
    """A refusal: `reason` decides the status, the message is for the client, `param` names the field at fault."""

    def __init__(self, reason: Reason, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.param = param


class Owner(msgspec.Struct, frozen=True):
    """The client of a call."""

    tenant: str  #: the files and batches belong to this tenant
    user: str
    payer: str = ""  #: the tenant for counting calls: clients without a key share one, under many names
    rights: Rights | None = None  #: the rights of its key, and so of its batches


class CallKind(StrEnum):
    """How long a call may take. Each kind is counted apart."""

    SHORT = "calls"
    UPLOAD = "uploads"
    DOWNLOAD = "downloads"


class Calls:
    """Runs calls as tasks, and answers for those that fail."""

    def __init__(self, refused: Callable[[Reason, SocketExchange], None]) -> None:
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: Counter[CallKind] = Counter()
        self._of_payer: Counter[tuple[CallKind, str]] = Counter()

    def spawn(
        self, exchange: SocketExchange, work: Coroutine[None, None, None], payer: str, kind: CallKind = CallKind.SHORT
    ) -> bool:
        """Run `work` and answer its errors. Returns False if too many run: then the call was refused."""
        of_payer = kind, payer
        if self._under_way[kind] >= CALLS_MAX:
            work.close()
            self.refuse(exchange, Reason.OVERLOAD, Reason.OVERLOAD.message, retry_after_s=BUSY_RETRY_S)
            return False
        if self._of_payer[of_payer] >= CALLS_TENANT_MAX:
            work.close()
            message = f"{CALLS_TENANT_MAX} {kind} of files and batches are under way for you already."
            self.refuse(exchange, Reason.TENANT_LIMIT, message, retry_after_s=BUSY_RETRY_S)
            return False
        self._under_way[kind] += 1
        self._of_payer[of_payer] += 1
        task = asyncio.ensure_future(self._serve(exchange, work))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._under_way[kind] -= 1
            self._of_payer[of_payer] -= 1
            if not self._of_payer[of_payer]:
                del self._of_payer[of_payer]

        task.add_done_callback(ended)
        return True

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, exchange: SocketExchange, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - every call gets an answer
            self.fail(exchange, error)

    def fail(self, exchange: SocketExchange, error: Exception) -> None:
        """Answer with the error. If the answer has begun already, break it off."""
        if exchange.over:
            return  # the client is gone
        if exchange.started:
            logger.warning("%s %s broke off: %s", exchange.method, exchange.target_path, error)
            exchange.abort()
        elif isinstance(error, ApiError):
            self.refuse(exchange, error.reason, str(error), error.param)
        elif isinstance(error, QuotaError):
            extra = [(b"x-penstock-limit", error.limit.encode())]
            self.refuse(exchange, Reason.TENANT_LIMIT, str(error), retry_after_s=QUOTA_RETRY_S, extra=extra)
        elif isinstance(error, InUseError):
            self.refuse(exchange, Reason.BAD_REQUEST, "The file is in use by a batch that has not ended.", "file_id")
        elif isinstance(error, StorageFullError):
            logger.warning("%s", error)
            self.refuse(exchange, Reason.STORAGE_FULL)
        elif isinstance(error, StoreError):
            logger.warning("%s", error)
            self.refuse(exchange, Reason.UPSTREAM_ERROR, "The batch store can't be reached. Please try again later.")
        else:
            logger.error("%s %s", exchange.method, exchange.target_path, exc_info=error)
            self.refuse(exchange, Reason.UPSTREAM_ERROR, "A fault while files and batches were looked after.")

    def refuse(
        self,
        exchange: SocketExchange,
        reason: Reason,
        message: str | None = None,
        param: str | None = None,
        *,
        retry_after_s: float | None = None,
        extra: list[Header] | None = None,
    ) -> None:
        self._refused(reason, exchange)
        status, headers, body = errors.refusal(
            errors.Api.OPENAI, reason, message, param=param, retry_after_s=retry_after_s
        )
        exchange.respond(status, [*headers, *(extra or ())], body)


def answer(exchange: SocketExchange, value: object) -> None:
    exchange.respond(200, [(b"content-type", b"application/json")], msgspec.json.encode(value))


def query(exchange: SocketExchange) -> dict[str, str]:
    """Returns the fields of the query; of several with one name the last. Raises `ApiError` if it can't be read."""
    try:
        fields = parse_qs(exchange.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise ApiError(Reason.BAD_REQUEST, "The query has too many fields.") from None
    if not all(found[-1].isprintable() for found in fields.values()):
        raise ApiError(Reason.BAD_REQUEST, "The query contains characters that no name has.")
    return {name: found[-1] for name, found in fields.items()}


def page_size(fields: dict[str, str], default: int, most: int) -> int:
    text = fields.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise ApiError(Reason.BAD_REQUEST, f"`limit` has to be a number from 1 to {most}.", "limit")
    return int(text)
