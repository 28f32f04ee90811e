"""A pool's objects through real Envoy: every port is picked, objectives choose bands, rewrites change bodies.

What the extension's conformance tests of routing ask of a picker; docs/gateways.md has them one by one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.gateway.conftest import World, chat
from tests.gateway.endpoints.kube_cluster import OBJECTIVES, REWRITES, KubeCluster
from tests.gateway.epp.conftest import Envoy, behind
from tests.patience import WAIT_S, looks


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def pooled(world: World, envoy: Envoy, cluster: KubeCluster, **settings: Any) -> None:
    """A picker for the pool, whose pods have an engine at each of their ports."""
    cluster.pool(ports=[port_of(engine.url) for engine in world.engines])
    cluster.pod("a", "127.0.0.1")
    source = {"kubernetes": {"pool": "qwen", "server": cluster.url}}
    await behind(world, envoy, endpoints=[], discovery=[source], **settings)


async def test_every_port_of_a_pod_is_picked_and_serves_what_was_sent_to_it(world: World, envoy: Envoy) -> None:
    ranks = [await world.engine() for _ in range(3)]
    async with KubeCluster() as cluster:
        await pooled(world, envoy, cluster, routing={"policy": "round_robin"})
        answers = [await world.chat() for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 6
        assert [len(rank.log.entries) for rank in ranks] == [2, 2, 2]
        picked = Counter(answer.header("x-penstock-endpoint") for answer in answers)
        assert picked == {f"a:{port_of(rank.url)}": 2 for rank in ranks}
        await world.idle()


async def test_an_objective_chooses_the_band_and_a_changed_one_another(world: World, envoy: Envoy) -> None:
    await world.engine()
    async with KubeCluster(OBJECTIVES) as cluster:
        cluster.objective("gold", 7)

        async def becomes(band: str) -> None:
            async for _ in looks(WAIT_S):
                answer = await world.chat_with({"x-gateway-inference-objective": "gold"})
                if answer.header("x-penstock-band") == band:
                    return

        await pooled(world, envoy, cluster, identity={"max_band": "interactive"})
        await becomes("interactive")
        cluster.objective("gold", -7)
        await becomes("batch")
        assert (await world.chat_with({"x-gateway-inference-objective": "none"})).header(
            "x-penstock-band"
        ) == "standard"
        await world.idle()


async def test_a_rewrite_changes_the_model_in_the_body_by_weight(world: World, envoy: Envoy) -> None:
    await world.engine(model="old")
    await world.engine(model="new")
    async with KubeCluster(REWRITES) as cluster:
        targets = [{"modelRewrite": "old", "weight": 3}, {"modelRewrite": "new", "weight": 1}]
        cluster.rewrite("canary", {"matches": [{"model": {"value": "chat"}}], "targets": targets})
        await pooled(world, envoy, cluster)
        async for _ in looks(WAIT_S):
            if (await world.ask(body=chat(model="chat"))).status == 200:
                break
        await world.until(lambda: all(endpoint.models for endpoint in world.picture().endpoints))
        for engine in world.engines:
            engine.log.clear()
        answers = [await world.ask(body=chat(model="chat")) for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 8
        assert Counter(answer.json()["model"] for answer in answers) == {"old": 6, "new": 2}
        assert [len(engine.log.entries) for engine in world.engines] == [6, 2]
        await world.idle()


async def test_a_pool_without_ready_pods_is_a_503_and_serves_when_one_is_ready(world: World, envoy: Envoy) -> None:
    engine = await world.engine()
    async with KubeCluster() as cluster:
        await pooled(world, envoy, cluster, queue={"empty_pool_wait": "200ms"})
        assert (await world.chat()).status == 200
        cluster.pod("a", "127.0.0.1", ready=False)
        await world.until(lambda: not world.picture().endpoints)
        refused = await world.chat()
        assert (refused.status, refused.error()["code"]) == (503, "no_endpoint")
        assert refused.header("x-llm-d-request-dropped-reason") == "rejected-no-endpoints"
        assert int(refused.header("retry-after") or "0") >= 1
        cluster.pod("a", "127.0.0.1")
        await world.until(lambda: world.picture().endpoints)
        assert (await world.chat()).status == 200
        assert len(engine.log.entries) == 2
        await world.idle()
