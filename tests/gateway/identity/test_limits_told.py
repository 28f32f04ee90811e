"""Who is refused for a limit is told which, and how it is set: to the caller, in the log, on the page, in `explain`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import Limits
from penstock.gateway.identity.callers import key_hash
from penstock.gateway.openai.errors import limit_reached
from tests.gateway.admin.test_admin_state import state
from tests.gateway.conftest import Answer, World, chat

KEY = "pk-nightly"
BEARER = {"authorization": f"Bearer {KEY}"}


def nightly(**limits: int) -> dict[str, Any]:
    return {"tenants": [{"name": "nightly", "keys": [key_hash(KEY)], "limits": limits}]}


def told(answer: Answer) -> tuple[str | None, str]:
    """The limit of a refusal's header, and its words."""
    assert (answer.status, answer.error()["code"]) == (429, "tenant_limit")
    assert answer.header("retry-after") is not None
    return answer.header("x-penstock-limit"), answer.error()["message"]


async def test_a_refusal_by_rate_names_the_limit_and_its_value(world: World) -> None:
    await world.engine()
    await world.gateway(**nightly(requests_per_minute=1))
    served = await world.ask(body=chat(), headers=BEARER)
    assert (served.status, served.header("x-penstock-limit")) == (200, None)
    assert told(await world.ask(body=chat(), headers=BEARER)) == (
        "requests_per_minute",
        "The tenant `nightly` may send 1 request a minute (its limit `requests_per_minute`). Please try again later.",
    )


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"queued": 1}, "may have 1 request waiting (its limit `queued`)"),
        ({"queued_bytes": 900}, "may have requests of 900 bytes waiting (its limit `queued_bytes`)"),
        ({"queued_tokens": 150}, "may have prompts of 150 tokens waiting (its limit `queued_tokens`)"),
    ],
    ids=["queued", "queued_bytes", "queued_tokens"],
)
async def test_a_refusal_by_the_queue_names_the_limit_and_its_value(
    world: World, limit: dict[str, int], words: str
) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, **nightly(**limit))
    runs = await world.streaming(tokens=3000)
    await runs.begun()
    waits = world.soon(world.ask(body=chat("x" * 400), headers=BEARER))
    await world.until(lambda: world.picture().waiting == 1)
    name, message = told(await world.ask(body=chat("x" * 400), headers=BEARER))
    assert (name, message) == (next(iter(limit)), f"The tenant `nightly` {words}. Please try again later.")
    runs.hang_up()
    assert (await waits).status == 200


async def test_without_a_queue_the_limit_of_running_requests_is_reported(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(queue={"enabled": False}, **nightly(running=1))
    runs = await world.client_for(chat(tokens=3000, stream=True), headers=BEARER)
    await runs.begun()
    name, message = told(await world.ask(body=chat(), headers=BEARER))
    assert (name, message.partition(" (")[0]) == ("running", "The tenant `nightly` may have 1 request running")
    runs.hang_up()


async def test_a_refusal_without_a_key_names_the_shared_limit(world: World) -> None:
    await world.engine()
    await world.gateway(identity={"anonymous": {"limits": {"tokens_per_minute": 1}}})
    assert (await world.chat()).status == 200
    name, message = told(await world.chat_with({"x-tenant-id": "somebody"}))
    assert name == "tokens_per_minute"
    assert message.startswith("All clients without a key together may use 1 token a minute")


async def test_other_refusals_name_no_limit(world: World) -> None:
    await world.engine()
    await world.gateway(**nightly(requests_per_minute=1))
    refused = await world.ask(body=chat(model="nobody"), headers=BEARER)
    assert (refused.status, refused.header("x-penstock-limit")) == (404, None)


async def test_operators_see_it_in_the_failures_the_events_and_the_explanation(world: World) -> None:
    await world.engine()
    await world.gateway(**nightly(requests_per_minute=1))
    await world.ask(body=chat(), headers=BEARER)
    told(await world.ask(body=chat(), headers={**BEARER, "x-request-id": "refused"}))
    explained = (await world.ask("GET", "/admin/requests/refused")).json()
    assert explained["explanation"]["limit"] | {"retry_after_s": 60} == {
        "limit": "requests_per_minute",
        "most": 1,
        "retry_after_s": 60,
        "account": "",
    }
    assert explained["story"][-1].endswith("(tenant_limit), requests_per_minute: 1.")
    what = "refused: a limit of the tenant is reached (requests_per_minute)"
    world.gate.watch.tick()
    picture = await state(world)
    (row,) = picture["lately"]["rows"]
    assert (row["tenant"], row["limit"], row["what"]) == ("nightly", "requests_per_minute", what)
    assert f"1 request of nightly {what}" in [event["text"] for event in picture["events"]]


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_every_limit_has_its_words(name: str) -> None:
    words = limit_reached(LimitReached(name, 1_234), "nightly")
    assert f"(its limit `{name}`)" in words
    assert "1,234" in words


def test_a_tenant_without_running_requests_is_reported_as_paused() -> None:
    assert "paused" in limit_reached(LimitReached("running", 0), "nightly")
