"""The stored records. Files, batches, items and results, as frozen values.

The fields stand in the order of the columns that `sql/queries.sql` names. Times are Unix times in seconds, because they
outlive the process.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.batch.states import ItemState, Status


class FileKind(StrEnum):
    """A file's purpose."""

    INPUT = "batch"  #: uploaded; the API's purpose
    OUTPUT = "batch_output"
    ERRORS = "batch_errors"  #: shown with the purpose `batch_output`, as at OpenAI


class FileState(StrEnum):
    """How far a file is. Clients see only the two states in the middle."""

    UPLOADING = "uploading"
    PROCESSED = "processed"
    ERROR = "error"  #: some of its lines are no requests
    GONE = "gone"  #: deleted; its bytes are erased step by step


class File(msgspec.Struct, frozen=True):
    """A file's row. The files of a finished batch have no bytes of their own: they are the results of its items."""

    id: str
    tenant: str
    kind: str
    filename: str
    bytes: int
    lines: int
    created_at: float
    expires_at: float | None
    status: str
    details: str | None = None
    batch: str | None = None


class LineProblem(msgspec.Struct, frozen=True):
    """A problem of an input file, as in the batch object."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Times(msgspec.Struct, frozen=True):
    """When a batch reached each of its states, in whole seconds; None: not reached."""

    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    expiring: bool = False  #: the window is over, and some items will not run; the API does not show it


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
    output_file: str | None = None
    error_file: str | None = None
    keep_s: float | None = None  #: how long its output files are kept after they were made
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    metadata: str = "null"  #: this and the three below are JSON
    models: str = "[]"
    problems: str = "[]"
    times: str = "{}"
    rights: str = "{}"  #: the rights of the key that made it, encoded by the gateway
    reasoning_tokens: int = 0  #: part of its output tokens

    @property
    def state(self) -> Status:
        """The status as a member of the enum."""
        return Status(self.status)

    @property
    def left(self) -> int:
        """How many items have not ended."""
        return self.total - self.completed - self.failed

    def names(self) -> tuple[str, ...]:
        """Returns the models that the batch asks for; empty until its file was read."""
        return msgspec.json.decode(self.models, type=tuple[str, ...])

    def when(self) -> Times:
        """Returns when the batch reached each of its states."""
        return msgspec.json.decode(self.times, type=Times)


class MadeKey(msgspec.Struct, frozen=True, gc=False):
    """A key that was made while a gateway ran, by its hash."""

    name: str
    tenant: str
    hash: str  #: `sha256:…`
    rights: str  #: its rights, encoded by the gateway
    created_at: float
    expires_at: float | None


class NewItem(msgspec.Struct, frozen=True, gc=False):
    """A line of an input file that is a request."""

    line: int  #: from 1
    custom_id: str
    model: str
    prefix: int  #: sorted by it, prompts that begin alike stand together
    at: int  #: the line's offset in the file, in bytes
    size: int


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item that a runner has claimed."""

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
    reasoning_tokens: int = 0


class Quota(msgspec.Struct, frozen=True):
    """How much one tenant may keep."""

    files: int
    bytes: int
    batches: int  #: open ones
    items: int  #: of all its open batches together


class UsageRow(msgspec.Struct, frozen=True, gc=False):
    """Requests of one kind that ended in one hour: who sent them, where they went, how they ended, and their use."""

    hour: int  #: Unix time in hours
    tenant: str
    key: str  #: the key's name; "": without a key of ours
    user: str
    model: str
    endpoint: str  #: "": none was asked
    reason: str  #: of requests without a whole answer; "": answered
    requests: int
    prompt_tokens: int  #: as engines reported, cached ones included
    cached_tokens: int
    completion_tokens: int
    unreported: int  #: requests whose answer had no usage
    estimated_tokens: int  #: tokens of these, prompts included
    lease_s: float  #: seconds at engines
    waits: int  #: requests that were queued
    wait_s: float  #: seconds in the queue
    interrupted: int = 0  #: requests whose answer broke off after some of its tokens
    estimated_completion: int = 0  #: the part of the estimated tokens that was generated


class UsageAsked(msgspec.Struct, frozen=True):
    """A question to the ledger: sums from hour `since` to hour `until`, which is not included."""

    since: int
    until: int
    by: frozenset[str]  #: names of fields that are kept apart, `day` and `month`
    tenant: str | None = None  #: only this one
    key: str | None = None
    user: str | None = None
