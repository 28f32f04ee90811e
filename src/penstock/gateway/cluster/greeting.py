"""Mutual proof of the group's secret, which itself is never sent: a challenge and an HMAC in each direction.

Each end sends a random number, and answers with an HMAC of both numbers, so a recorded proof is of no use later. The
dialling end proves first, so a stranger who dials learns nothing but a number.

Pure: generators of the bytes to send and the count of bytes to expect. Every step has a fixed length, so no byte is
kept that was not expected. The greeting does not encrypt the link; `share.tls` does.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Generator
from typing import Final

NAME: Final = b"penstock-link/1\n"  # version of the greeting; messages have their own
EDGE: Final = b"e"  # kind of a link: facts and actions
QUESTION: Final = b"q"  # kind: one HTTP request and its answer
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = hashlib.sha256().digest_size
_YES, _NO = b"y", b"n"

#: Yields the bytes to send and the count of bytes to expect; returns the kind of the link.
Talk = Generator[tuple[bytes, int], bytes, bytes]


class GreetingError(Exception):
    """The other end is not of this group. The text is the reason."""


def dialing(secret: bytes, kind: bytes, nonce: bytes) -> Talk:
    """The side that dialled. Raises `GreetingError`."""
    came = yield NAME + kind + nonce, len(NAME) + NONCE_BYTES
    if came[: len(NAME)] != NAME:
        raise GreetingError(f"the peer is not a gateway of this version: it sent {came[:24]!r}")
    theirs = came[len(NAME) :]
    said = yield _proof(secret, b"dialled", kind, nonce, theirs), 1
    if said != _YES:
        raise GreetingError("its share.secret differs")
    proof = yield b"", PROOF_BYTES
    if not hmac.compare_digest(proof, _proof(secret, b"listens", kind, nonce, theirs)):
        raise GreetingError("it does not know share.secret, so it is not part of this group")
    return kind


def listening(secret: bytes, nonce: bytes) -> Talk:
    """The side that listens. Raises `GreetingError` after it has refused the other end."""
    came = yield b"", len(NAME) + 1 + NONCE_BYTES
    kind, theirs = came[len(NAME) : len(NAME) + 1], came[len(NAME) + 1 :]
    if came[: len(NAME)] != NAME or kind not in (EDGE, QUESTION):
        raise GreetingError(f"not a greeting of a gateway of this version: {came[:24]!r}")
    proof = yield NAME + nonce, PROOF_BYTES
    if not hmac.compare_digest(proof, _proof(secret, b"dialled", kind, theirs, nonce)):
        yield _NO, 0
        raise GreetingError("its share.secret differs")
    yield _YES + _proof(secret, b"listens", kind, theirs, nonce), 0
    return kind


def _proof(secret: bytes, side: bytes, kind: bytes, dialled: bytes, listens: bytes) -> bytes:
    return hmac.digest(secret, b"".join((NAME, side, kind, dialled, listens)), "sha256")
