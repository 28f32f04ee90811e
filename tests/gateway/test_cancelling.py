"""A task that swallows cancellations is cancelled again, and at last left behind."""

from __future__ import annotations

import asyncio

import pytest

from penstock.gateway.process import cancel

TIMES_MAX = 5


def swallower(times: int) -> asyncio.Task[None]:
    """A task that takes so many cancellations for nothing, and then waits."""

    async def swallow() -> None:
        for _ in range(times):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        await asyncio.Event().wait()

    return asyncio.get_running_loop().create_task(swallow(), name="swallower")


@pytest.mark.parametrize("times", [0, 1, TIMES_MAX - 1])
async def test_a_task_is_over_however_it_takes_the_first_cancellations(times: int) -> None:
    task = swallower(times)
    await asyncio.sleep(0)
    await cancel(task, wait_s=0.01)
    assert task.cancelled()


async def test_an_endless_one_is_abandoned_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    task = swallower(TIMES_MAX)
    await asyncio.sleep(0)
    await cancel(task, wait_s=0.01)
    assert not task.done()
    assert "swallower keeps running" in caplog.text
    task.cancel()


async def test_no_task_is_no_trouble() -> None:
    await cancel(None, wait_s=0.01)
