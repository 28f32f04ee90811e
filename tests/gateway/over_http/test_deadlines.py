"""Deadlines over HTTP: refused is only what the present speaks against."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import Answer, World, chat, fault

pytestmark = pytest.mark.virtual_time

SLO = "x-slo-ttft-ms"


async def test_a_fresh_gateway_refuses_no_short_deadline(world: World) -> None:
    await world.engine()
    await world.gateway()
    for header in (SLO, "x-llm-d-slo-ttft-ms"):
        assert (await world.chat_with({header: "100"}, stream=True)).status == 200


async def test_after_a_slow_spell_feasible_deadlines_are_accepted_again(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=32)

    async def ask(content: str, headers: dict[str, str]) -> Answer:
        return await world.ask(body=chat(content, tokens=1, stream=True), headers=headers)

    await ask("well", {})  # which tells how large prompts are
    fault(engine, "slow", factor=60.0)  # first tokens take more than half a second
    await asyncio.gather(*[ask(f"slow {number}", {}) for number in range(8)])
    late = await asyncio.gather(*[ask(f"late {number}", {SLO: "200"}) for number in range(3)])
    assert [answer.error()["code"] for answer in late if answer.status != 200] == ["deadline_missed"] * 2
    assert await world.metric("penstock_deadline_tries_total", model="sim") == 1
    fault(engine, "none")
    await ask("well 0", {})
    assert {(await ask(f"well {number}", {SLO: "200"})).status for number in range(1, 11)} == {200}
