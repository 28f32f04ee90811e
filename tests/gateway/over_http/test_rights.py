"""What a key may do: its models, the length of prompts and answers, until when; and what a tenant may use in a day."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import openai
import pytest

from penstock import clock
from penstock.gateway.identity.caller import Caller, Key, Unauthorized
from penstock.gateway.identity.callers import Callers, key_hash
from tests.gateway.conftest import CHAT, World, chat
from tests.gateway.over_http.test_tenancy import OK, flow_of

KEY, FREE = "pk-narrow", "pk-free"
BEARER = {"authorization": f"Bearer {KEY}"}
FREE_BEARER = {"authorization": f"Bearer {FREE}"}


def narrow(**rights: Any) -> dict[str, Any]:
    """Settings with two keys of one tenant, of which one may do less."""
    return {"tenants": [{"name": "team", "keys": [{"hash": key_hash(KEY), **rights}, key_hash(FREE)]}]}


def client(world: World, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=key)


async def refused(world: World, path: str = CHAT, body: Any = None, code: str = "bad_request") -> str:
    """The words of a refusal with 400."""
    answer = await world.ask(path=path, body=chat() if body is None else body, headers=BEARER)
    error = answer.json()["error"]
    words, its_code = (error["message"], error["code"]) if isinstance(error, dict) else (error, answer.json()["code"])
    assert (answer.status, its_code) == (400, code), answer
    assert answer.header("retry-after") is None
    return str(words)


# --- models ------------------------------------------------------------------------------------------------------


async def test_a_key_uses_the_models_that_it_names_and_sees_no_others(world: World) -> None:
    await world.engine(model="qwen-32b")
    await world.engine(model="llama-8b")
    await world.gateway(
        models={"small": {"to": "llama-8b"}, "large": {"to": "qwen-32b"}}, **narrow(models=["qwen-*", "small"])
    )
    answers = {
        name: await world.ask(body=chat(model=name), headers=BEARER)
        for name in ("qwen-32b", "small", "llama-8b", "large", "nobody-has-it")
    }
    assert {name: answer.status for name, answer in answers.items()} == {
        "qwen-32b": 200,
        "small": 200,
        "llama-8b": 403,  # under its other name
        "large": 403,
        "nobody-has-it": 403,
    }
    error = answers["llama-8b"].error()
    assert (error["code"], error["type"]) == ("forbidden", "invalid_request_error")
    assert error["message"] == (
        "This API key may not use the model `llama-8b`. GET /v1/models lists those that it may."
    )
    assert answers["llama-8b"].header("x-should-retry") == "false"
    listed = (await world.ask("GET", "/v1/models", headers=BEARER)).json()["data"]
    assert sorted(entry["id"] for entry in listed) == ["qwen-32b", "small"]
    assert (await world.ask("GET", "/v1/models/small", headers=BEARER)).status == 200
    assert (await world.ask("GET", "/v1/models/large", headers=BEARER)).error()["code"] == "model_not_found"
    everything = (await world.ask("GET", "/v1/models", headers=FREE_BEARER)).json()["data"]
    assert len(everything) == 4
    assert (await world.ask(body=chat(model="large"), headers=FREE_BEARER)).status == 200
    tokenized = await world.ask(path="/tokenize", body={"model": "llama-8b", "prompt": "x"}, headers=BEARER)
    assert tokenized.status == 403


async def test_openais_client_raises_permission_denied(world: World) -> None:
    await world.engine()
    await world.gateway(**narrow(models=["other"]))
    async with client(world) as asking:
        with pytest.raises(openai.PermissionDeniedError, match="may not use the model `sim`"):
            await asking.chat.completions.create(model="sim", messages=[{"role": "user", "content": "Hi"}])


async def test_a_model_field_in_another_case_does_not_bypass_rights(world: World) -> None:
    """Ollama, written in Go, takes `Model` for `model`, and the last one counts."""
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(models=["sim"]))
    for name in ("Model", "MODEL", "Options", "max_to\u212aens"):
        assert "is not a field" in await refused(world, body={**chat(), name: "large"})
    large = {**chat("x" * 300_000), "Model": "large"}
    assert "is not a field" in await refused(world, body=large)
    assert requests == []


#: By the engine that takes it: another model or adapter than the field `model` names.
OTHER_NAMES: dict[str, dict[str, Any]] = {
    "sglang": {"lora_path": "large"},
    "sglang, one per prompt": {"lora_path": [None, "sim", "large"]},
    "sglang, by id": {"lora_id": "large"},
    "tgi": {"parameters": {"adapter_id": "large"}},
    "lorax": {"adapter_id": "large"},
    "lorax, merged": {"parameters": {"merged_adapters": {"ids": ["sim", "large"], "weights": [1, 1]}}},
    "llama.cpp": {"lora": [{"id": 0, "scale": 1.0}]},
    "trtllm": {"lora_request": {"lora_name": "large", "lora_int_id": 1, "lora_path": "/large"}},
    "trtllm, by path": {"lora_request": {"lora_name": "sim", "lora_path": "/large"}},
    "lmdeploy": {"adapter_name": "large"},
    "openrouter": {"models": ["sim", "large"]},
    "litellm": {"fallbacks": [{"model": "large"}]},
    "litellm, names": {"fallbacks": ["large"]},
}


@pytest.mark.parametrize("named", OTHER_NAMES.values(), ids=OTHER_NAMES)
async def test_a_key_does_not_get_another_model_by_another_field(world: World, named: dict[str, Any]) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(models=["sim"]))
    for path in (CHAT, "/generate", "/completion", "/tokenize", "/v1/embeddings"):
        for size in (0, 300_000):
            body = {"model": "sim", "more": "x" * size, **named}
            answer = await world.ask(path=path, body=body, headers=BEARER)
            assert (answer.status, answer.json().get("code") or answer.error()["code"]) == (403, "forbidden"), path
    assert requests == []
    assert (await world.ask(body={"model": "sim", **named}, headers=FREE_BEARER)).status == 200


async def test_an_adapter_that_a_key_names_is_its_own_to_ask_for(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(models=["sim", "law-*", "7"]))
    its_own: list[dict[str, Any]] = [
        {"lora_path": "law-1"},
        {"lora_path": ["law-1", None, "sim"]},
        {"lora_path": None, "parameters": None, "lora": [], "models": [], "fallbacks": {}},
        {"parameters": {"adapter_id": "law-1"}},
        {"lora": [{"id": 7, "scale": 0.5}]},
    ]
    for named in its_own:
        assert (await world.ask(body={"model": "sim", **named}, headers=BEARER)).status == 200, named
    assert len(requests) == 5
    assert "has to be a name" in await refused(world, body={"model": "sim", "lora_path": {"x": 1}})
    assert "has to be a name" in await refused(world, body={"model": "sim", "lora_path": 1.5})
    assert "more than once" in await refused(world, body=b'{"model":"sim","lora_path":"law-1","lora_path":"law-2"}')
    assert "is not a field" in await refused(world, body={"model": "sim", "Lora_Path": "large"})


# --- prompts -----------------------------------------------------------------------------------------------------


async def test_a_prompt_that_is_longer_than_its_key_may_send_is_refused(world: World) -> None:
    await world.engine()
    await world.gateway(**narrow(max_prompt_tokens=100))
    assert (await world.ask(body=chat("x" * 100), headers=BEARER)).status == 200
    words = await refused(world, body=chat("x" * 2000), code="context_length_exceeded")
    assert words.startswith("Input tokens exceed the configured limit of 100 tokens for this key")
    assert (await world.ask(body=chat("x" * 2000), headers=FREE_BEARER)).status == 200
    assert len(world.seen()) == 2
    async with client(world) as asking:
        with pytest.raises(openai.BadRequestError) as caught:
            await asking.chat.completions.create(model="sim", messages=[{"role": "user", "content": "x" * 2000}])
    assert caught.value.code == "context_length_exceeded"
    assert await world.metric("penstock_rejections_total", reason="context_length_exceeded") == 2


async def test_fields_that_no_model_reads_are_no_part_of_a_prompt(world: World) -> None:
    await world.engine()
    await world.gateway(**narrow(max_prompt_tokens=100))
    for size in (8_000, 1_000_000):
        body = {**chat("x"), "metadata": {"trace": "x" * size}, "session_id": "x" * size}
        assert (await world.ask(body=body, headers=BEARER)).status == 200


TOKEN_IDS: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"input": [123456] * 100, "encoding_format": "float", "dimensions": 256}),
    "several embeddings": ("/v1/embeddings", {"input": [[123456] * 50, [7] * 50]}),
    "completions": ("/v1/completions", {"prompt": [[1, 2], [3] * 98], "max_tokens": 5, "stop": ["\n"]}),
    "sglang": ("/generate", {"input_ids": [123456] * 100, "sampling_params": {"max_new_tokens": 5}}),
    "vllm": ("/inference/v1/generate", {"token_ids": [123456] * 100, "sampling_params": {"max_tokens": 5}}),
}


@pytest.mark.parametrize(("path", "body"), TOKEN_IDS.values(), ids=TOKEN_IDS)
async def test_token_ids_are_held_against_the_bound_by_their_number(
    world: World, path: str, body: dict[str, Any]
) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_prompt_tokens=100))
    assert (await world.ask(path=path, body={"model": "sim", **body}, headers=BEARER)).status == 200
    more = {
        name: [*value, value[0]] if name in ("input", "prompt") or "ids" in name else value
        for name, value in body.items()
    }
    await refused(world, path, {"model": "sim", **more}, code="context_length_exceeded")
    assert len(requests) == 1


# --- answers -----------------------------------------------------------------------------------------------------


async def test_a_longer_answer_than_its_key_may_have_can_not_be_asked_for(world: World) -> None:
    await world.engine()
    await world.gateway(**narrow(max_output_tokens=5))
    assert (await world.ask(body=chat(tokens=5), headers=BEARER)).status == 200
    assert await refused(world, body=chat(tokens=6)) == "`max_tokens` is 6; this key may ask for 5 tokens at most."
    for said in ({"max_completion_tokens": 6}, {"max_output_tokens": 6}, {"n_predict": 6}):
        assert "may ask for 5 tokens at most" in await refused(world, body={**chat(tokens=5), **said})
    for odd in (0, -1, "5000", 5.5, [1]):
        assert "whole number from 1 to 5" in await refused(world, body={**chat(), "max_tokens": odd})
    assert (await world.ask(body=chat(tokens=6), headers=FREE_BEARER)).status == 200
    assert len(world.seen()) == 2


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "max_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/completion", "n_predict"),
        ("/invocations", "max_tokens"),
    ],
)
async def test_a_request_without_a_limit_is_sent_with_that_of_its_key(world: World, path: str, field: str) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_output_tokens=5))
    for size in (10, 300_000):  # a small body, and one that is read by steps
        body: dict[str, Any] = {"model": "sim", "prompt": "x" * size, "messages": [], "max_tokens": None}
        assert (await world.ask(path=path, body=body, headers=BEARER)).status == 200
        sent = msgspec.json.decode(requests[-1].partition(b"\r\n\r\n")[2])
        assert sent[field] == 5
        assert {**body, field: 5} == sent
    assert (await world.ask(path=path, body=body, headers=FREE_BEARER)).status == 200
    assert msgspec.json.decode(requests[-1].partition(b"\r\n\r\n")[2]) == body


#: By the engine whose API it is: a path, the field of its prompt, and where the length of its answer stands.
DEEPER = {
    "tgi": ("/generate", "inputs", "parameters", "max_new_tokens"),
    "tgi, streamed": ("/generate_stream", "inputs", "parameters", "max_new_tokens"),
    "tgi, sagemaker": ("/invocations", "inputs", "parameters", "max_new_tokens"),
    "sglang": ("/generate", "text", "sampling_params", "max_new_tokens"),
    "sglang, token ids": ("/generate", "input_ids", "sampling_params", "max_new_tokens"),
    "ollama": ("/api/chat", "messages", "options", "num_predict"),
    "ollama, prompt": ("/api/generate", "prompt", "options", "num_predict"),
    "vllm": ("/inference/v1/generate", "token_ids", "sampling_params", "max_tokens"),
}


@pytest.mark.parametrize(("path", "prompt", "section", "field"), DEEPER.values(), ids=DEEPER)
async def test_where_the_field_lies_deeper_the_caller_has_to_say_it(
    world: World, path: str, prompt: str, section: str, field: str
) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_output_tokens=5))
    body: dict[str, Any] = {"model": "sim", prompt: [1], "max_tokens": 1}
    assert f"set `{section}.{field}`" in await refused(world, path, body)
    nothing: list[Any] = [{}, {field: None}, None, [], [{field: 5}, {}]]
    for odd in nothing:
        assert ": set `" in await refused(world, path, {**body, section: odd})
    assert "has to be" in await refused(world, path, {**body, section: "no object"})
    wrong: list[Any] = [{field: -1}, {field: "5"}, {field: [5]}, {field: 2.5}, [{field: 5}, {field: 0}]]
    for odd in wrong:
        assert f"`{section}.{field}` has to be" in await refused(world, path, {**body, section: odd})
    assert "too large" in await refused(world, path, {**body, section: {field: 1, "x": "y" * 70_000}})
    too_many: list[Any] = [{field: 6}, [{field: 6}], [{field: 5}, {field: 6}]]
    for more in too_many:
        assert f"`{section}.{field}` is 6" in await refused(world, path, {**body, section: more})
    assert requests == []
    fine: list[Any] = [{field: 5}, [{field: 5}, {field: 1}]]
    for said in [{**body, section: options} for options in fine]:
        assert (await world.ask(path=path, body=said, headers=BEARER)).status == 200
        assert msgspec.json.decode(requests[-1].partition(b"\r\n\r\n")[2]) == said


@pytest.mark.parametrize(
    "asked",
    [
        {"text": ["x"], "parameters": {"max_new_tokens": 5}, "sampling_params": [{"max_new_tokens": 5000}]},
        {"text": "x", "parameters": {"max_new_tokens": 5}},
        {"inputs": "x", "parameters": {"max_new_tokens": 5}, "text": "x"},
        {"inputs": "x", "parameters": {"max_new_tokens": 5}, "max_tokens": 6},
        {"inputs": "x", "parameters": {"max_new_tokens": 5}, "options": {"num_predict": 6}},
        {"inputs": "x", "parameters": {"max_new_tokens": 5}, "request_output_len": 6},
    ],
)
async def test_of_several_lengths_each_is_held_against_the_bound(world: World, asked: dict[str, Any]) -> None:
    await world.gateway(**narrow(max_output_tokens=5))
    await refused(world, "/generate", {"model": "sim", **asked})


@pytest.mark.parametrize(
    ("path", "said", "put_in"),
    [
        (CHAT, {"max_completion_tokens": 3}, None),
        (CHAT, {"n_predict": 3}, "max_tokens"),
        (CHAT, {"max_new_tokens": 3}, "max_tokens"),
        ("/v1/completions", {"max_completion_tokens": 3}, "max_tokens"),
        ("/v1/responses", {"max_tokens": 3}, "max_output_tokens"),
        ("/completion", {"max_tokens": 3}, None),
        ("/completion", {"max_completion_tokens": 3}, "n_predict"),
        ("/generate", {"max_tokens": 3}, None),
        ("/generate", {}, "max_tokens"),
    ],
)
async def test_a_field_that_an_engine_does_not_read_bounds_nothing(
    world: World, path: str, said: dict[str, Any], put_in: str | None
) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_output_tokens=5))
    body = {"model": "sim", "prompt": "x", **said}
    assert (await world.ask(path=path, body=body, headers=BEARER)).status == 200
    sent = msgspec.json.decode(requests[-1].partition(b"\r\n\r\n")[2])
    assert sent == body | ({} if put_in is None else {put_in: 5})


MANY: dict[str, tuple[str, dict[str, Any]]] = {  # answers: six tokens in all, of five
    "n": (CHAT, {"messages": [], "max_tokens": 2, "n": 3}),
    "best_of": ("/v1/completions", {"prompt": "x", "max_tokens": 3, "n": 1, "best_of": 2}),
    "prompts": ("/v1/completions", {"prompt": ["x", "y", "z"], "max_tokens": 2}),
    "prompts of token ids": ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 3}),
    "prompts, and n": ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 1, "n": 3}),
    "more answers than tokens": (CHAT, {"messages": [], "max_tokens": 1, "n": 6}),
    "more than any engine makes": (CHAT, {"messages": [], "max_tokens": 1, "n": 10**9}),
    "sglang": ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2, "n": 3}}),
    "sglang, several": ("/generate", {"text": ["x", "y"], "sampling_params": [{"max_new_tokens": 3}] * 2}),
    "vllm": ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 3, "best_of": 2}}),
    "tgi": ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 3, "best_of": 2}}),
    "llama.cpp": ("/completion", {"prompt": ["x", "y"], "n_predict": 3}),
    "no bound for more than five": (CHAT, {"messages": [], "n": 6}),
}


@pytest.mark.parametrize(("path", "body"), MANY.values(), ids=MANY)
@pytest.mark.parametrize("size", [0, 300_000])
async def test_the_bound_holds_for_all_answers_together(
    world: World, path: str, body: dict[str, Any], size: int
) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_output_tokens=5))
    asked = {"model": "sim", "unknown": "x" * size, **body}
    assert "may ask for 5 tokens at most" in await refused(world, path, asked)
    assert (await world.ask(path=path, body=asked, headers=FREE_BEARER)).status == 200
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("path", "said", "each"),
    [
        (CHAT, {"n": 2}, 2),
        (CHAT, {"n": None}, 5),
        ("/v1/completions", {"best_of": 3, "n": 1}, 1),
        ("/v1/completions", {"prompt": ["x", "y"]}, 2),
        ("/v1/completions", {"prompt": [1, "x", 2]}, 5),
    ],
)
async def test_a_bound_is_divided_among_the_answers(world: World, path: str, said: dict[str, Any], each: int) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_output_tokens=5))
    assert (await world.ask(path=path, body={"model": "sim", **said}, headers=BEARER)).status == 200
    assert msgspec.json.decode(requests[-1].partition(b"\r\n\r\n")[2]) == {"model": "sim", **said, "max_tokens": each}
    assert (await world.ask(path=path, body={"model": "sim", **said, "max_tokens": each}, headers=BEARER)).status == 200


@pytest.mark.parametrize("odd", ["3", 0, -1, 2.0, [2], {}, True])
async def test_a_number_of_answers_is_a_number(world: World, odd: object) -> None:
    await world.gateway(**narrow(max_output_tokens=5))
    assert "`n` has to be a whole number" in await refused(world, body={**chat(tokens=1), "n": odd})
    twice = b'{"model":"sim","messages":[],"max_tokens":1,"n":1,"n":5000}'
    assert "`n` is given more than once" in await refused(world, body=twice)


@pytest.mark.parametrize("size", [0, 300_000])
async def test_a_bounded_field_is_given_once(world: World, size: int) -> None:
    """Of `options` twice Go's parser makes one object, of other fields parsers take the first or the last."""
    await world.gateway(**narrow(max_output_tokens=5))
    for twice in (
        '"options":{"num_predict":5000},"options":{"num_predict":5}',
        '"options":{"num_predict":5000,"num_predict":5}',
        '"options":{"num_predict":5},"max_tokens":5000,"max_tokens":5',
    ):
        body = f'{{"model":"sim","prompt":"x","more":"{"x" * size}",{twice}}}'.encode()
        assert "more than once" in await refused(world, "/api/generate", body)


