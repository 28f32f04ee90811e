"""Kubernetes: what is found is what is there, whatever the API server does; no ghost, none missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock.config.sections.discovery import Kubernetes
from penstock.gateway.endpoints.discovery import base, kubernetes_follower
from penstock.gateway.endpoints.discovery.base import SourceError
from penstock.gateway.endpoints.discovery.kubernetes import KubernetesSource
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from tests.gateway.conftest import World
from tests.gateway.endpoints.following import Seen, watching
from tests.gateway.endpoints.kube_api import KubeApi


def following(api: KubeApi, **settings: Any) -> AbstractAsyncContextManager[Seen]:
    parsed = Kubernetes.model_validate({"selector": "app=vllm", "server": api.url, **settings})
    return watching(KubernetesSource(parsed, Access(parsed, {}, account=Path("/nowhere"))), Seen())


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after failures are for other people's servers."""
    for module in (base, kubernetes_follower):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)
        monkeypatch.setattr(module, "PAUSE_S_MAX", 0.01)


def truth(api: KubeApi) -> dict[str, str]:
    """The pods that are there and ready."""

    def host(address: str) -> str:
        return f"[{address}]" if ":" in address else address

    return {
        name: f"http://{host(pod['status']['podIP'])}:8000"
        for name, pod in api.objects.items()
        if pod["status"]["conditions"][0]["status"] == "True" and "deletionTimestamp" not in pod["metadata"]
    }


async def test_pods_come_change_and_go() -> None:
    async with KubeApi() as api:
        api.pod("vllm-0", "10.0.0.1")
        async with following(api) as seen:
            await seen.until(lambda: seen.urls() == {"vllm-0": "http://10.0.0.1:8000"})
            api.pod("vllm-1", "10.0.0.2", ready=False)
            api.pod("vllm-2", "fd00::3")
            await seen.until(lambda: set(seen.urls()) == {"vllm-0", "vllm-2"})
            assert seen.urls()["vllm-2"] == "http://[fd00::3]:8000"
            api.pod("vllm-1", "10.0.0.2")
            api.pod("vllm-0", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z")
            await seen.until(lambda: set(seen.urls()) == {"vllm-1", "vllm-2"})
            api.delete("vllm-0")
            api.pod("vllm-0", "10.0.0.9")
            await seen.until(lambda: seen.urls() == truth(api))
        assert api.queries[0]["labelSelector"] == "app=vllm"
        assert api.lists == 1


async def test_labels_without_a_pod_are_logged_once_and_again_when_all_are_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "no endpoint" in record.getMessage()]

    async with KubeApi() as api, following(api) as seen:
        await seen.until(told)
        assert told() == ["kubernetes default pods app=vllm: no endpoints; requests wait for one"]
        api.pod("vllm-0", "10.0.0.1", ready=False)
        await seen.until(lambda: seen.told == 2)
        assert len(told()) == 1
        api.pod("vllm-0", "10.0.0.1")
        await seen.until(seen.urls)
        api.delete("vllm-0")
        await seen.until(lambda: len(told()) == 2)


async def test_a_long_list_comes_in_pages() -> None:
    async with KubeApi() as api:
        api.page_objects = 7
        for n in range(23):
            api.pod(f"vllm-{n}", f"10.0.0.{n}")
        async with following(api) as seen:
            await seen.until(lambda: seen.urls() == truth(api))
        assert (len(seen.urls()), api.lists) == (23, 4)


async def test_a_page_of_a_list_may_have_8_mb() -> None:
    async with KubeApi() as api:
        api.pod("vllm-0", "10.0.0.1", annotations={"notes": "x" * 8_000_000})
        async with following(api) as seen:
            await seen.until(lambda: seen.urls() == truth(api))


async def _settled(api: KubeApi, seen: Seen) -> None:
    """Everything was sent, and what was sent is what is there."""
    await seen.until(lambda: api.watched and seen.urls() == truth(api))


def _forget_and_drop(api: KubeApi) -> None:
    api.forget()
    api.drop()


def _refuse_and_drop(api: KubeApi) -> None:
    api.refuses = 3
    api.drop()


def _change_while_nobody_watches(api: KubeApi) -> None:
    api.drop()
    api.pod("late", "10.9.9.9")
    api.forget()


