"""The load that `penstock demo` makes (the whole demo: tests/walkthrough)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cli import demo
from penstock.http.client.values import UpstreamError, UpstreamErrorKind


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_that_ends_while_the_load_is_stopped_raises_nothing(*, fails: bool) -> None:
    tally = demo.Tally()
    stream = demo._Stream(tally)
    stream.over.cancel()  # as its task's cancellation does, a step before the request is aborted
    stream.on_response(200, [])
    if fails:
        stream.on_error(UpstreamError(UpstreamErrorKind.RESET, "reset by peer"))
    else:
        stream.on_end()
    assert (tally.done, tally.refused) == (int(not fails), int(fails))
    with pytest.raises(asyncio.CancelledError):
        await stream.over