async def test_requests_without_output_tokens_have_no_output_limit(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **narrow(max_output_tokens=5))
    body = {"model": "sim", "input": "x"}
    assert (await world.ask(path="/v1/embeddings", body=body, headers=BEARER)).status == 200
    assert msgspec.json.decode(requests[-1].partition(b"\r\n\r\n")[2]) == body


# --- its name ----------------------------------------------------------------------------------------------------


async def test_a_key_is_a_user_by_its_name(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, fairness={"levels": ["tenant", "user"]}, **narrow(name="ci"))
    assert await flow_of(world, BEARER) == ("team", "key:ci")
    assert await flow_of(world, FREE_BEARER) == ("team", f"key:{key_hash(FREE)[7:19]}")
    assert await flow_of(world, {**BEARER, "x-user-id": "anna"}) == ("team", "anna")


# --- until when --------------------------------------------------------------------------------------------------


async def test_an_expired_key_gets_an_error_that_names_the_date(world: World) -> None:
    await world.engine()
    await world.gateway(**narrow(expires="2026-01-31"))
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("POST", "/tokenize")):
        answer = await world.ask(method, path, chat(), BEARER)
        assert (answer.status, answer.error()["code"]) == (401, "unauthorized")
        assert answer.error()["message"] == (
            "This API key has expired (invalid_api_key): it was good until 2026-02-01 00:00 UTC."
        )
    assert (await world.chat_with(FREE_BEARER)).status == 200
    async with client(world) as asking:
        with pytest.raises(openai.AuthenticationError, match="has expired"):
            await asking.chat.completions.create(model="sim", messages=[{"role": "user", "content": "Hi"}])
    assert world.seen()[0].headers.get("authorization") is None