TROUBLES: dict[str, Callable[[KubeApi], None]] = {
    "drop": KubeApi.drop,
    "end": KubeApi.end,
    "gone": KubeApi.complain,
    "error": lambda api: api.complain(500),
    "gone_at_begin": _forget_and_drop,
    "bookmark": KubeApi.bookmark,
    "garbage": lambda api: api.say(b'{"type": "MODIFIED", "object": 5}\n'),
    "no_uid": lambda api: api.say(b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}\n'),
    "empty_lines": lambda api: api.say(b"\n\n"),
    "refuse": _refuse_and_drop,
    "change_while_gone": _change_while_nobody_watches,
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_no_ghost_stays_and_none_is_missing_after(trouble: str) -> None:
    async with KubeApi() as api:
        for n in range(4):
            api.pod(f"vllm-{n}", f"10.0.0.{n}")
        async with following(api) as seen:
            await _settled(api, seen)
            api.held = True
            api.delete("vllm-1")
            api.pod("vllm-4", "10.0.0.4")
            TROUBLES[trouble](api)
            api.delete("vllm-2")
            api.pod("vllm-2", "10.0.1.2")
            api.release()
            await _settled(api, seen)
            api.pod("vllm-5", "10.0.0.5")
            api.delete("vllm-0")
            await _settled(api, seen)


@pytest.mark.parametrize("seed", range(4))
async def test_doubled_and_reordered_events_between_all_troubles_bring_nobody_back(seed: int) -> None:
    rolls = random.Random(seed)
    async with KubeApi(seed=seed) as api:
        api.doubles = api.shuffles = True
        async with following(api) as seen:
            await _settled(api, seen)
            for step in range(60):
                api.held = True
                for _ in range(rolls.randint(1, 6)):
                    name = f"vllm-{rolls.randrange(8)}"
                    if name in api.objects and rolls.random() < 0.4:
                        api.delete(name)
                    else:
                        api.pod(name, f"10.0.{rolls.randrange(250)}.{rolls.randrange(250)}", ready=rolls.random() < 0.8)
                api.release()
                if rolls.random() < 0.5:
                    TROUBLES[rolls.choice(["drop", "gone", "bookmark", "refuse", "garbage"])](api)
                if step % 3 == 0:
                    await _settled(api, seen)
            await _settled(api, seen)
        assert api.watches > 5


async def test_what_was_known_stands_while_the_api_server_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with KubeApi() as api:
        api.pod("vllm-0", "10.0.0.1")
        async with following(api) as seen:
            await _settled(api, seen)
            told = seen.told
            api.refuses = 8
            api.drop()
            await seen.until(lambda: api.refuses == 0)
            assert (seen.told, seen.urls()) == (told, truth(api))
            await seen.until(lambda: seen.told > told)
            assert seen.urls() == truth(api)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, "said once, not at every attempt"
    assert "etcd has no leader" in warnings[0]


async def test_slices_tell_what_is_ready_behind_a_service() -> None:
    async with KubeApi() as api:
        ports = [{"name": "grpc", "port": 9000}, {"name": "http", "port": 8001}]

        def part(address: str, name: str | None, **conditions: bool) -> dict[str, Any]:
            ref = {"targetRef": {"kind": "Pod", "name": name}} if name else {}
            return {"addresses": [address], "conditions": conditions, "zone": "z1", **ref}

        first = [
            part("10.0.0.1", "vllm-0", ready=True),
            part("10.0.0.2", "vllm-1"),
            part("10.0.0.3", "vllm-2", ready=False),
            part("10.0.0.4", "vllm-3", ready=True, terminating=True),
            part("10.0.0.5", None, ready=True),
        ]
        api.put("vllm-abc", ports=ports, endpoints=first, metadata={"labels": {"model": "qwen", "tier": "gpu"}})
        api.put("vllm-v6", ports=ports, endpoints=[part("fd00::1", "vllm-0", ready=True)])
        api.put("vllm-empty", ports=None, endpoints=None)
        settings = {"selector": "", "service": "vllm", "port": "http", "model_label": "model", "copy_labels": ["tier"]}
        async with following(api, **settings) as seen:
            await seen.until(lambda: seen.told)
            assert seen.urls() == {
                "vllm-0": "http://10.0.0.1:8001",
                "vllm-1": "http://10.0.0.2:8001",
                "10.0.0.5:8001": "http://10.0.0.5:8001",
            }
            one = next(endpoint for endpoint in seen.endpoints if endpoint.name == "vllm-0")
            assert (one.models, one.labels) == (("qwen",), {"zone": "z1", "tier": "gpu"})
            api.put("vllm-def", ports=ports, endpoints=first[:1])  # it moves from one slice to another
            api.put("vllm-abc", ports=ports, endpoints=[])
            await seen.until(lambda: list(seen.urls()) == ["vllm-0"])
        assert api.queries[0] == {
            "path": "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            "labelSelector": "kubernetes.io/service-name=vllm",
            "limit": "500",
        }


async def test_a_renewed_token_is_used_from_the_next_request_on(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with KubeApi(token="first") as api:
        api.pod("vllm-0", "10.0.0.1")
        async with following(api, token_file=str(file)) as seen:
            await _settled(api, seen)
            api.token = "second"
            api.pod("vllm-1", "10.0.0.2")
            file.write_text("second\n")
            api.drop()
            await _settled(api, seen)


def test_inside_a_cluster_the_pods_own_account_is_used(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("engines")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = Access(Kubernetes(service="vllm"), env, account=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "engines")
    with pytest.raises(SourceError, match="not a pod of a cluster"):
        Access(Kubernetes(service="vllm"), {}, account=tmp_path)


async def test_a_gateway_serves_the_pods_it_finds_and_forgets_those_that_go(world: World) -> None:
    first, second = await world.engine(), await world.engine()
    async with KubeApi() as api:

        def engine_pod(name: str, url: str) -> None:
            status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
            port = {"containerPort": int(url.rpartition(":")[2])}
            api.put(name, spec={"containers": [{"ports": [port]}]}, status=status)

        engine_pod("vllm-0", first.url)
        source = {"kubernetes": {"selector": "app=vllm", "server": api.url}}
        await world.gateway(endpoints=[], discovery=[source])
        assert (await world.chat()).header("x-penstock-endpoint") == "vllm-0"
        engine_pod("vllm-1", second.url)
        await world.until(lambda: len(world.picture().endpoints) == 2)
        api.delete("vllm-0")
        await world.until(lambda: [e.name for e in world.picture().endpoints] == ["vllm-1"])
        assert (await world.chat()).header("x-penstock-endpoint") == "vllm-1"
