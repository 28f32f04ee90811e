"""A model that an endpoint knows by another name (`endpoints[].models: {ours: theirs}`)."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.openai.answers.renamed import Renamed
from tests.gateway.conftest import CHAT, Answer, World, chat, fault
from tests.gateway.epp.test_messages import DESTINATION, USAGE, Pool, headers, pool

THEIRS = "org/sim-70b"
NAMES = {"sim": THEIRS}


def body(model: str = "sim", **more: Any) -> dict[str, Any]:
    return chat(**more) | {"model": model}


async def provider(world: World, *, own: bool = False, **settings: Any) -> None:
    """An engine of ours, if it is wanted, and one whose name for the same model is another."""
    if own:
        await world.engine()
    await world.engine(model=THEIRS)
    endpoints: list[dict[str, Any]] = [{"url": engine.url, "slots": 4} for engine in world.engines]
    endpoints[-1]["models"] = NAMES
    await world.gateway(endpoints=endpoints, **settings)
    await world.until(lambda: all(endpoint.state == "up" for endpoint in world.picture().endpoints))


def place(world: World, at: int) -> str:
    return world.engines[at].url.removeprefix("http://")


def asked(world: World) -> list[list[str]]:
    """The models that each engine was asked for."""
    return [[entry.model for entry in engine.log.entries] for engine in world.engines]


async def served(world: World) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in (await world.ask("GET", "/v1/models")).json()["data"]}


async def answered(world: World, json_text: bytes, *, kind: str = "application/json", **more: Any) -> Answer:
    """What a client gets of an engine's answer that it gets in small pieces."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind.encode()
    pieces = [json_text[at : at + 7] for at in range(0, len(json_text), 7)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    endpoint, _ = await world.scripted(head, *chunks, b"0\r\n\r\n")
    await world.gateway(endpoints=[endpoint | {"models": NAMES}])
    return await world.ask(body=body(**more))


# --- what an engine gets ------------------------------------------------------------------------------------------


async def test_only_the_models_value_changes_on_the_way_there(world: World) -> None:
    endpoint, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await world.gateway(endpoints=[endpoint | {"models": NAMES}])
    sent = b'{"messages": [{"model": "sim"}] ,\n"mod\\u0065l" : "sim","x":"sim", "priority2":1}'
    assert (await world.ask(body=sent)).status == 200
    assert requests[0].endswith(
        b'\r\n\r\n{"messages": [{"model": "sim"}] ,\n"mod\\u0065l" : "org/sim-70b","x":"sim", "priority2":1}'
    )


async def test_a_large_body_a_form_and_a_packed_one_get_the_name_too(world: World) -> None:
    endpoint, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await world.gateway(endpoints=[endpoint | {"models": NAMES}])
    large = json.dumps(body(content="word " * 60_000)).encode()
    part = b'--xX\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    form = part % (b"model", b"sim") + part % (b"prompt", b"sim") + b"--xX--\r\n"
    nameless = part % (b"prompt", b"sim") + b"--xX--\r\n"
    kind = {"content-type": 'multipart/form-data; boundary="xX"'}
    for sent, path, more in (
        (large, CHAT, {}),
        (form, "/v1/audio/transcriptions", kind),
        (nameless, "/v1/audio/transcriptions", kind),
        (gzip.compress(large), CHAT, {"content-encoding": "gzip"}),
    ):
        assert (await world.ask(path=path, body=sent, headers=more)).status == 200
    bodies = [seen.partition(b"\r\n\r\n")[2] for seen in requests]
    renamed = large.replace(b'"model": "sim"', b'"model": "org/sim-70b"')
    assert bodies == [renamed, form.replace(b"\r\n\r\nsim", b"\r\n\r\norg/sim-70b", 1), nameless, renamed]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/tokenize", "/v1/messages", "/v1/responses"])
async def test_every_api_has_the_engines_name(world: World, path: str) -> None:
    endpoint, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await world.gateway(endpoints=[endpoint | {"models": NAMES}])
    await world.ask(path=path, body={"model": "sim", "prompt": "a", "input": "a", "messages": []})
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["model"] == THEIRS


async def test_an_added_path_has_it_in_its_own_field_and_without_a_body_in_the_query(world: World) -> None:
    said = b'{"model_id": "org/sim-70b", "model":"org/sim-70b"}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said)
    endpoint, requests = await world.scripted(head + said)
    paths = [
        {"path": "/v1/videos", "model": "model_id"},
        {"path": "/v1/own", "method": "DELETE", "kind": "free", "model": "m"},
    ]
    await world.gateway(endpoints=[endpoint | {"models": NAMES}], paths=paths)
    answer = await world.ask(path="/v1/videos", body=b'{"model_id": "sim", "model": "sim"}')
    assert answer.json() == {"model_id": "sim", "model": "sim"}
    assert requests[0].endswith(b'{"model_id": "org/sim-70b", "model": "sim"}')
    assert (await world.ask("DELETE", "/v1/own?m=sim&model=sim")).status == 200
    assert requests[1].startswith(b"DELETE /v1/own?m=org%2Fsim-70b&model=sim HTTP")


async def test_a_request_that_names_no_model_is_for_the_engines_name(world: World) -> None:
    await provider(world)
    sent = {key: value for key, value in body().items() if key != "model"}
    assert (await world.ask(body=sent)).status == 200
    assert asked(world) == [[THEIRS]]


# --- what its client gets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_names_the_model_as_it_was_asked_for(world: World, workers: int, stream: bool) -> None:
    await provider(world, own=True, workers=workers)
    for at, name in enumerate(("sim", THEIRS)):
        sent = body(stream=stream, stream_options={"include_usage": True} if stream else None)
        answer = await world.ask(path=f"{CHAT}?id={place(world, at)}", body=sent)
        told = [event["model"] for event in answer.events()] if stream else [answer.json()["model"]]
        assert (answer.status, set(told)) == (200, {"sim"})
        assert asked(world)[at] == [name]
        assert answer.body.count(b"data: [DONE]") == stream


async def test_a_name_that_is_cut_in_pieces_is_found(world: World) -> None:
    text = json.dumps(
        {"id": "x", "model": THEIRS, "of": {"model": THEIRS}, "choices": [{"text": '"model": "' + THEIRS}]}
    )
    answer = await answered(world, text.encode())
    assert answer.json() == {
        "id": "x",
        "model": "sim",
        "of": {"model": "sim"},
        "choices": [{"text": '"model": "' + THEIRS}],
    }


async def test_an_answer_whose_last_bytes_may_begin_a_name_is_whole(world: World) -> None:
    assert (await answered(world, b'"he said \\"model"')).body == b'"he said \\"model"'


async def test_a_large_answer_and_one_of_declared_length_are_renamed(world: World) -> None:
    vectors = {"data": [0.25] * 40_000, "model": THEIRS}
    text = json.dumps(vectors).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
    endpoint, _ = await world.scripted(head + text)
    await world.gateway(endpoints=[endpoint | {"models": NAMES}])
    answer = await world.ask(path="/v1/embeddings", body={"model": "sim", "input": "a"})
    assert answer.json() == vectors | {"model": "sim"}


async def test_answers_are_not_asked_for_packed_because_names_in_them_change(world: World) -> None:
    endpoint, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await world.gateway(endpoints=[endpoint | {"models": NAMES}])
    await world.ask(body=body(), headers={"accept-encoding": "gzip"})
    assert b"accept-encoding" not in requests[0].lower()


class Rest:
    """A sink that asks for what is left, as a relay does."""

    def __init__(self, renamed: Renamed) -> None:
        self.renamed, self.seen = renamed, b""

    def on_data(self, data: bytes, /) -> None:
        self.seen += self.renamed.unpack(data)

    def on_response(self, *_: object) -> None: ...
    def on_end(self) -> None: ...
    def on_error(self, *_: object) -> None: ...


PARTS = ['"model"', ":", " ", '"org/sim-70b"', '"', "m", "}", "\n", "org"]


@given(st.lists(st.sampled_from(PARTS), max_size=20), st.data())
def test_however_an_answer_is_cut_it_is_renamed_alike(words: list[str], data: st.DataObject) -> None:
    text = "".join(words).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    renamed, out = Renamed(THEIRS, "sim", "model"), b""
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        out += renamed.unpack(text[begin:end])
    rest = Rest(renamed)
    assert renamed.ends(rest)
    for space in (b"", b" "):
        text = text.replace(b'"model":' + space + b'"org/sim-70b"', b'"model":' + space + b'"sim"')
    assert out + rest.seen == text


# --- which models are there ---------------------------------------------------------------------------------------


async def test_our_names_are_listed_and_an_endpoints_others_are_not(world: World, workers: int) -> None:
    await provider(world, own=True, workers=workers)
    assert set(await served(world)) == {"sim"}
    assert (await world.ask(body=body(THEIRS))).status == 404
    assert [endpoint.models for endpoint in world.picture().endpoints] == [["sim"], ["sim"]]


async def test_one_engines_model_may_have_several_names(world: World) -> None:
    await world.engine(model=THEIRS)
    await world.gateway(endpoints=[{"url": world.engines[0].url, "models": {"a": THEIRS, "b": THEIRS, THEIRS: THEIRS}}])
    await world.until(lambda: "b" in str(world.picture().endpoints[0].models))
    assert {name: (await world.ask(body=body(name))).json()["model"] for name in ("a", "b", THEIRS)} == {
        "a": "a",
        "b": "b",
        THEIRS: THEIRS,
    }
    assert set(await served(world)) == {"a", "b", THEIRS}


async def test_a_reload_gives_other_names(world: World, workers: int) -> None:
    await provider(world, workers=workers)
    world.document["endpoints"][0]["models"] = {"llama": THEIRS}
    assert (await world.ask("POST", "/admin/reload")).status == 200
    await world.until(lambda: world.picture().endpoints[0].models == ["llama"])
    answer = await world.ask(body=body("llama"))
    assert (answer.status, answer.json()["model"]) == (200, "llama")
    assert set(await served(world)) == {"llama"}


# --- elsewhere, and instead ---------------------------------------------------------------------------------------


async def test_what_fails_at_one_endpoint_goes_to_another_one_by_its_name_there(world: World, workers: int) -> None:
    await provider(world, own=True, workers=workers, routing={"policy": "round_robin"})
    for failing, name in ((0, THEIRS), (1, "sim")):
        fault(world.engines[failing], "error")
        before = len(asked(world)[1 - failing])
        for _ in range(2):
            answer = await world.ask(body=body())
            assert (answer.status, answer.json()["model"]) == (200, "sim")
        assert asked(world)[1 - failing][before:] == [name, name]
        fault(world.engines[failing], "none")
        await world.until(lambda: all(endpoint.state == "up" for endpoint in world.picture().endpoints))


async def test_an_engine_that_lacks_its_own_name_is_left_for_another_one(world: World) -> None:
    lacks = b'{"error":{"message":"The model `org/sim-70b` does not exist.","type":"NotFoundError","code":404}}'
    endpoint, requests = await world.scripted(
        b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%b" % (len(lacks), lacks)
    )
    own = await world.engine()
    endpoints = [
        endpoint | {"models": NAMES, "price": 0, "engine": "vllm"},
        {"url": own.url, "slots": 4, "models": ["sim"]},
    ]
    await world.gateway(endpoints=endpoints)
    assert (await world.ask(body=body())).status == 200
    assert len(requests) == 1


async def test_aliases_splits_and_fallbacks_lead_to_the_engines_name(world: World) -> None:
    models = {
        "gpt": {"to": "sim"},
        "gone": {"fallback": ["gpt"]},
        "mixed": {"split": {"sim": 1, "nowhere": 0}},
    }
    await provider(world, models=models)
    for name, instead in (("gpt", None), ("gone", "sim"), ("mixed", None)):
        answer = await world.ask(body=body(name))
        assert (answer.status, answer.json()["model"], answer.header("x-penstock-model")) == (200, "sim", instead)
    assert asked(world) == [[THEIRS] * 3]
    assert set(await served(world)) == {"sim", "gpt", "mixed"}


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("weight", "first_s", "waited_s", "paid"),
    [
        ("inf", 60.0, 0.0, True),  # the cheapest open endpoint
        ("10s", 4.0, 4.0, False),  # the slot is free before the wait is worth the price
        ("10s", 60.0, 10.0, True),
    ],
)
async def test_a_request_spills_to_a_paid_endpoint_when_its_wait_exceeds_the_price(
    world: World, weight: str, first_s: float, waited_s: float, paid: bool
) -> None:
    for name in ("sim", THEIRS):
        await world.engine(model=name, step_s=0.02)
    own, provider = ({"url": engine.url} for engine in world.engines)
    endpoints = [own | {"price": 0, "slots": 1}, provider | {"price": 1, "slots": 8, "models": NAMES}]
    await world.gateway(endpoints=endpoints, routing={"price_weight": weight}, queue={"max_wait": "30s"})
    first = await world.streaming(tokens=round(first_s / 0.02))
    await first.begun()
    answer = await world.chat("a short one", tokens=3)
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, place(world, int(paid)))
    assert int(answer.header("x-penstock-queue-ms") or "") / 1000 == pytest.approx(waited_s, abs=0.5)
    assert asked(world)[1] == [THEIRS] * paid
    first.hang_up()