async def test_a_key_works_up_to_its_last_second(world: World) -> None:
    now = [1_800_000_000.0]
    callers = Callers(wall=lambda: now[0])
    world.document = narrow(expires="2027-01-31T18:00:00Z")
    callers.follow(world.settings())
    header = {b"authorization": BEARER["authorization"].encode()}.get
    now[0] = 1_801_418_399.9
    key = callers.key(header, lambda _: False)
    assert isinstance(key, Key)
    assert isinstance(callers.identify(key, header, "127.0.0.1", now=0.0), Caller)
    now[0] = 1_801_418_400.0
    assert isinstance(callers.key(header, lambda _: False), Unauthorized)
    assert isinstance(callers.identify(key, header, "127.0.0.1", now=0.0), Unauthorized), "its body came after that"
    assert clock.wall() > 1_700_000_000.0


# --- a day's tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["tenant", "anonymous"])
async def test_tokens_of_a_day_are_reserved_settled_and_reported(world: World, place: str) -> None:
    """A day's 500 tokens come back at 21 an hour, so what is used up stays so for hours."""
    limits = {"tokens_per_day": 500}
    settings: dict[str, Any] = {"identity": {"anonymous": {"limits": limits}}}
    if place == "tenant":
        settings = {"tenants": [{"name": "team", "keys": [key_hash(KEY)], "limits": limits}]}
    await world.engine(step_s=0.001)
    await world.gateway(**settings, store=False)  # earlier tests spent, too
    headers = BEARER if place == "tenant" else {}
    first = await world.ask(body=chat(tokens=400), headers=headers)
    assert (first.status, first.header("x-ratelimit-limit-tokens-day")) == (200, "500")
    assert first.header("x-ratelimit-limit-tokens") is None, "nothing bounds its minute"
    await world.idle()
    left = 500 - first.json()["usage"]["total_tokens"]
    shown = (await world.ask("GET", "/queue", headers=headers)).json()["limits"]["tokens_per_day"]
    assert (shown["limit"], shown["remaining"]) == (500, left)
    assert 60_000 < shown["reset_s"] < 86_400
    over = await world.ask(body=chat("long " * 200, tokens=100), headers=headers)
    assert (over.status, over.error()["code"]) == (429, "tenant_limit")
    assert over.header("x-penstock-limit") == "tokens_per_day"
    words = r"may use 500 tokens a day \(\w+ limit `tokens_per_day`\)\. Please try again in \d+ hours\."
    assert re.search(words, over.error()["message"])
    hours = int(over.header("retry-after") or "") / 3600
    assert 5 < hours <= 24, "the truth: SDKs try again by their own clock, and give up"
    assert over.header("x-ratelimit-remaining-tokens-day") == str(left)
