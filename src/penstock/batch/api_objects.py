"""How do files, batches and the lines of their files look on the wire? OpenAI's shapes, field by field."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.batch.states import Status
from penstock.batch.values import Batch, File, FileKind, LineProblem

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed because the batch was cancelled.")


def file_object(file: File) -> dict[str, object]:
    """Returns `file` as the API shows it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": FileKind.INPUT if file.kind == FileKind.INPUT else FileKind.OUTPUT,
        "status": file.status,
        "status_details": file.details,
    }


def batch_object(batch: Batch) -> dict[str, object]:
    """Returns `batch` as the API shows it."""
    names = batch.names()
    times = msgspec.structs.asdict(batch.when())
    del times["expiring"]
    problems = msgspec.json.decode(batch.problems, type=list[LineProblem])
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": names[0] if len(names) == 1 else None,
        "errors": {"object": "list", "data": problems} if batch.status == Status.FAILED else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created_at),
        "expires_at": int(batch.deadline),
        **times,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        "metadata": msgspec.json.decode(batch.metadata),
    }


def listing(rows: Sequence[dict[str, object]], *, more: bool) -> dict[str, object]:
    """Returns one page of a list; `more` is True if another page follows."""
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": more,
    }


def request_name(batch: str, line: int) -> str:
    """Returns the id of a batch's item on a `line`: the same however often the item runs."""
    return f"batch_req_{batch.removeprefix('batch_')}_{line}"


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


def answered(batch: str, line: int, custom_id: str, *, status: int, request_id: str, body: bytes) -> bytes:
    """Returns the output line of an item that an engine answered, with success or not.

    A `body` that is no JSON is quoted as text.
    """
    try:
        str(body, "utf-8")
        flat = msgspec.json.format(body, indent=-1)  # on one line; numbers keep their digits
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        flat = msgspec.json.encode(body.decode("utf-8", "replace"))
    return _line(batch, line, custom_id, _Response(status, request_id, msgspec.Raw(flat)), None)


def unanswered(batch: str, line: int, custom_id: str, code: str, message: str) -> bytes:
    """Returns the output line of an item without an answer, or with one too large to keep."""
    return _line(batch, line, custom_id, None, _Error(code, message))


def _line(batch: str, line: int, custom_id: str, response: _Response | None, error: _Error | None) -> bytes:
    return msgspec.json.encode(_OutputLine(request_name(batch, line), custom_id, response, error))
