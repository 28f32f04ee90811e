"""The port through which items reach the scheduler: what the runner offers, and what it hears of it.

The runner offers an item as a request of the lowest band, on the same way as any request of a caller. It hears exactly
once how it ended, unless it withdraws it first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.core.values.request import Usage


class Work(msgspec.Struct, frozen=True, gc=False):
    """An item as a request."""

    name: str  #: its request id
    tenant: str
    user: str
    path: str
    body: bytes


class ItemAnswer(msgspec.Struct, frozen=True, gc=False):
    """How it ended: an engine's answer, or a refusal of our own."""

    status: int
    body: bytes
    request_id: str
    usage: Usage | None = None
    reason: str | None = None  #: of a refusal of our own, or where an engine's answer was the last word of several
    retry_after_s: float | None = None
    too_large: bool = False  #: more than is kept; the body is cut


class Offer(Protocol):
    """One item under way."""

    def withdraw(self) -> None:
        """Take it back, waiting or running. Nothing more is heard of it."""


class Lane(Protocol):
    """The way to the engines."""

    def offer(self, work: Work, *, sent: Callable[[bool], None], ended: Callable[[ItemAnswer], None]) -> Offer:
        """Let it wait its turn. `sent` tells when it goes to an engine (True) and when it waits again (False).

        Both may be called before this returns.
        """

    def room(self, tenant: str, user: str, model: str) -> int:
        """How many more there is room for now: in the queue, or at the engines where nothing is queued."""

    def serves(self, model: str) -> bool:
        """Whether a model is one of those that are served; True where that can't be known yet."""

    def takes(self, path: str) -> bool:
        """Whether a path is one that items may ask for."""
