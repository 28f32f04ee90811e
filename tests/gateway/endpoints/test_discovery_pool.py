"""A pool of the Gateway API inference extension: its endpoints and rules are those of its objects, at any moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import EndpointSection
from penstock.config.sections.discovery import Kubernetes
from penstock.gateway.endpoints.discovery import base, kubernetes_follower, kubernetes_pool
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from penstock.gateway.endpoints.discovery.kubernetes_pool import PoolSource
from penstock.gateway.endpoints.pool_rules import ModelRewrite, PoolRules, RuleBook
from tests.gateway.conftest import World
from tests.gateway.endpoints.following import Seen, watching
from tests.gateway.endpoints.kube_cluster import (
    IMPORTS,
    OBJECTIVES,
    OLD_OBJECTIVES,
    OLD_REWRITES,
    POOLS,
    REWRITES,
    KubeCluster,
)
from tests.patience import WAIT_S, looks

NAME = "kubernetes default pool qwen"


class SeenPool(Seen):
    """The last report of a pool, with its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = PoolRules()

    def know(self, rules: PoolRules) -> None:
        self.rules = rules


def following(cluster: KubeCluster, **settings: Any) -> AbstractAsyncContextManager[SeenPool]:
    parsed = Kubernetes.model_validate({"pool": "qwen", "server": cluster.url, **settings})
    seen = SeenPool()
    book = RuleBook(seen.know)
    source = PoolSource(parsed, Access(parsed, {}, account=Path("/nowhere")), book.want)
    book.ranked([source.name])
    return watching(source, seen)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (base, kubernetes_follower):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)
    for module in (base, kubernetes_follower, kubernetes_pool):
        monkeypatch.setattr(module, "PAUSE_S_MAX", 0.01)
    monkeypatch.setattr(kubernetes_pool, "MISSING_PAUSE_S", 0.01)


