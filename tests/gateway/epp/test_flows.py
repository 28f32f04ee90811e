"""A proxy's headers name the band and the flow of a request as a client's do."""

from __future__ import annotations

from typing import Any

from tests.gateway.conftest import World, chat, request
from tests.gateway.endpoints.kube_cluster import OBJECTIVES, KubeCluster
from tests.gateway.epp.test_messages import BODY, Pool, places, pool
from tests.patience import WAIT_S, looks

OBJECTIVE, FAIRNESS = "x-gateway-inference-objective", "x-gateway-inference-fairness-id"


async def waiting(world: World) -> tuple[str, tuple[str, ...]]:
    """The band and the flow of the one request that waits."""
    await world.until(lambda: world.picture().waiting == 1)
    bands = world.gate.driver.scheduler.inspect().queues.bands
    return next((band.settings.name, entry.request.flow) for band in bands for entry in band.entries.values())


async def proxied(world: World, headers: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    client = await world.client(request(body=chat(), headers=headers))
    found = await waiting(world)
    client.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    return found


async def picked(its: Pool, headers: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    stream = its.stream()
    values: dict[str, Any] = {name: value.encode() for name, value in headers.items()}
    await stream.head(**values)
    await stream.body(BODY)
    found = await waiting(its.world)
    stream.call.cancel()
    await its.world.until(lambda: its.world.picture().waiting == 0)
    return found


async def test_objective_and_fairness_id_choose_band_and_flow_as_on_the_proxy(world: World) -> None:
    async with KubeCluster(OBJECTIVES) as cluster:
        cluster.pool(ports=[1])  # without pods: it only brings the objectives
        cluster.objective("gold", 7)
        source = {"kubernetes": {"pool": "qwen", "server": cluster.url}}
        by_user: dict[str, Any] = {"fairness": {"levels": ["tenant", "user"]}, "identity": {"max_band": "interactive"}}
        async with pool(world, 1, slots=1, discovery=[source], **by_user) as its:
            async for _ in looks(WAIT_S):
                if (await world.chat_with({OBJECTIVE: "gold"})).header("x-penstock-band") == "interactive":
                    break
            runs = its.stream()
            await runs.head()
            await runs.body(BODY)
            assert await runs.picked() == places(world)[0]
            for headers, expected in (
                ({OBJECTIVE: "gold"}, ("interactive", ("client:127.0.0.1", ""))),
                ({OBJECTIVE: "none"}, ("standard", ("client:127.0.0.1", ""))),
                ({FAIRNESS: "blue"}, ("standard", ("blue", ""))),
                ({OBJECTIVE: "gold", FAIRNESS: "red"}, ("interactive", ("red", ""))),
            ):
                assert await picked(its, headers) == expected
                assert await proxied(world, headers) == expected
            runs.call.cancel()
