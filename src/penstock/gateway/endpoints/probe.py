"""Probes: single GETs, bounded in time and size, and the presence that follows from their answers.

A redirect to another path of the same endpoint is followed, and a compressed answer is unpacked.

Presence is *loading* (503 before any good answer), *scaling* (503 that says so), *stopping* (another 503), *sleeping*,
*paused*, *down* (connection refused) or *hung* (connection accepted, no answer). An engine in a long step answers late
and is not hung. It is hung if several probes in a row, each on its own connection, got nothing for longer than any step
takes, and neither an answer under way nor the page moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urljoin, urlsplit

import msgspec

from penstock.core.endpoints.health import Presence
from penstock.http.client.pool import Headers, Response, Upstream, UpstreamError, UpstreamErrorKind, UpstreamException

ANSWER_BYTES_MAX = 4 << 20
LIST_BYTES_MAX = 16 << 20  # for a list of models: some 500 bytes each, and there may be many adapters
PAGE_BYTES_MAX = 16 << 20  # for a metrics page: a vLLM with 64 adapters and all histograms has some 6 MiB
REDIRECTS_MAX = 3  # a trailing slash costs one, a path prefix another
HUNG_AFTER_S = 10.0  # an engine's HTTP side answers within milliseconds even while a step takes seconds
HUNG_PROBES_MIN = 3
LATE_S = 1.0  # a time-out that fires later than that was our own loop's fault
NO_ANSWER = (UpstreamErrorKind.FIRST_BYTE_TIMEOUT, UpstreamErrorKind.IDLE_TIMEOUT)
_LOADING = b"loading"  # llama.cpp's 503
_SCALING = b"currently scaling"  # vLLM's, at every path, while the number of its data-parallel engines changes


class ProbeAnswer(msgspec.Struct, frozen=True):
    """An answer; status 0 means none, because of `failure`."""

    status: int
    body: bytes = b""
    failure: UpstreamException | None = None
    path: str = ""  #: the target of a redirect; empty: none was followed
    location: str = ""  #: the target of a redirect that was not followed

    @property
    def ok(self) -> bool:
        """True for status 200."""
        return self.status == 200

    @property
    def absent(self) -> bool:
        """True if the engine has no such path, which is final."""
        return self.status in (404, 405, 501)

    @property
    def refuses_key(self) -> bool:
        """True if the engine refused our credential, or requires one."""
        return self.status in (401, 403)

    @property
    def silent(self) -> bool:
        """True if there was no answer in time, or a 5xx: the engine may answer later."""
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
    """Returns a function that sends a GET for a path to one endpoint. It never raises for a fault of the engine.

    An answer has `timeout_s` to arrive whole, and at most `bytes_max`.
    """

    async def ask(path: str) -> ProbeAnswer:
        at = path
        for hop in range(REDIRECTS_MAX + 1):
            try:
                answer = await upstream.fetch("GET", at, headers=headers, timeout_s=timeout_s, bytes_max=bytes_max)
                body = await _unpacked(answer, bytes_max)
            except UpstreamException as failure:
                return ProbeAnswer(0, failure=failure)
            location = _location(answer)
            further = _same_place(upstream.url, at, location) if location else None
            if further is None or hop == REDIRECTS_MAX:
                break
            at = further
        return ProbeAnswer(answer.status, body, path=at if at != path else "", location=location)

    return ask


def _location(answer: Response) -> str:
    """Returns the target of a redirect; empty if the answer is none."""
    if answer.status not in (301, 302, 303, 307, 308):
        return ""
    return next((value.decode("latin-1") for name, value in answer.headers if name.lower() == b"location"), "")


def _same_place(url: str, path: str, location: str) -> str | None:
    """Returns the path to ask for instead of `path`; None if `location` is outside the endpoint at `url`.

    Behind a proxy that strips a prefix, an engine does not know the prefix of its own URL.
    """
    if url.startswith("unix:"):  # to itself it is `localhost`
        url = "http://localhost" + url.removeprefix("unix:").partition(":")[2]
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url.rstrip("/") + path, location))
        same = (here.scheme, here.hostname, here.port) == (there.scheme, there.hostname, there.port)
    except ValueError:
        return None
    target = there.path + (f"?{there.query}" if there.query else "")
    if not same or not target.isascii() or not target.isprintable() or " " in target:
        return None
    return target.removeprefix(here.path.rstrip("/"))


async def _unpacked(answer: Response, bytes_max: int) -> bytes:
    coding = b",".join(value for name, value in answer.headers if name.lower() == b"content-encoding")
    if not coding or not answer.body:
        return answer.body
    from penstock.http.inflate import (  # noqa: PLC0415 - few engines pack
        BadPacking,
        InflatesTooFar,
        UnknownPacking,
        coding_of,
        inflate,
    )

    try:
        steps = inflate(answer.body, coding_of(coding), bytes_max, lambda _: True)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                whole: bytes = end.value
                return whole
            await asyncio.sleep(0)  # a step takes half a millisecond
    except (BadPacking, UnknownPacking, InflatesTooFar) as refused:
        raise UpstreamException(UpstreamError(UpstreamErrorKind.PROTOCOL, str(refused))) from None


class Prober:
    """Judges one engine's presence, probe after probe."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.presence = Presence.UP  # until known otherwise: a request finds out as fast as a probe
        self._was_well = False  # it has answered well since it was last down
        self._silent_since_s: float | None = None
        self._silent_probes = 0

    @property
    def silent(self) -> bool:
        """True if the last probe got no answer in time: probe again soon."""
        return self._silent_probes > 0

    def judged(self, answer: ProbeAnswer, *, asked_s: float, now: float, moved_s: float) -> Presence:
        """Returns the presence that follows from an answer, and keeps it in `presence`.

        `asked_s` is when the probe was sent, `moved_s` when an answer or the page of the engine last moved.
        """
        failure = answer.failure
        if failure is not None and failure.error.kind in NO_ANSWER:
            self.presence = self._unanswered(asked_s, now, moved_s)
            return self.presence
        self._silent_since_s, self._silent_probes = None, 0
        if failure is not None:
            self._was_well = False
            self.presence = Presence.DOWN
        elif answer.status < 500:  # a 404 is an answer too
            self._was_well = True
            self.presence = Presence.UP
        else:
            said = answer.body[:1000].lower()
            unwell = Presence.STOPPING if self._was_well and _LOADING not in said else Presence.LOADING
            self.presence = Presence.SCALING if _SCALING in said else unwell
        return self.presence

    def _unanswered(self, asked_s: float, now: float, moved_s: float) -> Presence:
        if now - asked_s > self._timeout_s + LATE_S:
            return self.presence
        if self._silent_since_s is None or moved_s > self._silent_since_s:
            self._silent_since_s, self._silent_probes = asked_s, 0
        self._silent_probes += 1
        lasted_s = now - self._silent_since_s
        is_silent = self._silent_probes >= HUNG_PROBES_MIN and lasted_s >= HUNG_AFTER_S
        return Presence.HUNG if is_silent and self.presence is Presence.UP else self.presence
