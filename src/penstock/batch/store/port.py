"""The interface of a store of files, batches, issued keys and the ledger of use, and its errors.

A store is synchronous and belongs to one thread (`thread.py`). Each method is one transaction: when it returns, its
changes survive a `kill -9` and, with SQLite and PostgreSQL, a power cut; when it raises, nothing was changed. Every
method may raise `StoreError`. Times are arguments: Unix times in seconds. `tests/conformance/test_store.py` holds every
implementation to this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.batch.states import BatchEvent, ItemState
    from penstock.batch.values import (
        Batch,
        File,
        Item,
        LineProblem,
        MadeKey,
        NewItem,
        Quota,
        Result,
        UsageAsked,
        UsageRow,
    )

CHUNK_BYTES = 64 * 1024  # an item is read with the chunks it lies in: larger chunks would bring mostly other items
PAGE_LINES = 16  # results read at once: each may be as large as an answer
KEYS_MAX = 10_000  # issued and not revoked: all are read at once, and kept in each process
USAGE_MAX = 20_000  # rows of the ledger in one answer
STEP_ROWS = 500  # rows that one step of a long change concerns: a step takes a few milliseconds


class StoreError(Exception):
    """The store can't do this now; nothing was changed. The message is for operators."""


class StoreBrokenError(StoreError):
    """The stored data can't be read: they are damaged, or gone. Nothing works until they are repaired or replaced."""


class StorageFullError(StoreError):
    """There is no room left on the disk."""


class QuotaError(Exception):
    """The tenant keeps as much as it may. The message is for the tenant, `limit` the setting's name."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(f"{message} (`{limit}`).")
        self.limit = limit


class InUseError(Exception):
    """The file belongs to a batch that has not ended."""


class NameTakenError(Exception):
    """There is a key of this name, or of this hash."""


class TooManyKeysError(Exception):
    """There are `KEYS_MAX` keys."""


class Store(Protocol):
    """Keeps files, batches and made keys. `runner` is the name of the gateway that asks."""

    def close(self) -> None: ...

    # --- files ------------------------------------------------------------------------------------------------

    def begin_file(self, file: File, quota: Quota, runner: str) -> None:
        """Begin an upload of at most `file.bytes`. The file is not seen until it is whole.

        The upload lasts as long as its `runner` is heard of (`beat`): `purge` drops the uploads of lost runners. Raises
        QuotaError, or StorageFullError if there is no room for it.
        """

    def append(self, file: str, seq: int, chunks: Sequence[bytes]) -> None:
        """Add the next bytes of an upload, in pieces of `CHUNK_BYTES`; only the very last piece may be shorter.

        `seq` is the number of the first piece, counted from 0.
        """

    def end_file(self, file: File, quota: Quota) -> None:
        """The upload is complete: store bytes, lines, status and details of `file`.

        Raises StoreError if the upload was dropped meanwhile, or QuotaError.
        """

    def drop_upload(self, file: str) -> None:
        """Drop an upload that will never be whole."""

    def file(self, tenant: str, file: str, now: float) -> File | None: ...

    def files(
        self, tenant: str, *, kind: str | None, after: str | None, limit: int, ascending: bool, now: float
    ) -> list[File]:
        """Returns files of one tenant by age, those behind `after` (None: from the first). Unknown `after`: empty."""

    def delete_file(self, tenant: str, file: str, now: float) -> bool:
        """Delete a file. Returns False if the tenant has no such file; raises InUseError if an open batch reads it."""

    def read(self, file: str, at: int, size: int) -> bytes:
        """Returns `size` bytes of an input file from offset `at`; fewer at its end."""

    def results(self, batch: str, state: ItemState, after: int) -> list[tuple[int, bytes]]:
        """Returns the next lines of an output or error file after line `after`, with line numbers; empty at the end."""

    # --- batches ----------------------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, quota: Quota) -> None: ...

    def batch(self, batch: str) -> Batch | None: ...

    def batches(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        """Returns batches of one tenant, the newest first, those behind `after`. Unknown `after`: empty."""

    def open_batches(self, limit: int) -> list[Batch]:
        """Returns up to `limit` open batches of all tenants, the earliest deadline first."""

    def take(self, batch: Batch, runner: str, now: float) -> bool:
        """Claim the reading of a batch's file for this `runner`. Returns False if another gateway has it."""

    def add_items(self, batch: str, items: Sequence[NewItem]) -> bool:
        """Add items to a batch that is being validated. Returns False if that is no longer true, as after a cancel."""

    def clear_items(self, batch: str) -> bool:
        """Erase some items of a batch that is validated again. Returns True if there may be more to erase."""

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
        """Change the status by the table in `states.py`. A batch that ends gets its files in the same transaction.

        The events that end a running batch (`ALL_ENDED`, `WINDOW_OVER`, `STOPPED`) change nothing while items are
        left. Returns the batch after the change; None if nothing changed: there is no such batch, items are left, or
        the table has no such step.
        """

    # --- running ----------------------------------------------------------------------------------------------

    def claim(self, batch: str, model: str, limit: int, runner: str) -> list[Item]:
        """Claim up to `limit` pending items for this `runner`. Returns them, prompts that begin alike together."""

    def finish(self, results: Sequence[Result], runner: str) -> list[bool]:
        """Keep results and count them. Returns for each True, or False if this `runner` no longer holds the item."""

    def give_back(self, items: Iterable[tuple[str, int]], runner: str, *, attempted: bool) -> None:
        """Make claimed `items` (batch and line) pending again. `attempted` counts it as an attempt of each."""

    def end_pending(self, batch: str, code: str, message: str) -> int:
        """End some pending items unrun, as lines of the error file. Returns how many; 0 means none was left."""

    def beat(self, runner: str, until: float) -> None:
        """The claims of this `runner` are good until `until`, a Unix time."""

    def release_lost(self, now: float) -> int:
        """Make the items of lost runners pending again. Returns how many."""

    def purge(self, now: float) -> bool:
        """Erase some deleted or expired data. Returns True if there may be more to erase."""

    # --- made keys --------------------------------------------------------------------------------------------

    def add_key(self, key: MadeKey) -> None:
        """Keep a key. Raises NameTakenError or TooManyKeysError."""

    def change_key(self, name: str, rights: str) -> bool:
        """Give a key other rights. Returns False if it does not exist."""

    def erase_key(self, name: str) -> bool:
        """Forget a key. Returns False if it does not exist."""

    def keys(self, seen: str | None) -> tuple[str, list[MadeKey]] | None:
        """Returns a mark of the keys' last change, and all keys, oldest first.

        None if that change is `seen`, which an earlier call returned.
        """

    # --- who used what ----------------------------------------------------------------------------------------

    def add_usage(self, writer: str, number: int, rows: Sequence[UsageRow], now: float) -> None:
        """Add `rows` to the ledger. Nothing is added if the `writer` has added this `number` already.

        So an addition whose answer was lost is repeated without being counted twice. Numbers grow.
        """

    def usage(self, asked: UsageAsked) -> list[UsageRow]:
        """Returns sums, one row for each model and reason of what was asked for, in no order. At most `USAGE_MAX` and
        one: then there may be more.
        """

    def purge_usage(self, before: int, now: float) -> bool:
        """Erase some rows of hours before `before`. Returns True if there may be more to erase."""
