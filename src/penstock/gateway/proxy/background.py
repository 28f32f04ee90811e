"""A response that its engine computes after it was answered (`background: true`): how long is its lease held?

Until it is done. The engine is asked for it (`GET /v1/responses/ID`): soon, then more and more rarely, and at once when
somebody reads, cancels or deletes it through this process. The first report that is final ends the request, and its
usage is charged; what callers read is never counted, so it counts once. If the end can't be known (the engine does not
know the response, can't be asked, or takes longer than `timeouts.background`), the request ends as one without usage
does: charged by estimate. A gateway that restarts forgets its background responses, and their engines go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol
from urllib.parse import quote

from penstock.core.values.actions import Abort, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import Request, Usage
from penstock.gateway.openai.answers.usage import estimated_tokens, read_kept
from penstock.gateway.proxy.arrival import Means
from penstock.gateway.proxy.target import Target
from penstock.gateway.proxy.ties import RESPONSES_PATH
from penstock.gateway.sessions.kept_answers import Keeping
from penstock.http.client.pool import Headers, UpstreamException

FIRST_S: Final = 0.25  # a short answer is done by then
GROWTH: Final = 1.5
EVERY_S_MAX: Final = 5.0  # a slot stands empty so long at most, while 200 responses cost an engine 40 small requests/s
GAP_S: Final = 0.1  # between two questions, however often callers read
MISSES_MAX: Final = 4  # in a row, some 2 s when young: a busy engine may fail to answer one or two
ANSWER_S: Final = 10.0
UNDER_WAY: Final = ("queued", "in_progress")


class Followed(Protocol):
    """The journey whose lease is held."""

    @property
    def request(self) -> Request: ...
    @property
    def band(self) -> str: ...
    def settle(self, usage: Usage | None, tokens: int, /) -> None: ...
    def lost(self) -> None: ...
    def give_up(self, reason: Reason, /) -> None: ...


class Background:
    """Stands for a journey whose client has its answer, until the engine has computed the response."""

    def __init__(self, journey: Followed, kept: Keeping, target: Target, headers: Headers, means: Means) -> None:
        self._journey = journey
        self._kept = kept
        self._target = target
        self._path = f"{RESPONSES_PATH}/{quote(kept.name, safe='')}"
        self._headers = headers  # the credential that made it
        self._means = means
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Follow the response, in place of its journey."""
        self._means.driver.join(self.request.id, self)
        self._kept.follow(self._look.set)
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- as lists of requests show it -----------------------------------------------------------------------------

    @property
    def request(self) -> Request:
        return self._journey.request

    @property
    def band(self) -> str:
        return self._journey.band

    @property
    def waits(self) -> bool:
        """False: an engine computes it."""
        return False

    # --- from the scheduler ---------------------------------------------------------------------------------------

    def dispatched(self, action: Dispatch, /) -> None: ...
    def decoding(self, action: Decode, /) -> None: ...

    def requeued(self, action: Requeue, /) -> None:  # noqa: ARG002
        """Its lease is gone: nobody waits for another answer."""
        self._stop()
        self._journey.lost()

    def ended(self, action: Reject | Evict | Fail, /) -> None:  # noqa: ARG002
        self._stop()
        self._journey.lost()

    def aborted(self, action: Abort, /) -> None:
        """Cancel the response, unless only this gateway ends: then it can be read through the next one."""
        self._stop()
        if action.reason is not Reason.DRAINING:
            self._task = asyncio.get_running_loop().create_task(self._cancel())
        self._journey.give_up(action.reason)

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        now = self._means.driver.now
        until_s = now() + self._means.background_s
        wait_s, misses = FIRST_S, 0
        while misses < MISSES_MAX and (left_s := until_s - now()) > 0.0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), min(wait_s, left_s))
            self._look.clear()
            body = await self._ask("GET", self._path)
            status, usage = read_kept(body)
            if status and status not in UNDER_WAY:
                self._end(usage, estimated_tokens(body, len(body)))
                return
            misses = 0 if status else misses + 1
            if status:
                self._target.moved = True
            wait_s = min(wait_s * GROWTH, EVERY_S_MAX)
            await asyncio.sleep(GAP_S)
        self._end(None, 0)

    async def _ask(self, method: str, path: str) -> bytes:
        """Returns the engine's good answer, or nothing."""
        try:
            async with self._means.looks:
                answer = await self._target.upstream.fetch(method, path, headers=self._headers, timeout_s=ANSWER_S)
        except UpstreamException:
            return b""
        return answer.body if answer.status == 200 else b""

    async def _cancel(self) -> None:
        await self._ask("POST", self._path + "/cancel")

    def _end(self, usage: Usage | None, tokens: int) -> None:
        self._kept.followed()
        self._journey.settle(usage, tokens)

    def _stop(self) -> None:
        self._kept.followed()
        if self._task is not None:
            self._task.cancel()
            self._task = None
