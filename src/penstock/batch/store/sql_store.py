"""The store in SQL, for SQLite and PostgreSQL. With one transaction per method."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.batch import api_objects
from penstock.batch.states import BatchEvent, ItemState, Status, after, is_open, may
from penstock.batch.store.database import Database
from penstock.batch.store.port import (
    CHUNK_BYTES,
    KEYS_MAX,
    PAGE_LINES,
    STEP_ROWS,
    USAGE_MAX,
    InUseError,
    NameTakenError,
    QuotaError,
    StoreError,
    TooManyKeysError,
)
from penstock.batch.values import (
    Batch,
    File,
    FileKind,
    FileState,
    Item,
    LineProblem,
    MadeKey,
    NewItem,
    Quota,
    Result,
    UsageAsked,
    UsageRow,
)

KEEP_S = 30 * 86_400.0  # ended batches stay in lists this long, after their files are gone
UPLOAD_S_MAX = 86_400.0  # an older upload, of no runner that we know, was cut off with its gateway
FAR_S = 86_400.0  # a claim that is good for longer than this was made before the clock was set back
ERASED_CHUNKS = 64
DAY_HOURS, ALL_HOURS = 24, 10**9
WRITERS_S = 7 * 86_400.0  # a gateway that has added nothing for so long has no addition under way
_ENDS = (BatchEvent.ALL_ENDED, BatchEvent.WINDOW_OVER, BatchEvent.STOPPED)


class SqlStore:
    """Files and batches in a database; `port.Store` describes the methods."""

    def __init__(self, database: Database) -> None:
        self.database = database
        try:
            database.migrate()
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        self.database.close()

    def make_room(self, size: int) -> None:
        """Raises StorageFullError if an upload of `size` bytes can't be kept. Here: nothing is checked."""

    # --- files ------------------------------------------------------------------------------------------------

    def begin_file(self, file: File, quota: Quota, runner: str) -> None:
        self.make_room(file.bytes)
        with self.database.transaction():
            self._check_quota(file.tenant, quota, files=1, size=file.bytes)
            self.database.run("add_file", **msgspec.structs.asdict(file), runner=runner)

    def append(self, file: str, seq: int, chunks: Sequence[bytes]) -> None:
        assert all(len(chunk) == CHUNK_BYTES for chunk in chunks[:-1])
        rows = [{"file": file, "seq": seq + i, "data": chunk} for i, chunk in enumerate(chunks)]
        with self.database.transaction():
            self.database.run_many("add_chunk", rows)

    def end_file(self, file: File, quota: Quota) -> None:
        with self.database.transaction():
            if not self.database.run("end_upload", **msgspec.structs.asdict(file)):
                raise StoreError("the upload was dropped: its gateway has been silent for too long")
            self._check_quota(file.tenant, quota, files=0, size=0)

    def drop_upload(self, file: str) -> None:
        with self.database.transaction():
            self.database.run("drop_file", id=file)

    def file(self, tenant: str, file: str, now: float) -> File | None:
        row = self.database.row("file", tenant=tenant, id=file, now=now)
        return None if row is None else File(*row)

    def files(
        self, tenant: str, *, kind: str | None, after: str | None, limit: int, ascending: bool, now: float
    ) -> list[File]:
        last = None if after is None else self.file(tenant, after, now)
        if after is not None and last is None:
            return []
        rows = self.database.rows(
            "files_up" if ascending else "files_down",
            tenant=tenant,
            any_kind=int(kind is None),
            kind=kind or "",
            other_kind=str(FileKind.ERRORS) if kind == FileKind.OUTPUT else "",
            first=int(last is None),
            after_at=0.0 if last is None else last.created_at,
            after_id="" if last is None else last.id,
            limit=limit,
            now=now,
        )
        return [File(*row) for row in rows]

    def delete_file(self, tenant: str, file: str, now: float) -> bool:
        with self.database.transaction():
            if self.database.row("file", tenant=tenant, id=file, now=now) is None:
                return False
            if self._count("users_of_file", id=file):
                raise InUseError
            self.database.run("drop_file", id=file)
            return True

    def read(self, file: str, at: int, size: int) -> bytes:
        first, last = at // CHUNK_BYTES, (at + size - 1) // CHUNK_BYTES
        data = b"".join(row[0] for row in self.database.rows("chunks", file=file, first=first, last=last))
        return data[at - first * CHUNK_BYTES :][:size]

    def results(self, batch: str, state: ItemState, after: int) -> list[tuple[int, bytes]]:
        rows = self.database.rows("results", batch=batch, state=int(state), after=after, limit=PAGE_LINES)
        return [(line, bytes(text)) for line, text in rows]

    # --- batches ----------------------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, quota: Quota) -> None:
        with self.database.transaction():
            row = self.database.row("open_usage_of", tenant=batch.tenant)
            count, items = row if row is not None else (0, 0)
            if count >= quota.batches:
                raise QuotaError("batch.limits.batches", f"{count} batches are open already; {quota.batches} may be")
            if items + batch.total > quota.items:
                message = f"open batches have {items} requests, this one {batch.total}; together {quota.items} may be"
                raise QuotaError("batch.limits.items", message)
            self.database.run("add_batch", **msgspec.structs.asdict(batch))

    def batch(self, batch: str) -> Batch | None:
        row = self.database.row("batch", id=batch)
        return None if row is None else Batch(*row)

    def batches(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        last = None if after is None else self.batch(after)
        if after is not None and (last is None or last.tenant != tenant):
            return []
        rows = self.database.rows(
            "batches",
            tenant=tenant,
            first=int(last is None),
            after_at=0.0 if last is None else last.created_at,
            after_id="" if last is None else last.id,
            limit=limit,
        )
        return [Batch(*row) for row in rows]

    def open_batches(self, limit: int) -> list[Batch]:
        return [Batch(*row) for row in self.database.rows("open_batches", limit=limit)]

    def take(self, batch: Batch, runner: str, now: float) -> bool:
        with self.database.transaction():
            far = now + FAR_S
            taken = self.database.run("take_batch", id=batch.id, status=batch.status, runner=runner, now=now, far=far)
            return bool(taken)

    def add_items(self, batch: str, items: Sequence[NewItem]) -> bool:
        rows = [{"batch": batch, **msgspec.structs.asdict(item)} for item in items]
        with self.database.transaction():
            found = self._to_change(batch)
            if found is None or found.state is not Status.VALIDATING:
                return False
            self.database.run_many("add_item", rows)
            return True

    def clear_items(self, batch: str) -> bool:
        with self.database.transaction():
            return self.database.run("erase_items", batch=batch, limit=STEP_ROWS) > 0

    def move(
        self,
        batch: str,
        event: BatchEvent,
        now: float,
        *,
        total: int | None = None,
        models: Sequence[str] | None = None,
        problems: Sequence[LineProblem] = (),
    ) -> Batch | None:
        with self.database.transaction():
            found = self._to_change(batch)
            if found is None or not may(found.state, event):
                return None
            if total is not None:
                found = msgspec.structs.replace(found, total=total)
            if event in _ENDS and found.left:
                return None
            if event is BatchEvent.ALL_ENDED and found.when().expiring:
                return None
            status = after(found.state, event)
            marks: dict[str, Any] = {f"{status}_at": int(now)}
            if status is Status.FINALIZING:
                status = after(status, BatchEvent.FILES_MADE)
                marks[f"{status}_at"] = int(now)
            changed = msgspec.structs.replace(
                found,
                status=str(status),
                times=_json(msgspec.structs.replace(found.when(), **marks)),
                models=found.models if models is None else _json(list(models)),
                problems=_json(list(problems)),
            )
            if not is_open(status):
                changed = self._with_files(changed, now)
            self._write(changed, None if is_open(status) else now)
            return changed

    def _with_files(self, batch: Batch, now: float) -> Batch:
        """Returns an ended batch with its output and error files, which are its items' results, seen as files."""
        names: dict[str, str] = {}
        for field, kind, lines, size in (
            ("output_file", FileKind.OUTPUT, batch.completed, batch.output_bytes),
            ("error_file", FileKind.ERRORS, batch.failed, batch.error_bytes),
        ):
            if lines:
                suffix = "output" if kind is FileKind.OUTPUT else "error"
                names[field] = f"file-{batch.id.removeprefix('batch_')}-{suffix}"
                made = File(
                    id=names[field],
                    tenant=batch.tenant,
                    kind=str(kind),
                    filename=f"{batch.id}_{suffix}.jsonl",
                    bytes=size,
                    lines=lines,
                    created_at=now,
                    expires_at=now + (batch.keep_s or KEEP_S),
                    status=str(FileState.PROCESSED),
                    batch=batch.id,
                )
                self.database.run("add_file", **msgspec.structs.asdict(made), runner=None)
        return msgspec.structs.replace(batch, **names)

    # --- running ----------------------------------------------------------------------------------------------

    def claim(self, batch: str, model: str, limit: int, runner: str) -> list[Item]:
        with self.database.transaction():
            rows = self.database.rows("claim", batch=batch, model=model, limit=limit, runner=runner)
        return sorted((Item(*row) for row in rows), key=lambda item: (item.prefix, item.line))

    def finish(self, results: Sequence[Result], runner: str) -> list[bool]:
        kept: list[bool] = []
        sums: dict[str, _Sum] = {}
        with self.database.transaction():
            for result in results:
                ended = self.database.run(
                    "end_item",
                    batch=result.batch,
                    line=result.line,
                    state=int(result.state),
                    result=result.text,
                    runner=runner,
                )
                kept.append(ended == 1)
                if ended:
                    sums.setdefault(result.batch, _Sum()).add(result)
            self._count_results(sums)
        return kept

    def give_back(self, items: Iterable[tuple[str, int]], runner: str, *, attempted: bool) -> None:
        with self.database.transaction():
            for batch, line in items:
                self.database.run("give_back", batch=batch, line=line, runner=runner, attempts=int(attempted))

    def end_pending(self, batch: str, code: str, message: str) -> int:
        with self.database.transaction():
            found = self._to_change(batch)
            if found is None:
                return 0
            items = [Item(*row) for row in self.database.rows("pending", batch=batch, limit=STEP_ROWS)]
            ended = _Sum()
            for item in items:
                text = api_objects.unanswered(batch, item.line, item.custom_id, code, message)
                if self.database.run("end_pending", batch=batch, line=item.line, result=text):
                    ended.add(Result(batch, item.line, ItemState.FAILED, text))
            self._count_results({batch: ended})
            if items and found.state is Status.IN_PROGRESS and not found.when().expiring:
                times = msgspec.structs.replace(found.when(), expiring=True)
                self._write(msgspec.structs.replace(found, times=_json(times)), None)
        return len(items)

    def beat(self, runner: str, until: float) -> None:
        with self.database.transaction():
            self.database.run("beat", runner=runner, until=until)

    def release_lost(self, now: float) -> int:
        with self.database.transaction():
            self.database.run("forget_runners", now=now)
            return self.database.run("release_lost", now=now, far=now + FAR_S)

    def purge(self, now: float) -> bool:
        with self.database.transaction():
            self.database.run("drop_expired", now=now)
            self.database.run("drop_lost_uploads", before=now - UPLOAD_S_MAX, now=now, far=now + FAR_S)
            row = self.database.row("gone")
            if row is not None:
                self._erase(*row)
                return True
            row = self.database.row("without_files")
            if row is not None:
                self.database.run("erase_items", batch=row[0], limit=STEP_ROWS)
                return True
            row = self.database.row("forgotten", before=now - KEEP_S)
            if row is not None:
                self.database.run("erase_batch", id=row[0])
            return row is not None

    def _erase(self, file: str, kind: str, batch: str | None) -> None:
        """Erase a little of a deleted file, and with its last piece the file itself."""
        if kind == FileKind.INPUT:
            left = self.database.run("erase_chunks", file=file, limit=ERASED_CHUNKS)
        else:
            state = ItemState.COMPLETED if kind == FileKind.OUTPUT else ItemState.FAILED
            left = self.database.run("erase_results", batch=batch, state=int(state), limit=STEP_ROWS)
        if not left:
            self.database.run("erase_file", id=file)

    # --- made keys --------------------------------------------------------------------------------------------

    def add_key(self, key: MadeKey) -> None:
        with self.database.transaction():
            self._keys_changed()  # first: it lets gateways in one after the other
            if self._count("count_keys") >= KEYS_MAX:
                raise TooManyKeysError
            if not self.database.run("add_key", **msgspec.structs.asdict(key)):
                raise NameTakenError

    def change_key(self, name: str, rights: str) -> bool:
        with self.database.transaction():
            self._keys_changed()
            return bool(self.database.run("change_key", name=name, rights=rights))

    def erase_key(self, name: str) -> bool:
        with self.database.transaction():
            self._keys_changed()
            return bool(self.database.run("erase_key", name=name))

    def keys(self, seen: str | None) -> tuple[str, list[MadeKey]] | None:
        row = self.database.row("key_changes")  # before the keys: a change in between is read the next time
        last = "" if row is None else str(row[0])
        return None if last == seen else (last, [MadeKey(*row) for row in self.database.rows("keys")])

    def _keys_changed(self) -> None:
        self.database.run("keys_changed", last=secrets.token_hex(8))

    # --- who used what ----------------------------------------------------------------------------------------

    def add_usage(self, writer: str, number: int, rows: Sequence[UsageRow], now: float) -> None:
        # Always in one order, so that two gateways never wait for each other's rows.
        values = [msgspec.structs.asdict(row) for row in sorted(rows, key=_place)]
        with self.database.transaction():
            if self.database.run("next_usage", writer=writer, number=number, now=now):
                self.database.run_many("add_usage", values)

    def usage(self, asked: UsageAsked) -> list[UsageRow]:
        if "month" not in asked.by:
            return self._usage(asked, 1 if "hour" in asked.by else DAY_HOURS if "day" in asked.by else ALL_HOURS)
        rows: list[UsageRow] = []
        bounds = self.database.row("usage_hours", since=asked.since, until=asked.until)
        if bounds is None or bounds[0] is None:
            return rows
        for month, end in _months(*bounds):
            its = msgspec.structs.replace(asked, since=max(month, asked.since), until=min(end, asked.until))
            rows += [msgspec.structs.replace(row, hour=month) for row in self._usage(its, ALL_HOURS)]
        return rows[: USAGE_MAX + 1]

    def _usage(self, asked: UsageAsked, hours: int) -> list[UsageRow]:
        """Returns sums for each `hours`, counted from 1970 on."""
        by = asked.by
        rows = self.database.rows(
            "usage",
            hours=hours,
            **{f"by_{name}": int(name in by) for name in ("tenant", "key", "user", "endpoint")},
            since=asked.since,
            until=asked.until,
            any_tenant=int(asked.tenant is None),
            tenant=asked.tenant or "",
            any_key=int(asked.key is None),
            key=asked.key or "",
            any_user=int(asked.user is None),
            user=asked.user or "",
            limit=USAGE_MAX + 1,
        )
        return [UsageRow(*row) for row in rows]

    def purge_usage(self, before: int, now: float) -> bool:
        with self.database.transaction():
            self.database.run("forget_usage_writers", before=now - WRITERS_S)
            row = self.database.row("old_usage", before=before, limit=STEP_ROWS)
            if row is None or row[0] is None:
                return False
            self.database.run("erase_usage", hour=row[0])
            return True

    # --- within a transaction ---------------------------------------------------------------------------------

    def _to_change(self, batch: str) -> Batch | None:
        row = self.database.row("batch_to_change", id=batch)
        return None if row is None else Batch(*row)

    def _write(self, batch: Batch, ended_at: float | None) -> None:
        self.database.run(
            "move_batch",
            id=batch.id,
            status=batch.status,
            times=batch.times,
            ended_at=ended_at,
            total=batch.total,
            models=batch.models,
            problems=batch.problems,
            output_file=batch.output_file,
            error_file=batch.error_file,
        )

    def _count(self, name: str, **values: object) -> int:
        row = self.database.row(name, **values)
        return 0 if row is None else int(row[0])

    def _count_results(self, sums: dict[str, _Sum]) -> None:
        for batch in sorted(sums):  # always in one order, so that two gateways never wait for each other's rows
            self.database.run("count_results", id=batch, **sums[batch].values())

    def _check_quota(self, tenant: str, quota: Quota, *, files: int, size: int) -> None:
        row = self.database.row("usage_of", tenant=tenant)
        count, held = (0, 0) if row is None else (int(row[0]), int(row[1]))
        if count + files > quota.files:
            raise QuotaError("batch.limits.files", f"{count} files are kept already; {quota.files} may be")
        if held + size > quota.bytes:
            message = f"{held} bytes are kept and {size} would come on top; {quota.bytes} may be"
            raise QuotaError("batch.limits.bytes", message)


class _Sum:
    """The changes of a batch's counts by some results."""

    def __init__(self) -> None:
        tokens = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
        self._values = dict.fromkeys(("completed", "failed", "output_bytes", "error_bytes", *tokens), 0)

    def add(self, result: Result) -> None:
        values = self._values
        well = result.state is ItemState.COMPLETED
        values["completed" if well else "failed"] += 1
        values["output_bytes" if well else "error_bytes"] += len(result.text) + 1  # its line break
        values["input_tokens"] += result.input_tokens
        values["cached_tokens"] += result.cached_tokens
        values["output_tokens"] += result.output_tokens
        values["reasoning_tokens"] += result.reasoning_tokens

    def values(self) -> dict[str, int]:
        return self._values


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _place(row: UsageRow) -> tuple[int, str, str, str, str, str, str]:
    return row.hour, row.tenant, row.key, row.user, row.model, row.endpoint, row.reason


def _months(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields each month (UTC) that has hours from `first` to `last`: its first hour, and that of the next month."""
    day = datetime.fromtimestamp(first * 3600, UTC).replace(day=1, hour=0)
    while (start := int(day.timestamp()) // 3600) <= last:
        day = (day + timedelta(days=31)).replace(day=1)
        yield start, int(day.timestamp()) // 3600