def told(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [text for record in caplog.records if part in (text := record.getMessage())]


async def test_each_target_port_of_each_ready_pod_is_an_endpoint() -> None:
    async with KubeCluster() as cluster:
        cluster.pool(ports=[8000, 8001])
        cluster.pod("a", "10.0.0.1")
        cluster.pod("b", "10.0.0.2", ready=False)
        cluster.pod("other", "10.0.0.3", app="web")
        async with following(cluster) as seen:
            await seen.until(seen.urls)
            assert seen.urls() == {"a:8000": "http://10.0.0.1:8000", "a:8001": "http://10.0.0.1:8001"}
            cluster.pod("b", "10.0.0.2")
            await seen.until(lambda: len(seen.urls()) == 4)
            cluster.pool(ports=[9000])
            await seen.until(lambda: seen.urls() == {"a": "http://10.0.0.1:9000", "b": "http://10.0.0.2:9000"})
        assert cluster.kinds[POOLS].queries[0]["fieldSelector"] == "metadata.name=qwen"


async def test_a_changed_selector_selects_other_pods_at_once_and_without_an_empty_moment() -> None:
    async with KubeCluster() as cluster:
        cluster.pool()
        cluster.pod("a", "10.0.0.1")
        cluster.pod("b", "10.0.0.2", app="sglang")
        async with following(cluster) as seen:
            await seen.until(seen.urls)
            cluster.pool(labels={"app": "sglang"})
            before = seen.told
            await seen.until(lambda: seen.told > before)
            assert list(seen.urls()) == ["b"]


async def test_a_pool_that_comes_later_is_followed_and_a_deleted_one_has_no_endpoints(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with KubeCluster() as cluster:
        cluster.pod("a", "10.0.0.1")
        cluster.pool("another")
        async with following(cluster) as seen:
            await seen.until(lambda: told(caplog, "there is no InferencePool qwen"))
            assert seen.urls() == {}
            cluster.pool()
            await seen.until(seen.urls)
            cluster.kinds[POOLS].delete("qwen")
            await seen.until(lambda: not seen.urls())


async def test_a_pool_of_another_cluster_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    async with KubeCluster() as cluster:
        cluster.single[f"{IMPORTS}/qwen"] = {"metadata": {"name": "qwen"}}
        async with following(cluster) as seen:
            await seen.until(lambda: told(caplog, "is an InferencePoolImport, a pool of another cluster"))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": []}, "it has 0 target ports"),
        ({"selector": {"matchLabels": {"app": "vllm"}}}, "it has 0 target ports"),
        ({"selector": {"matchLabels": {}}, "targetPorts": [{"number": 8000}]}, "it selects no labels"),
        ({"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 0}]}, "0 is not a port"),
        (
            {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": n} for n in range(1, 10)]},
            "9 target ports",
        ),
        ({"selector": "app=vllm", "targetPorts": [{"number": 8000}]}, "can't be read: Expected `object`"),
        ({"targetPorts": [{"number": "http"}]}, "can't be read"),
    ],
)
async def test_an_unusable_pool_changes_nothing_and_is_logged(
    spec: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with KubeCluster() as cluster:
        cluster.pool()
        cluster.pod("a", "10.0.0.1")
        async with following(cluster) as seen:
            await seen.until(seen.urls)
            cluster.kinds[POOLS].put("qwen", spec=spec)
            await seen.until(lambda: told(caplog, why))
            cluster.pod("b", "10.0.0.2")
            await seen.until(lambda: set(seen.urls()) == {"a", "b"})


async def test_nothing_is_lost_while_the_server_restarts() -> None:
    async with KubeCluster(OBJECTIVES) as cluster:
        cluster.pool()
        cluster.objective("gold", 7)
        for n in range(20):
            cluster.pod(f"p{n}", f"10.0.0.{n}")
        async with following(cluster) as seen:
            await seen.until(lambda: len(seen.urls()) == 20 and seen.rules.priorities)
            fewest = [20]
            want = seen.want

            def noting(source: str, endpoints: Sequence[EndpointSection], /) -> None:
                fewest.append(len(endpoints))
                want(source, endpoints)

            seen.want = noting  # type: ignore[method-assign]
            for round_ in range(3):
                await cluster.stop()
                cluster.pod(f"late{round_}", f"10.0.1.{round_}")
                cluster.objective("gold", round_)
                for kind in cluster.kinds.values():
                    kind.forget()
                await cluster.start()
                late, gold = f"late{round_}", {"gold": round_}
                await seen.until(
                    partial(lambda pod, rules: pod in seen.urls() and seen.rules.priorities == rules, late, gold)
                )
            assert min(fewest) == 20
            assert len(seen.urls()) == 23


async def test_objectives_of_both_groups_are_followed_for_the_own_pool_only() -> None:
    async with KubeCluster(OBJECTIVES, OLD_OBJECTIVES) as cluster:
        cluster.pool()
        cluster.objective("gold", 10)
        cluster.objective("gold", -5, path=OLD_OBJECTIVES)
        cluster.objective("old", -1, path=OLD_OBJECTIVES)
        cluster.objective("theirs", 3, pool="another")
        cluster.kinds[OBJECTIVES].put("plain", spec={"poolRef": {"name": "qwen"}})
        async with following(cluster) as seen:
            await seen.until(lambda: seen.rules.priorities == {"gold": 10, "old": -1, "plain": 0})
            cluster.kinds[OBJECTIVES].delete("gold")
            cluster.objective("old", 2, path=OLD_OBJECTIVES)
            cluster.objective("theirs", 3)
            await seen.until(lambda: seen.rules.priorities == {"gold": -5, "old": 2, "plain": 0, "theirs": 3})


async def test_a_malformed_objective_keeps_what_it_was_and_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with KubeCluster(OBJECTIVES) as cluster:
        cluster.pool()
        cluster.objective("gold", 10)
        cluster.objective("bad", "high")
        async with following(cluster) as seen:
            await seen.until(lambda: seen.rules.priorities == {"gold": 10})
            cluster.objective("gold", 1.5)
            cluster.objective("new", 1)
            await seen.until(lambda: seen.rules.priorities == {"gold": 10, "new": 1})
    assert told(caplog, "InferenceObjective bad can't be read: Expected `int | null`, got `str`")[0].endswith(
        "left out"
    )
    assert len(told(caplog, "InferenceObjective gold can't be read")) == 1


async def test_without_their_definitions_or_rights_endpoints_are_followed_anyway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with KubeCluster(OBJECTIVES) as cluster:
        cluster.pool()
        cluster.pod("a", "10.0.0.1")
        cluster.objective("gold", 1)
        cluster.refused[OBJECTIVES] = 403
        async with following(cluster) as seen:
            await seen.until(lambda: seen.urls() and told(caplog, "the account needs the verbs list and watch there"))
            del cluster.refused[OBJECTIVES]
            await seen.until(lambda: seen.rules.priorities == {"gold": 1})
    assert len(told(caplog, "the account needs")) == 1, "once, not at every attempt"


async def test_rewrites_take_precedence_by_age_and_weights_count_if_any_is_given() -> None:
    def rule(*models: str, **weights: int | None) -> dict[str, Any]:
        targets = [
            {"modelRewrite": name, **({} if weight is None else {"weight": weight})} for name, weight in weights.items()
        ]
        return {"matches": [{"model": {"value": model}} for model in models], "targets": targets}

    async with KubeCluster(REWRITES, OLD_REWRITES) as cluster:
        cluster.pool()
        oldest = {"poolRef": {"name": "qwen"}, "rules": [rule("talk", oldest=1)]}
        cluster.kinds[OLD_REWRITES].put("o", spec=oldest, metadata={"creationTimestamp": "2025-01-01T00:00:00Z"})
        cluster.rewrite("young", rule("chat", new=1), created="2026-02-01T00:00:00Z")
        cluster.rewrite("old", rule("chat", "talk", a=9, b=1), rule(any=None, other=None), rule("x", y=None, z=3))
        cluster.rewrite("theirs", rule("chat", nothing=1), pool="another")
        async with following(cluster) as seen:
            await seen.until(lambda: len(seen.rules.rewrites) == 5)
            assert seen.rules.rewrites == (
                ModelRewrite(("talk",), {"oldest": 1}),
                ModelRewrite(("chat", "talk"), {"a": 9, "b": 1}),
                ModelRewrite((), {"any": 1, "other": 1}),
                ModelRewrite(("x",), {"z": 3}),
                ModelRewrite(("chat",), {"new": 1}),
            )


# --- in a gateway -------------------------------------------------------------------------------------------------


def engine_pod(cluster: KubeCluster, name: str, url: str) -> int:
    cluster.pod(name, "127.0.0.1")
    return int(url.rpartition(":")[2])


async def gateway_of(world: World, cluster: KubeCluster, **settings: Any) -> None:
    source = {"kubernetes": {"pool": "qwen", "server": cluster.url}}
    await world.gateway(endpoints=[], discovery=[source], **settings)


async def band(world: World, objective: str, header: str = "x-gateway-inference-objective") -> str | None:
    return (await world.chat_with({header: objective})).header("x-penstock-band")


async def until_band(world: World, objective: str, wanted: str) -> None:
    async for _ in looks(WAIT_S):
        if await band(world, objective) == wanted:
            return


async def until_status(world: World, model: str, wanted: int) -> None:
    async for _ in looks(WAIT_S):
        if (await world.chat(model=model)).status == wanted:
            return


async def test_an_objective_chooses_the_band_and_is_changed_while_requests_come(world: World) -> None:
    engine = await world.engine()
    async with KubeCluster(OBJECTIVES, OLD_OBJECTIVES) as cluster:
        cluster.pool(ports=[engine_pod(cluster, "a", engine.url)])
        cluster.objective("gold", 100)
        cluster.objective("crawl", -3, path=OLD_OBJECTIVES)
        cluster.objective("interactive", 0)  # named like a band
        await gateway_of(world, cluster, identity={"max_band": "interactive"})
        await until_band(world, "crawl", "batch")
        assert await band(world, "gold", "x-llm-d-inference-objective") == "interactive"
        assert await band(world, "interactive") == "standard"
        assert await band(world, "unheard-of") == "standard"
        cluster.objective("gold", -1)
        await until_band(world, "gold", "batch")
        cluster.kinds[OBJECTIVES].delete("gold")
        await until_band(world, "gold", "standard")


async def test_a_rewrite_splits_a_model_and_gives_way_to_the_settings(world: World) -> None:
    engine = await world.engine()
    async with KubeCluster(REWRITES) as cluster:
        cluster.pool(ports=[engine_pod(cluster, "a", engine.url)])
        to_two = [{"modelRewrite": "sim", "weight": 3}, {"modelRewrite": "absent", "weight": 1}]
        cluster.rewrite(
            "one", {"matches": [{"model": {"value": "chat"}}, {"model": {"value": "own"}}], "targets": to_two}
        )
        await gateway_of(world, cluster, models={"own": {"to": "sim"}})
        await until_status(world, "chat", 200)
        answers = [await world.chat(model="chat") for _ in range(8)]
        assert Counter(json.loads(answer.body)["model"] for answer in answers) == {"sim": 8}, "absent is nowhere served"
        assert (await world.chat(model="own")).status == 200
        listed = [entry["id"] for entry in (await world.ask("GET", "/v1/models")).json()["data"]]
        assert listed == ["sim", "own", "chat"]
        cluster.kinds[REWRITES].delete("one")
        await until_status(world, "chat", 404)


async def test_requests_wait_for_the_named_model_of_a_pool_without_pods(world: World) -> None:
    other, engine = await world.engine(), await world.engine(model="qwen")
    async with KubeCluster() as cluster:
        cluster.pool(ports=[int(engine.url.rpartition(":")[2])])
        source = {"kubernetes": {"pool": "qwen", "models": ["qwen"], "server": cluster.url}}
        await world.gateway(endpoints=[{"url": other.url, "slots": 4}], discovery=[source], queue={"max_wait": "600s"})
        assert (await world.chat(model="unknown")).status == 404
        waiter = world.soon(world.chat(model="qwen"))
        await world.until(lambda: world.picture().waiting == 1)
        cluster.pod("a", "127.0.0.1")
        assert (await waiter).header("x-penstock-endpoint") == "a"
