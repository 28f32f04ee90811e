"""The right engine, over HTTP: caches, sessions, earlier answers, and what happens when it is busy or dead."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from penstock.core.values.request import PREFIX_ENDS
from penstock.gateway.openai.body import peek
from penstock.gateway.openai.fields import Text
from penstock.gateway.openai.prefix_keys import cut_at, keys
from tests.gateway.conftest import Answer, World, chat, fault

PREFIX_CHUNK_BYTES = 512
PREFIX_KEYS_MAX = 81

pytestmark = pytest.mark.virtual_time

SYSTEM = "You are the keeper of a weir. " * 80  # some 2,400 bytes: four chunks


def turns(question: str, *, system: str = SYSTEM, tokens: int = 3, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "sim", "messages": messages, "max_tokens": tokens, **more}


def where(answer: Answer) -> str:
    assert answer.status == 200, answer
    name = answer.header("x-penstock-endpoint")
    assert name is not None
    return name


async def ask(world: World, question: str, *, headers: dict[str, str] | None = None, **more: Any) -> str:
    return where(await world.ask(body=turns(question, **more), headers=headers))


# --- S5: load-balanced KV-aware routing, as its author describes it --------------------------------------------------


async def test_with_the_default_threshold_the_longest_cached_prefix_wins_however_busy_its_engine_is(
    world: World,
) -> None:
    for _ in range(2):
        await world.engine(step_s=0.02)
    await world.gateway(slots=8, routing={"policy": "load_balanced_kv"})
    home = await ask(world, "first")
    streams = [await world.client_for(turns(f"long {at}", tokens=60, stream=True)) for at in range(5)]
    for stream in streams:
        assert where(await stream.begun()) == home
    assert await ask(world, "and now?") == home
    assert await ask(world, "no one knows this", system="Another prompt. " * 100) != home, "a miss: the least loaded"


async def test_from_the_threshold_on_the_least_loaded_one_gets_it(world: World) -> None:
    for _ in range(2):
        await world.engine(step_s=0.02)
    await world.gateway(slots=8, routing={"policy": "load_balanced_kv", "imbalance_threshold": 3})
    home = await ask(world, "first")
    streams = [await world.client_for(turns(f"long {at}", tokens=200, stream=True)) for at in range(3)]
    for stream in streams:
        assert where(await stream.begun()) == home, "below the threshold the cache decides"
    assert await ask(world, "and now?") != home, "three more there than elsewhere"
    for stream in streams:
        stream.hang_up()
    await world.idle()
    assert await ask(world, "and later?", system=SYSTEM) in {e.name for e in world.picture().endpoints}


async def test_failover_leaves_the_dead_engine_and_goes_by_cache_again(world: World) -> None:
    first, second = await world.engine(), await world.engine()
    await world.gateway(routing={"policy": "load_balanced_kv"})
    home = await ask(world, "first")
    dead = first if home in first.url else second
    fault(dead, "die", after_bytes=0, count=1)
    moved = await ask(world, "second")
    assert moved != home, "tried again elsewhere, transparently"
    fault(dead, "die")
    await world.until(lambda: any(e.state == "down" for e in world.picture().endpoints))
    assert [await ask(world, f"then {at}") for at in range(3)] == [moved] * 3
    await world.restart(dead)
    await world.until(lambda: all(e.state == "up" for e in world.picture().endpoints))
    assert await ask(world, "it is back") == moved, "its cache is gone, so nothing draws the others back"


async def test_hits_are_counted_as_engines_report_them(world: World) -> None:
    for _ in range(2):
        await world.engine()
    await world.gateway()
    for at in range(3):
        await ask(world, f"question {at}")
    assert await world.metric("penstock_prefix_hit_tokens_total", source="history") > 500
    assert await world.metric("penstock_prefix_predictions_wrong_total", source="history") == 0


async def test_one_system_prompt_for_all_does_not_pile_onto_one_engine(world: World) -> None:
    for _ in range(2):
        await world.engine(step_s=0.004)
    await world.gateway(slots=16)
    got: Counter[str] = Counter()
    for _ in range(10):
        tasks = [world.soon(world.ask(body=turns(f"question {at}", tokens=8))) for at in range(8)]
        got.update([where(await task) for task in tasks])
    assert max(got.values()) / (sum(got.values()) / 2) <= 1.3, got


async def test_a_shorter_beginning_is_found_again_where_the_settings_say_so(world: World) -> None:
    """As production-stack's own test asks it: prompts that share 128 characters go to one engine."""
    for _ in range(2):
        await world.engine()

    async def homes(letter: str) -> set[str]:
        tails = ("", "x" * 128, "y" * 128, "y" * 256, "z" * 300) * 2
        bodies = [{"model": "sim", "prompt": letter * 128 + tail, "max_tokens": 1} for tail in tails]
        return {where(await world.ask(path="/v1/completions", body=body)) for body in bodies}

    await world.gateway(routing={"policy": "prefix", "prefix_chunk": 128})
    found = [await homes(letter) for letter in "abcdefghijklmnopqrst"]  # each goes to either by chance
    assert [len(each) for each in found] == [1] * 20
    assert len(set.union(*found)) == 2, "what shares nothing is spread"
    world.document["routing"] = {"policy": "prefix"}
    await world.gate.reload()
    assert 2 in [len(await homes(letter)) for letter in "uvw"], "each body goes to either by chance"


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "headers", "body"),
    [
        ({}, {"x-session-id": "NAME"}, {}),
        ({"header": "x-conversation"}, {"x-conversation": "NAME"}, {}),
        ({"cookie": "sid"}, {"cookie": "a=1; sid=NAME; b=2"}, {}),
        ({"header": None, "body": "conversation"}, {}, {"conversation": "NAME"}),
    ],
)
async def test_the_requests_of_a_session_go_to_one_engine(
    world: World, session: dict[str, Any], headers: dict[str, str], body: dict[str, Any]
) -> None:
    engines = [await world.engine() for _ in range(3)]
    named_alike = [{"url": engine.url, "name": f"gpu-{at}"} for at, engine in enumerate(engines)]  # homes go by name
    await world.gateway(endpoints=named_alike, routing={"policy": "session", "session": session})
    lives: dict[str, set[str]] = {}
    for _ in range(3):
        for name in ("one", "two", "three", "four", "five", "six"):
            named = {key: value.replace("NAME", name) for key, value in headers.items()}
            answer = await world.chat_with(named, **{k: v.replace("NAME", name) for k, v in body.items()})
            lives.setdefault(name, set()).add(where(answer))
    assert all(len(homes) == 1 for homes in lives.values()), lives
    assert len(set.union(*lives.values())) > 1


