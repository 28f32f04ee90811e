"""How do the items of a batch reach the scheduler? The port between the runner and the gateway.

The runner offers an item as a request of the lowest band, which is handled like any client's request. The runner gets
exactly one result of an item, unless it withdraws the item first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.core.values.request import Usage


class Work(msgspec.Struct, frozen=True, gc=False):
    """An item as a request."""

    name: str  #: the request id
    tenant: str
    user: str
    path: str
    body: bytes
    rights: str = "{}"  #: the rights of the key that made the batch


class ItemAnswer(msgspec.Struct, frozen=True, gc=False):
    """How an item ended: with an engine's answer, or with a refusal of our own."""

    status: int
    body: bytes
    request_id: str
    usage: Usage | None = None
    reason: str | None = None  #: why we refused, or stopped retrying; None otherwise
    retry_after_s: float | None = None
    too_large: bool = False  #: the answer is too long to keep; `body` is empty


class Offer(Protocol):
    """One item that was offered and has not ended."""

    def withdraw(self) -> None:
        """Take the item back, waiting or running. `sent` and `ended` are no longer called."""


class DispatchPort(Protocol):
    """The way to the engines, as the runner sees it."""

    @property
    def decides(self) -> bool:
        """Returns False while another gateway of a group decides: it runs the items of all batches."""

    def offer(self, work: Work, *, sent: Callable[[bool], None], ended: Callable[[ItemAnswer], None]) -> Offer:
        """Let `work` wait for its turn. Returns the handle to withdraw it.

        `sent` is called with True when the item goes to an engine, and with False when it waits again; `ended` is
        called once, with how it ended. Both may be called before this returns.
        """

    def room(self, tenant: str, user: str, model: str) -> int:
        """Returns how many more items may be offered now; 0 or less means none.

        That is the room in the queue, or, with queueing off, the number of unused slots.
        """

    def serves(self, model: str) -> bool:
        """Returns False if no endpoint serves `model`; True also if that is unknown yet."""

    def takes(self, path: str) -> bool:
        """Returns True if items may ask for `path`."""