# --- through a proxy ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def picker(world: World, *names: str, fallbacks: int = 0) -> AsyncIterator[Pool]:
    """A picker before an engine for each name of the model."""
    engines = [await world.engine(model=name) for name in names]
    endpoints = [{"url": engine.url, "models": {"sim": engine.model}, "slots": 4} for engine in engines]
    async with pool(world, 0, endpoints=endpoints, epp={"fallbacks": fallbacks}) as its:
        yield its


async def test_a_proxy_gets_body_and_answer_changed_by_the_endpoint_that_was_picked(world: World) -> None:
    async with picker(world, THEIRS) as its:
        stream = its.stream()
        await stream.head(accept_encoding=b"gzip")
        await stream.body(json.dumps(body()).encode())
        message = await stream.hears()
        assert "accept-encoding" in message.request_headers.response.header_mutation.remove_headers
        assert json.loads(await stream.hears_body("request_body")) == body(THEIRS)
        told = json.dumps({"model": THEIRS, "choices": [], "usage": USAGE}).encode()
        await stream.answered()
        await stream.answer_body(told[:14], told[14:], b"")
        await stream.hears()
        assert json.loads(await stream.hears_body("response_body"))["model"] == "sim"
        await stream.call.done_writing()


@pytest.mark.parametrize(("names", "named"), [(("sim", "sim"), 2), ((THEIRS, THEIRS), 2), (("sim", THEIRS), 1)])
async def test_only_endpoints_with_the_same_name_for_it_are_named_for_retries(
    world: World, names: tuple[str, ...], named: int
) -> None:
    async with picker(world, *names, fallbacks=1) as its:
        stream = its.stream()
        await stream.head()
        await stream.body(json.dumps(body()).encode())
        assert len(headers((await stream.hears()).request_headers)[DESTINATION].split(",")) == named
        await stream.hears_body("request_body")
        await stream.call.done_writing()
