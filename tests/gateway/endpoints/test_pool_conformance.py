"""What the extension's conformance tests ask of a picker's view of pools, through a gateway that serves them.

The suite itself checks gateways, in a cluster whose pods run; docs/gateways.md has its tests one by one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import World
from tests.gateway.endpoints.kube_cluster import POOLS, KubeCluster


def sources(cluster: KubeCluster, *pools: str) -> list[dict[str, Any]]:
    return [{"kubernetes": {"pool": pool, "server": cluster.url}} for pool in pools]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def endpoints(world: World) -> list[str]:
    return sorted(endpoint.name for endpoint in world.picture().endpoints)


async def test_every_port_of_a_pod_is_chosen_as_an_endpoint_of_its_own(world: World) -> None:
    """GatewayFollowingEPPRoutingWithDataParallelism: one pod, a rank at each of three ports."""
    ranks = [await world.engine() for _ in range(3)]
    async with KubeCluster() as cluster:
        cluster.pool(ports=[port_of(rank.url) for rank in ranks])
        cluster.pod("rank", "127.0.0.1")
        await world.gateway(endpoints=[], discovery=sources(cluster, "qwen"), routing={"policy": "round_robin"})
        answers = [await world.chat() for _ in range(6)]
        by_name = [answer.header("x-penstock-endpoint") for answer in answers]
        names = [f"rank:{port_of(rank.url)}" for rank in ranks]
        assert sorted(filter(None, by_name)) == sorted(names * 2)
        assert [len(rank.log.entries) for rank in ranks] == [2, 2, 2]
        pinned = await world.ask(path=f"/v1/chat/completions?id={names[1]}", body={"model": "sim", "messages": []})
        assert pinned.header("x-penstock-endpoint") == names[1]


async def test_requests_for_a_pool_reach_the_endpoints_of_that_pool_only(world: World) -> None:
    """GatewayWeightedAcrossTwoInferencePools and the tests of several pools: each picker has its own."""
    own, other = await world.engine(model="sim"), await world.engine(model="other")
    async with KubeCluster() as cluster:
        cluster.pool("primary", labels={"app": "one"}, ports=[port_of(own.url)])
        cluster.pool("secondary", labels={"app": "two"}, ports=[port_of(other.url)])
        cluster.pod("a", "127.0.0.1", app="one")
        cluster.pod("b", "127.0.0.1", app="two")
        await world.gateway(endpoints=[], discovery=sources(cluster, "primary"))
        await world.until(lambda: endpoints(world) == ["a"])
        assert (await world.chat()).header("x-penstock-endpoint") == "a"
        assert (await world.chat(model="other")).status == 404
        world.document["discovery"] = sources(cluster, "primary", "secondary")
        await world.gate.reload()
        await world.until(lambda: endpoints(world) == ["a", "b"])
        await world.until(lambda: all(endpoint.models for endpoint in world.picture().endpoints))
        assert (await world.chat(model="other")).header("x-penstock-endpoint") == "b"
        world.document["discovery"] = sources(cluster, "secondary")
        await world.gate.reload()
        await world.until(lambda: endpoints(world) == ["b"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"appProtocol": "kubernetes.io/h2c"}, "its engines take kubernetes.io/h2c"),
        ({"endpointPickerRef": {"name": "nowhere", "port": {"number": 9002}}}, None),
        ({"endpointPickerRef": {"name": "penstock-epp", "failureMode": "FailOpen"}}, None),
    ],
)
async def test_what_concerns_the_gateway_changes_no_endpoint(
    world: World, caplog: pytest.LogCaptureFixture, change: dict[str, Any], said: str | None
) -> None:
    """InferencePoolAppProtocol, InferencePoolInvalidEPPService, InferencePoolMissingEPPRef and those of conditions."""
    engine = await world.engine()
    async with KubeCluster() as cluster:
        ports = [port_of(engine.url)]
        cluster.pool(ports=ports)
        cluster.pod("a", "127.0.0.1")
        await world.gateway(endpoints=[], discovery=sources(cluster, "qwen"))
        assert (await world.chat()).status == 200
        cluster.pool(ports=ports, **change)
        cluster.kinds[POOLS].put(
            "qwen",
            spec=cluster.kinds[POOLS].objects["qwen"]["spec"],
            status={"parents": [{"conditions": [{"type": "Accepted", "status": "False", "reason": "NoRoute"}]}]},
        )
        cluster.pod("marker", "127.0.0.2", ready=True)
        await world.until(lambda: endpoints(world) == ["a", "marker"])
        assert (await world.chat()).header("x-penstock-endpoint") == "a"
        logged = [record.getMessage() for record in caplog.records if "engines take" in record.getMessage()]
        assert len(logged) == (0 if said is None else 1)
        assert all(said is not None and said in line for line in logged)
