"""How an engine is asked something beside its requests: one GET, bounded in time and size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from penstock.http.client.pool import Headers, Upstream, UpstreamException

ANSWER_BYTES_MAX = 4 << 20
LIST_BYTES_MAX = 16 << 20  # of models: real entries have some 500 bytes, and adapters are many


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What came back. Status 0: nothing did, and `failure` says why."""

    status: int
    body: bytes = b""
    failure: UpstreamException | None = None

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def absent(self) -> bool:
        """It answered that there is no such thing, which is an answer too."""
        return self.status in (404, 405, 501)

    @property
    def silent(self) -> bool:
        """It did not say either way: no answer in time, or a failure. It may, another time."""
        return self.status == 0 or self.status >= 500

    def json(self) -> object:
        """The body as JSON, None when it is none."""
        if not self.ok:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


Ask = Callable[[str], Awaitable[ProbeAnswer]]


def asking(upstream: Upstream, headers: Headers, *, timeout_s: float, bytes_max: int = ANSWER_BYTES_MAX) -> Ask:
    """Ask one endpoint. Never raises for what the engine does."""

    async def ask(path: str) -> ProbeAnswer:
        try:
            answer = await upstream.fetch("GET", path, headers=headers, timeout_s=timeout_s, bytes_max=bytes_max)
        except UpstreamException as failure:
            return ProbeAnswer(0, failure=failure)
        return ProbeAnswer(answer.status, answer.body)

    return ask
