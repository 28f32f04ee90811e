"""The states of a batch and their transitions.

Pure. A batch is read (`validating`), its items run (`in_progress`), and it ends in one of four ways, each of which
keeps the answers that came so far. A batch passes `finalizing` in the same transaction that makes its files, so pollers
may never see that state. Every change of a status goes by this table; a change that is not in it is a mistake of ours.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Status(StrEnum):
    """A batch's status, in the words of the API."""

    VALIDATING = "validating"  #: its file is being read; nothing runs
    FAILED = "failed"  #: its file is not as it should be; nothing ran
    IN_PROGRESS = "in_progress"  #: its items run, or wait for their turn
    FINALIZING = "finalizing"  #: all have ended, its files are being made
    COMPLETED = "completed"  #: all have ended, well or not
    EXPIRED = "expired"  #: its window was over before all had run
    CANCELLING = "cancelling"  #: no item is started; running ones may finish
    CANCELLED = "cancelled"  #: stopped; results so far are kept


class BatchEvent(StrEnum):
    """An event of a batch."""

    VALID = "valid"
    INVALID = "invalid"
    ALL_ENDED = "all_ended"
    FILES_MADE = "files_made"
    WINDOW_OVER = "window_over"
    CANCEL = "cancel"
    STOPPED = "stopped"


class ItemState(IntEnum):
    """The stored status of a batch's line."""

    PENDING = 0
    CLAIMED = 1  #: a runner holds it
    COMPLETED = 2  #: its answer is a line of the output file
    FAILED = 3  #: it is a line of the error file, run or not


TRANSITIONS: dict[tuple[Status, BatchEvent], Status] = {
    (Status.VALIDATING, BatchEvent.VALID): Status.IN_PROGRESS,
    (Status.VALIDATING, BatchEvent.INVALID): Status.FAILED,
    (Status.VALIDATING, BatchEvent.CANCEL): Status.CANCELLING,
    (Status.IN_PROGRESS, BatchEvent.ALL_ENDED): Status.FINALIZING,
    (Status.IN_PROGRESS, BatchEvent.WINDOW_OVER): Status.EXPIRED,
    (Status.IN_PROGRESS, BatchEvent.CANCEL): Status.CANCELLING,
    (Status.FINALIZING, BatchEvent.FILES_MADE): Status.COMPLETED,
    (Status.CANCELLING, BatchEvent.STOPPED): Status.CANCELLED,
}
OPEN = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)


def after(status: Status, event: BatchEvent) -> Status:
    """Returns the status that follows. Raises KeyError for a step that is not in the table: a mistake of ours."""
    return TRANSITIONS[status, event]


def may(status: Status, event: BatchEvent) -> bool:
    """Returns True if the table has a step from `status` by `event`."""
    return (status, event) in TRANSITIONS


def is_open(status: Status) -> bool:
    """Returns True if a batch in this `status` has not ended."""
    return status in OPEN
