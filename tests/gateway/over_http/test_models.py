"""Urgency, share and price as a property of the model (S3, S4): for an alias, and for a model that engines serve."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.gateway.conftest import Answer, World, request

pytestmark = pytest.mark.virtual_time

KEYS = {"capped": "sha256:" + "1" * 64}
LEVELS = {"levels": ["tenant", "model"]}


def body(model: str, content: str = "hello", tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": tokens, **more}


async def band_of(world: World, model: str, **headers: str) -> str | None:
    asked = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await world.ask(body=body(model), headers=asked)
    assert answer.status == 200
    return answer.header("x-penstock-band")


async def served_first(world: World, count: int, each: int, *models: str, **more: Any) -> Counter[str]:
    """Of `each` requests per model that wait for one slot, the models of those that were served first."""
    (engine,) = world.engines
    engine.log.clear()
    hold = await world.client_for(body(models[0], tokens=40, stream=True), headers={"x-tenant-id": "another"})
    await hold.begun()
    names = {f"{model}-{at}": model for at in range(each) for model in models}
    tasks = []
    for name, model in names.items():
        data = request(body=body(model, **more.get(model, {})), headers={"x-request-id": name})
        tasks.append(world.soon(_answer(world, data)))
    await world.until(lambda: world.picture().waiting == len(names))
    hold.hang_up()
    for task in tasks:
        assert (await task).status == 200
    order = [entry.headers["x-request-id"] for entry in engine.log.entries]
    return Counter(names[name] for name in [name for name in order if name in names][:count])


async def _answer(world: World, data: bytes) -> Answer:
    client = await world.client(data)
    answer = await client.answer()
    client.hang_up()
    return answer


async def test_a_models_requests_have_its_band_without_asking_and_an_alias_may_have_another(world: World) -> None:
    await world.engine()
    await world.gateway(models={"sim": {"band": "batch"}, "urgent": {"to": "sim", "band": "interactive"}})
    assert await band_of(world, "sim") == "batch"
    assert await band_of(world, "urgent") == "interactive", "given, so the callers' highest band does not lower it"
    assert await band_of(world, "urgent", x_penstock_band="batch") == "batch", "who likes may lower it"
    assert await band_of(world, "urgent", x_penstock_band="interactive") == "interactive"
    assert await band_of(world, "sim", x_penstock_band="standard") == "standard", "as far as the caller may rise"
    assert await band_of(world, "sim", x_penstock_band="interactive") == "standard"


async def test_an_alias_inherits_the_settings_of_its_model(world: World) -> None:
    await world.engine()
    await world.gateway(models={"sim": {"band": "batch"}, "other": {"to": "sim"}})
    assert await band_of(world, "other") == "batch"


@pytest.mark.parametrize(
    "settings",
    [
        {"tenants": [{"name": "capped", "max_band": "standard"}]},
        {"tenants": [{"name": "capped"}], "identity": {"max_band": "batch"}},
    ],
    ids=["its own highest band", "everybody's, below the default"],
)
async def test_a_tenants_highest_band_holds_for_an_urgent_model(world: World, settings: dict[str, Any]) -> None:
    await world.engine()
    await world.gateway(models={"sim": {"band": "interactive"}}, **settings)
    expected = "batch" if "identity" in settings else "standard"
    assert await band_of(world, "sim", x_tenant_id="capped") == expected


async def test_an_alias_is_a_flow_of_its_own_where_models_are_a_level(world: World) -> None:
    """Beside a flood of requests for the model, the alias gets every second turn."""
    await world.engine(max_num_seqs=1)
    await world.gateway(slots=1, models={"alias": {"to": "sim"}}, fairness={"levels": ["tenant", "model"]})
    assert await served_first(world, 6, 6, "sim", "alias") == {"sim": 3, "alias": 3}


async def test_models_share_by_weight_and_follow_a_reload(world: World) -> None:
    await world.engine(max_num_seqs=1)
    await world.gateway(slots=1, models={"a": {"to": "sim", "weight": 3}, "b": {"to": "sim"}}, fairness=LEVELS)
    assert await served_first(world, 8, 8, "b", "a") == {"a": 6, "b": 2}
    world.document["models"] = {"a": {"to": "sim"}, "b": {"to": "sim", "weight": 3}}
    assert (await world.ask("POST", "/admin/reload")).status == 200
    assert await served_first(world, 8, 8, "b", "a") == pytest.approx({"a": 2, "b": 6}, abs=1)


async def test_a_model_whose_tokens_cost_more_gets_fewer_of_them(world: World) -> None:
    await world.engine(max_num_seqs=1)
    await world.gateway(
        slots=1,
        models={"large": {"to": "sim", "prices": {"prompt": 3, "completion": 6}}, "small": {"to": "sim"}},
        fairness=LEVELS,
    )
    first = await served_first(world, 8, 8, "small", "large")
    assert first["small"] == pytest.approx(6, abs=1)


async def test_a_served_models_own_prices_hold_for_its_aliases(world: World) -> None:
    await world.engine(max_num_seqs=1)
    models: dict[str, Any] = {
        "sim": {"prices": {"prompt": 3, "completion": 6}},
        "dear": {"to": "sim"},
        "cheap": {"to": "sim", "prices": {"prompt": 1, "completion": 2}},
    }
    await world.gateway(slots=1, models=models, fairness=LEVELS)
    first = await served_first(world, 8, 8, "cheap", "dear")
    assert first["cheap"] == pytest.approx(6, abs=1)


async def test_models_list_has_aliases_but_no_models_without_endpoint(world: World) -> None:
    await world.engine()
    await world.gateway(models={"sim": {"band": "batch"}, "alias": {"to": "sim"}, "nowhere": {"band": "batch"}})
    listed = [entry["id"] for entry in (await world.ask("GET", "/v1/models")).json()["data"]]
    assert listed == ["sim", "alias"]


async def models_of(world: World, count: int, **headers: str) -> Counter[str]:
    asked = {name.replace("_", "-"): value for name, value in headers.items()}
    answers = [await world.ask(body=body("chat"), headers=asked) for _ in range(count)]
    assert {answer.status for answer in answers} == {200}
    return Counter(answer.json()["model"] for answer in answers)


async def test_a_split_gives_each_model_its_share_and_a_session_one_model_and_follows_a_reload(world: World) -> None:
    for model in ("sim", "new"):
        await world.engine(model=model)
    await world.gateway(models={"chat": {"split": {"sim": 4, "new": 1, "absent": 5}}})
    assert await models_of(world, 10) == {"sim": 8, "new": 2}, "nobody serves the third"
    assert len(await models_of(world, 6, x_session_id="a-conversation")) == 1
    listed = [entry["id"] for entry in (await world.ask("GET", "/v1/models")).json()["data"]]
    assert listed == ["sim", "new", "chat"]
    name = next(endpoint.name for endpoint in world.picture().endpoints if endpoint.models == ["new"])
    pinned = [await world.ask(path=f"/v1/chat/completions?id={name}", body=body("chat")) for _ in range(3)]
    assert {(answer.status, answer.json()["model"]) for answer in pinned} == {(200, "new")}
    world.document["models"] = {"chat": {"split": {"new": 1}}}
    await world.gate.reload()
    assert await models_of(world, 3) == {"new": 3}


async def test_a_split_may_have_the_name_of_one_of_its_models(world: World) -> None:
    for model in ("chat", "canary"):
        await world.engine(model=model)
    await world.gateway(models={"chat": {"split": {"chat": 3, "canary": 1}}})
    assert await models_of(world, 8) == {"chat": 6, "canary": 2}
