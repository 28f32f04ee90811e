"""What the store keeps: files, batches, items and results, as frozen values.

Field by field in the order of the columns that `sql/queries.sql` names. Times are Unix times in seconds, because they
outlive the process.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.batch.states import ItemState, Status


class FileKind(StrEnum):
    """What a file is."""

    INPUT = "batch"  #: uploaded; the API's purpose
    OUTPUT = "batch_output"
    ERRORS = "batch_errors"  #: shown with the purpose `batch_output`, as at OpenAI


class FileState(StrEnum):
    """Where a file stands. Only the two in the middle are seen from outside."""

    UPLOADING = "uploading"
    PROCESSED = "processed"
    ERROR = "error"  #: some of its lines are no requests
    GONE = "gone"  #: deleted; its bytes are erased bit by bit


class File(msgspec.Struct, frozen=True):
    """A file's row. Those of a finished batch have no bytes of their own: they are its items' results."""

    id: str
    tenant: str
    kind: str
    filename: str
    bytes: int
    lines: int
    created_at: float
    expires_at: float | None
    status: str
    details: str | None
    batch: str | None


class LineProblem(msgspec.Struct, frozen=True):
    """What is wrong with an input file, as the batch object tells it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Times(msgspec.Struct, frozen=True):
    """When a batch came to its states, in whole seconds."""

    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    expiring: bool = False  #: its window is over, and something of it will not run; not shown


class Batch(msgspec.Struct, frozen=True):
    """A batch's row."""

    id: str
    tenant: str
    user: str
    endpoint: str
    input_file: str
    window: str
    created_at: float
    deadline: float
    status: str
    output_file: str | None
    error_file: str | None
    keep_s: float | None  #: how long its files are kept, from their making on
    total: int
    completed: int
    failed: int
    output_bytes: int
    error_bytes: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    metadata: str  #: these four are JSON
    models: str
    problems: str
    times: str

    @property
    def state(self) -> Status:
        return Status(self.status)

    @property
    def left(self) -> int:
        """Items that have not ended."""
        return self.total - self.completed - self.failed

    def names(self) -> tuple[str, ...]:
        """The models it asks for."""
        return msgspec.json.decode(self.models, type=tuple[str, ...])

    def when(self) -> Times:
        return msgspec.json.decode(self.times, type=Times)


class NewItem(msgspec.Struct, frozen=True, gc=False):
    """A line of an input file that is a request."""

    line: int  #: from 1
    custom_id: str
    model: str
    prefix: int  #: prompts that begin alike have keys that stand together
    at: int  #: where its line begins in the file
    size: int


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item that a runner holds."""

    line: int
    custom_id: str
    model: str
    prefix: int
    at: int
    size: int
    attempts: int


class Result(msgspec.Struct, frozen=True, gc=False):
    """How an item ended: its line in the output or error file, without the line break."""

    batch: str
    line: int
    state: ItemState
    text: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Quota(msgspec.Struct, frozen=True):
    """What one tenant may keep."""

    files: int
    bytes: int
    batches: int  #: open ones
    items: int  #: of open batches, together
