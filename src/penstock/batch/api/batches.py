"""`/v1/batches`: creating, listing and cancelling batches."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import msgspec

from penstock.batch import api_objects
from penstock.batch.api.calls import ApiError, Owner, answer, page_size, query
from penstock.batch.api.upload import keep_seconds
from penstock.batch.eta import Outlook
from penstock.batch.manager import Manager
from penstock.batch.states import BatchEvent, Status, may
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import Batch, Quota
from penstock.batch.window import window_s
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity import rights
from penstock.http.server.server import SocketExchange

LIST_MAX, LIST_DEFAULT = 100, 20
METADATA_MAX, KEY_MAX, VALUE_MAX = 16, 64, 512


class _BatchFields(msgspec.Struct):
    input_file_id: object = None
    endpoint: object = None
    completion_window: object = None
    metadata: object = None
    output_expires_after: object = None


class Batches:
    """Serves the calls about batches. A call answers its exchange, or raises `ApiError`."""

    def __init__(
        self,
        store: StoreThread,
        manager: Manager,
        quota: Quota,
        *,
        urls: Callable[[str], bool],
        keep_s: float,
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._manager = manager
        self._quota = quota
        self._urls = urls
        self._keep_s = keep_s
        self._wall = wall

    async def create(self, exchange: SocketExchange, owner: Owner) -> None:
        fields = _read(exchange.body)
        now = self._wall()
        window, seconds = fields.completion_window, window_s(fields.completion_window)
        if seconds is None:
            text = "`completion_window` has to be a length of time such as `24h`, `90m` or `7d`."
            raise ApiError(Reason.BAD_REQUEST, text, "completion_window")
        if not isinstance(fields.endpoint, str) or not self._urls(fields.endpoint):
            text = "`endpoint` has to be a path that batches can ask for, such as `/v1/chat/completions`."
            raise ApiError(Reason.BAD_REQUEST, text, "endpoint")
        name = fields.input_file_id
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ApiError(Reason.BAD_REQUEST, "`input_file_id` has to be a file's id.", "input_file_id")
        file = await self._store.do(lambda store: store.file(owner.tenant, name, now))
        if file is None or file.batch is not None:
            raise ApiError(Reason.BAD_REQUEST, f"There is no input file `{name[:100]}`.", "input_file_id")
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            tenant=owner.tenant,
            user=owner.user,
            endpoint=fields.endpoint,
            input_file=name,
            window=str(window),
            created_at=now,
            deadline=now + seconds,
            status=str(Status.VALIDATING),
            keep_s=_keep_s(fields.output_expires_after, self._keep_s),
            total=file.lines,
            metadata=_metadata(fields.metadata),
            rights=rights.written(owner.rights),
        )
        await self._store.do(lambda store: store.add_batch(batch, self._quota))
        self._manager.wake()
        answer(exchange, self._shown(batch))

    async def list(self, exchange: SocketExchange, owner: Owner) -> None:
        fields = query(exchange)
        limit = page_size(fields, LIST_DEFAULT, LIST_MAX)
        after = fields.get("after") or None
        rows = await self._store.do(lambda store: store.batches(owner.tenant, after=after, limit=limit + 1))
        answer(exchange, api_objects.listing([self._shown(batch) for batch in rows[:limit]], more=len(rows) > limit))

    async def show(self, exchange: SocketExchange, owner: Owner, name: str) -> None:
        answer(exchange, self._shown(await self._find(owner, name)))

    async def cancel(self, exchange: SocketExchange, owner: Owner, name: str) -> None:
        batch = await self._find(owner, name)
        if batch.state not in (Status.CANCELLING, Status.CANCELLED):
            if not may(batch.state, BatchEvent.CANCEL):
                text = f"The batch is {batch.status}, so it can't be cancelled."
                raise ApiError(Reason.BAD_REQUEST, text, "batch_id")
            now = self._wall()
            await self._store.do(lambda store: store.move(name, BatchEvent.CANCEL, now))
            self._manager.wake()
            batch = await self._find(owner, name)
        answer(exchange, self._shown(batch))

    async def _find(self, owner: Owner, name: str) -> Batch:
        batch = await self._store.do(lambda store: store.batch(name))
        if batch is None or batch.tenant != owner.tenant:
            raise ApiError(Reason.PATH_NOT_FOUND, f"There is no batch `{name}`.", "batch_id")
        return batch

    def _shown(self, batch: Batch) -> dict[str, object]:
        shown = api_objects.batch_object(batch)
        outlook = next((one for one in self._manager.outlook if one.id == batch.id), None)
        if outlook is not None and batch.state is Status.IN_PROGRESS:
            shown["penstock"] = progress(outlook)
        return shown


def progress(outlook: Outlook) -> Mapping[str, object]:
    """Returns a batch's progress, for which OpenAI's shape has no field."""
    end = outlook.estimated_end
    return {
        "requests_per_second": round(outlook.per_s, 2),
        "estimated_end_at": None if end is None else int(end),
        "misses_window": outlook.misses_window,
    }


def _read(body: bytes) -> _BatchFields:
    try:
        return msgspec.json.decode(body, type=_BatchFields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError(Reason.BAD_REQUEST, "The body has to be a JSON object.") from None


def _metadata(given: object) -> str:
    if given is None:
        return "null"
    if (
        not isinstance(given, dict)
        or len(given) > METADATA_MAX
        or not all(isinstance(v, str) and len(k) <= KEY_MAX and len(v) <= VALUE_MAX for k, v in given.items())
    ):
        text = f"`metadata` has to be up to {METADATA_MAX} pairs of texts, of {KEY_MAX} and {VALUE_MAX} characters."
        raise ApiError(Reason.BAD_REQUEST, text, "metadata")
    return msgspec.json.encode(given).decode()


def _keep_s(given: object, default: float) -> float:
    if given is None:
        return default
    if not isinstance(given, dict) or given.get("anchor") != "created_at":
        text = "`output_expires_after` has to be an object with `anchor: created_at` and `seconds`."
        raise ApiError(Reason.BAD_REQUEST, text, "output_expires_after")
    return keep_seconds(given.get("seconds"), "output_expires_after")
