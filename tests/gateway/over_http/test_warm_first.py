"""Questions about one document go together before one slot, through the proxy and through the picker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.conftest import World, chat
from tests.gateway.epp.test_messages import answered, pool

DOCUMENT = 3_000  # characters


def question(document: int, turn: int) -> dict[str, Any]:
    text = "".join(f"{document}.{word} " for word in range(DOCUMENT // 6))
    return chat(f"{text} Question {turn}: what does it say?", tokens=2)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("group", "served"), [(None, "000111222"), (0, "012012012")])
async def test_questions_about_one_document_are_served_together(
    world: World, workers: int, group: int | None, served: str
) -> None:
    engine = await world.engine(step_s=0.02, max_num_seqs=1)
    await world.gateway(slots=1, routing={} if group is None else {"prefix_group": group})
    first = world.soon(world.chat(tokens=100))
    await world.until(lambda: len(engine.log.entries) == 1)
    tasks = []
    for number in range(9):
        tasks.append(world.soon(world.ask(body=question(number % 3, number // 3))))
        await world.until(lambda number=number: world.picture().waiting == number + 1)  # type: ignore[misc]
    answers = await asyncio.gather(first, *tasks)
    assert {answer.status for answer in answers} == {200}
    bodies = [
        json.loads(bytes(entry.body))["messages"][0]["content"] for entry in list(engine.log.entries)[1:] if entry.body
    ]
    assert "".join(body[0] for body in bodies) == served
    assert workers


async def test_questions_about_one_document_are_picked_together(world: World) -> None:
    async with pool(world, 1, slots=1) as its:
        blocker = its.stream()
        await blocker.head()
        await blocker.body(json.dumps(chat("hello")).encode())
        await blocker.picked()
        order: list[int] = []

        async def asks(number: int) -> None:
            stream, body = its.stream(), json.dumps(question(number % 3, number // 3)).encode()
            await stream.head()
            await stream.body(body)
            await stream.picked()
            order.append(number % 3)
            await answered(stream, body)

        tasks = []
        for number in range(9):
            tasks.append(asyncio.ensure_future(asks(number)))
            await world.until(lambda number=number: world.picture().waiting == number + 1)  # type: ignore[misc]
        blocker.call.cancel()
        await asyncio.gather(*tasks)
        assert "".join(map(str, order)) == "000111222"