@pytest.mark.virtual_time
async def test_a_session_waits_for_its_engine_and_then_moves(world: World) -> None:
    for _ in range(2):
        await world.engine(step_s=0.01)
    await world.gateway(slots=1, routing={"policy": "session", "affinity_wait": "150ms"})
    named = {"x-session-id": "s"}
    home = where(await world.chat_with(named))
    long = await world.client_for(chat("long", tokens=2000, stream=True), headers=named)
    assert where(await long.begun()) == home
    moved = await world.chat_with(named)
    assert where(moved) != home
    assert float(moved.header("x-penstock-queue-ms") or 0) >= 150
    again = await world.chat_with(named)
    assert where(again) == where(moved), "it lives there now"
    assert float(again.header("x-penstock-queue-ms") or 0) < 150
    long.hang_up()


# --- earlier answers --------------------------------------------------------------------------------------------------


async def test_a_continued_answer_goes_to_the_engine_of_the_earlier_one(world: World) -> None:
    def answering(name: str) -> bytes:
        body = json.dumps({"id": f"resp_{name}", "object": "response", "status": "completed", "output": []}).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    endpoints = [(await world.scripted(answering(name)))[0] for name in ("a", "b", "c")]
    await world.gateway(endpoints=[{**e, "slots": 4} for e in endpoints], routing={"policy": "round_robin"})
    asked = {"model": "sim", "input": "hello"}
    made = [await world.ask(path="/v1/responses", body=asked) for _ in range(3)]
    homes = {answer.json()["id"]: where(answer) for answer in made}
    assert len(set(homes.values())) == 3
    for _ in range(2):
        for earlier, home in homes.items():
            body = {**asked, "previous_response_id": earlier}
            assert where(await world.ask(path="/v1/responses", body=body)) == home
    unknown = {**asked, "previous_response_id": "resp_unknown"}
    assert where(await world.ask(path="/v1/responses", body=unknown)) in homes.values()


# --- what a prompt is -------------------------------------------------------------------------------------------------


def test_a_prompt_is_known_by_its_bytes_its_model_its_tools_and_its_salt() -> None:
    def of(body: dict[str, Any], model: str = "m") -> tuple[int, ...]:
        text = peek(json.dumps({"model": model, **body}).encode()).text
        assert isinstance(text, Text)
        return keys(text, model, 11)

    def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
        return sum(a == b for a, b in zip(one, other, strict=False))

    plain = of(turns("q1"))
    assert len(plain) == 4
    assert shared(plain, of(turns("q2"))) == 4
    assert shared(plain, of(turns("q1", system="Y" + SYSTEM))) == 0
    for other in (
        of(turns("q1"), model="n"),
        of({**turns("q1"), "tools": [{"type": "function"}]}),
        of({**turns("q1"), "cache_salt": "s"}),
        of({**turns("q1"), "lora_path": "l"}),
    ):
        assert shared(plain, other) == 0
    assert shared(plain, of({"temperature": 1, **turns("q1", seed=3)})) == 4, "nothing else matters"
    assert of({"prompt": "short"}) == () == of({})
    assert len(of({"prompt": "x" * 10_000_000})) == PREFIX_KEYS_MAX
    first = {"role": "user", "content": SYSTEM}
    conversation = of({"messages": [first, {"role": "assistant", "content": "y" * 600}]})
    assert shared(of({"messages": [first]}), conversation) == 4, "a turn more, and all before it is the same"
    for size in (3_000, 30_000, 130_000):
        turn, following = of({"prompt": "x" * size}), of({"prompt": "x" * size + "y" * 3_000})
        assert shared(turn, following) == len(turn)
        assert PREFIX_ENDS[len(turn) - 1] * PREFIX_CHUNK_BYTES >= 0.93 * size - PREFIX_CHUNK_BYTES, "found again"
        assert len(turn) <= 72

    text = peek(json.dumps({"model": "m", "prompt": "x" * 1_000_000}).encode()).text
    assert isinstance(text, Text)
    assert len(keys(text, "m", 11, cut_at(128))) == PREFIX_KEYS_MAX
    assert PREFIX_ENDS[len(keys(text, "m", 11, cut_at(4096))) - 1] == 231, "a megabyte in chunks of 4,096 bytes"
    assert not set(keys(text, "m", 11, cut_at(128))) & set(keys(text, "m", 11))

    def billed(billing: str) -> dict[str, Any]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=1; cch={billing};"}
        said = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}
        return {"system": [header, said], "messages": [{"role": "user", "content": "q"}]}

    assert shared(of(billed("a81f")), of(billed("77c0"))) == 4
