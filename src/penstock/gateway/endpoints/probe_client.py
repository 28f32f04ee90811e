"""How is an engine asked something beside its requests? With one GET, bounded in time and size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from penstock.http.client.pool import Headers, Upstream, UpstreamException

ANSWER_BYTES_MAX = 4 << 20
LIST_BYTES_MAX = 16 << 20  # for a list of models: real entries have some 500 bytes, and there may be many adapters


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What came back. With status 0 nothing did, and `failure` says why."""

    status: int
    body: bytes = b""
    failure: UpstreamException | None = None

    @property
    def ok(self) -> bool:
        """True for status 200."""
        return self.status == 200

    @property
    def absent(self) -> bool:
        """True if the engine answered that it has no such path: an answer too, and a final one."""
        return self.status in (404, 405, 501)

    @property
    def silent(self) -> bool:
        """True if the engine said nothing either way (no answer in time, or a 5xx): it may answer another time."""
        return self.status == 0 or self.status >= 500

    def json(self) -> object:
        """Returns the body as JSON; None if it is not JSON, or the status is not 200."""
        if not self.ok:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


Ask = Callable[[str], Awaitable[ProbeAnswer]]


def asking(upstream: Upstream, headers: Headers, *, timeout_s: float, bytes_max: int = ANSWER_BYTES_MAX) -> Ask:
    """Returns a function that sends a GET for a path to one endpoint. It never raises for what the engine does.

    An answer has `timeout_s` to arrive whole, and at most `bytes_max`.
    """

    async def ask(path: str) -> ProbeAnswer:
        try:
            answer = await upstream.fetch("GET", path, headers=headers, timeout_s=timeout_s, bytes_max=bytes_max)
        except UpstreamException as failure:
            return ProbeAnswer(0, failure=failure)
        return ProbeAnswer(answer.status, answer.body)

    return ask
