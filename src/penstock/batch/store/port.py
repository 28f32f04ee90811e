"""The port behind which files and batches are kept: what a store must do, and in which ways it can fail.

A store is synchronous and belongs to one thread (`thread.py`). Each method is one transaction: when it returns, what
it changed survives a `kill -9` and, with SQLite and PostgreSQL, a power cut; when it raises, nothing was changed. Times
are arguments. `tests/conformance/test_store.py` holds every implementation to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.batch.states import BatchEvent, ItemState
from penstock.batch.values import Batch, File, Item, LineProblem, NewItem, Quota, Result

CHUNK_BYTES = 64 * 1024  # an item is read with the chunks it lies in: larger ones would be read for little
PAGE_LINES = 16  # of results read at once, each up to an answer's size
STEP_ROWS = 500  # of a change that may concern many rows: one step takes a few milliseconds


class StoreError(Exception):
    """The store can't do it now; nothing was changed. The message is for operators."""


class StoreBrokenError(StoreError):
    """What is kept can't be read: it is damaged, or gone. Nobody gets further until it is mended or replaced."""


class StorageFullError(StoreError):
    """There is no room left on the disk."""


class QuotaError(Exception):
    """The tenant keeps as much as it may. The message is for it."""


class InUseError(Exception):
    """The file is read by a batch that has not ended."""


class Store(Protocol):
    """Where files and batches are kept."""

    def close(self) -> None: ...

    # --- files ------------------------------------------------------------------------------------------------

    def begin_file(self, file: File, quota: Quota, runner: str) -> None:
        """Make room for an upload of at most `file.bytes`. Nobody sees it until it is whole.

        It lasts as long as the runner that takes it in is heard of (`beat`): `purge` drops those of lost runners.
        """

    def append(self, file: str, seq: int, chunks: Sequence[bytes]) -> None:
        """Its next bytes, in pieces of `CHUNK_BYTES`; the last may be shorter."""

    def end_file(self, file: File, quota: Quota) -> None:
        """It is whole: its bytes, lines, status and details count from now on. StoreError where it was dropped."""

    def drop_upload(self, file: str) -> None:
        """It will not be whole."""

    def file(self, tenant: str, file: str, now: float) -> File | None: ...

    def files(
        self, tenant: str, *, kind: str | None, after: str | None, limit: int, ascending: bool, now: float
    ) -> list[File]:
        """Of one tenant, in the order of their making. An unknown `after` gives none."""

    def delete_file(self, tenant: str, file: str, now: float) -> bool:
        """Whether it was there. InUseError where an open batch reads it."""

    def read(self, file: str, at: int, size: int) -> bytes:
        """Some bytes of an input file."""

    def results(self, batch: str, state: ItemState, after: int) -> list[tuple[int, bytes]]:
        """The next lines of an output or error file, with their numbers; empty at the end."""

    # --- batches ----------------------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, quota: Quota) -> None: ...

    def batch(self, batch: str) -> Batch | None: ...

    def batches(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        """Of one tenant, the newest first."""

    def open_batches(self, limit: int) -> list[Batch]:
        """Of all tenants, the earliest deadline first."""

    def take(self, batch: Batch, runner: str, now: float) -> bool:
        """Whether this runner is the one that reads its file, or makes its end."""

    def add_items(self, batch: str, items: Sequence[NewItem]) -> bool:
        """Items of a batch that is being validated. False: it is not, any more."""

    def clear_items(self, batch: str) -> bool:
        """Erase some items of a batch that is validated anew. True: there may be more."""

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
        """Change the status by the table, if it may change so; a batch that ends gets its files in the same step.

        An end of what ran (`ALL_ENDED`, `WINDOW_OVER`, `STOPPED`) waits until no item is left. Returns the batch as it
        is then; None where there is none or the event can't be.
        """

    # --- running ----------------------------------------------------------------------------------------------

    def claim(self, batch: str, model: str, limit: int, runner: str) -> list[Item]:
        """Pending items for this runner, prompts that begin alike together."""

    def finish(self, results: Sequence[Result], runner: str) -> list[bool]:
        """Keep results and count them. False for an item that this runner does not hold any more."""

    def give_back(self, items: Iterable[tuple[str, int]], runner: str, *, attempted: bool) -> None:
        """Items (batch and line) that were not run to their end: they are pending again."""

    def end_pending(self, batch: str, code: str, message: str) -> int:
        """Let some pending items end unrun, as lines of the error file. Returns how many; 0: none is left."""

    def beat(self, runner: str, until: float) -> None:
        """This runner's claims are good until then."""

    def release_lost(self, now: float) -> int:
        """Items of runners that are gone are pending again."""

    def purge(self, now: float) -> bool:
        """Erase a little of what is deleted or expired. True: there may be more."""
