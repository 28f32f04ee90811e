"""Whatever a caller gets wrong is a clear 4xx in the shape of its API; no engine hears of it, nothing is lost."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.gateway.conftest import CHAT, Answer, Client, World, chat, request

MESSAGES = "/v1/messages"
BOTH = pytest.mark.parametrize("path", [CHAT, MESSAGES], ids=["openai", "anthropic"])
DEEP = 100_000

BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "not json": b"{model: sim}",
    "cut off": b'{"model":"sim","messages":[',
    "two values": b'{"model":"sim"}{}',
    "a list": b'["sim"]',
    "a string": b'"sim"',
    "null": b"null",
    "model a number": b'{"model":7}',
    "model a list": b'{"model":["sim"]}',
    "model empty": b'{"model":""}',
    "deep list": b'{"model":"sim","messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep and unclosed": b"[" * DEEP,
    "not utf-8": b'{"model":"sim","x":"\xff\xfe"}',
    "model not utf-8": b'{"model": "sim\xff", "prompt": "hi"}',
    "utf-16": json.dumps(chat()).encode("utf-16"),
    "nul": b'{"model":"sim"}\x00',
    "priority too large": b'{"model":"sim","priority":1e400}',
    "priority too long": b'{"model":"sim","priority":1' + b"0" * 5000 + b"}",
    "usage too large": b'{"model":"sim","stream_options":{"include_usage":1e999}}',
    "utf-16 without a mark": json.dumps(chat()).encode("utf-16-le"),
    "utf-32": json.dumps(chat()).encode("utf-32-be"),
    "half a surrogate": b'{"model":"\\ud800"}',
}


def judged(answer: Answer, path: str, status: int, code: str) -> str:
    """The message of an error that has the caller's shape."""
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-penstock-reason") == code
    body = answer.json()
    if path == MESSAGES:
        assert body["type"] == "error"
        kinds = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
        assert body["error"]["type"] == kinds.get(status, "invalid_request_error")
    else:
        assert answer.error()["type"] == "invalid_request_error"
    assert body["error"]["code"] == code
    message: str = body["error"]["message"]
    assert message
    assert "Traceback" not in message
    return message


async def served(world: World) -> None:
    """Nothing of what came before is left, and a good request is served."""
    assert world.seen() == []
    await world.idle()
    assert (await world.chat()).status == 200


@BOTH
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_body_that_can_not_be_scheduled_is_a_400(world: World, path: str, body: bytes) -> None:
    await world.engine()
    await world.gateway()
    judged(await world.ask(path=path, body=body), path, 400, "bad_request")
    assert await world.metric("penstock_rejections_total", reason="bad_request") == 1
    await served(world)


async def test_each_message_names_the_fault(world: World) -> None:
    await world.engine()
    await world.gateway()
    said = {
        "not json": "not valid JSON",
        "a list": "not a JSON object",
        "priority too large": "A number in `priority` is out of range",
        "usage too large": "A number in `stream_options` is out of range",
        "model a number": "`model` must be",
        "deep list": "too deeply",
        "not utf-8": "not valid UTF-8 (byte 20)",
        "model not utf-8": "not valid UTF-8 (byte 14)",
        "utf-16": "UTF-16",
        "utf-16 without a mark": "UTF-16",
        "utf-32": "UTF-16 or UTF-32",
        "empty": "no body",
    }
    for name, words in said.items():
        assert words in (await world.ask(body=BAD_BODIES[name])).error()["message"]
    assert (await world.ask(body=BAD_BODIES["priority too large"])).error()["param"] == "priority"


HALVES = {
    "high": b'{"model":"sim","messages":[{"role":"user","content":"\\ud83d"}]}',
    "low": b'{"model":"sim","messages":[{"role":"user","content":"\\uDE00!"}]}',
    "twice the high one": b'{"model":"sim","prompt":"\\ud83d\\ud83d\\ude00"}',
    "in a key": b'{"model":"sim","x":{"\\udfff":1}}',
    "in the model": b'{"model":"\\ud800"}',
    "after an escaped backslash": b'{"model":"sim","prompt":"\\\\\\ud83d "}',
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("body", HALVES.values(), ids=HALVES)
async def test_half_a_surrogate_pair_is_refused_by_its_name(world: World, body: bytes, large: bool) -> None:
    await world.gateway()
    body = b'{"more":"%b",' % (b"x" * 300_000) + body[1:] if large else body
    answer = await world.ask(body=body)
    assert (answer.status, answer.error()["code"]) == (400, "bad_request")
    assert "surrogate" in answer.error()["message"]


@pytest.mark.parametrize("large", [False, True])
async def test_whole_surrogate_pairs_and_their_spelling_out_pass(world: World, large: bool) -> None:
    engine = await world.engine()
    await world.gateway()
    body = chat("\U0001f600 \\ud83d \\\\ud83d \ud55c", more="x" * 300_000 * large)
    assert (await world.ask(body=body)).status == 200
    assert large or bytes(engine.log.entries[0].body or b"") == json.dumps(body).encode()


@pytest.mark.parametrize("large", [False, True])
async def test_a_byte_order_mark_is_left_out(world: World, large: bool) -> None:
    engine = await world.engine()
    await world.gateway(models={"other": {"to": "sim"}})
    body = chat(more="x" * 300_000 * large)
    assert (await world.ask(body=b"\xef\xbb\xbf" + json.dumps(body).encode())).status == 200
    renamed = {**body, "model": "other", "stream": True}
    assert (await world.ask(body=b"\xef\xbb\xbf" + json.dumps(renamed).encode())).status == 200
    assert large or bytes(engine.log.entries[0].body or b"") == json.dumps(body).encode()
    assert large or json.loads(bytes(engine.log.entries[1].body or b"")) == {
        **renamed, "model": "sim", "stream_options": {"include_usage": True}
    }  # fmt: skip


@pytest.mark.parametrize("value", ["1e400", "1" + "0" * 5000, "[" * 500 + "]" * 500, "true", '{"a":1}'])
async def test_a_session_that_is_no_name_is_none(world: World, value: str) -> None:
    await world.engine()
    await world.gateway(routing={"policy": "session", "session": {"body": "conversation"}})
    body = json.dumps(chat())[:-1] + f', "conversation": {value}}}'
    assert (await world.ask(body=body.encode())).status == 200
    await world.idle()


@BOTH
async def test_an_unknown_model_is_a_404_that_names_it(world: World, path: str) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.ask(path=path, body={**chat(), "model": "no\nbody" + "x" * 1000})
    assert "`no\nbodyx" in judged(answer, path, 404, "model_not_found")
    assert len(answer.body) < 1000
    assert await world.metric("penstock_requests_total", model="other", reason="model_not_found") == 1
    await served(world)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/nothing",
        "/v1",
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/audio/../../x",
        "/v1/audio/%2e%2E/x",
        "/v1/images/..%2Fx",
        "/v1/images/..%5c..%5cx",
        "/v1%2fmodels",
    ],
)
async def test_an_unknown_path_is_a_404_and_not_proxied(world: World, path: str) -> None:
    await world.engine()
    await world.gateway()
    judged(await world.ask(path=path, body=chat()), path, 404, "path_not_found")
    await served(world)


@BOTH
async def test_two_ids_are_a_400(world: World, path: str) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.ask(path=f"{path}?id=a&id=b", body=chat())
    assert "several" in judged(answer, path, 400, "bad_request")
    await served(world)


async def test_a_query_of_a_thousand_fields_is_a_400(world: World) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.ask(path=f"{CHAT}?" + "&".join(f"id={n}" for n in range(1000)), body=chat())
    judged(answer, CHAT, 400, "bad_request")
    await served(world)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("OPTIONS", MESSAGES, "POST"),
        ("POST", "/metrics", "GET, HEAD"),
        ("OPTIONS", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_a_405_that_lists_the_right_ones(
    world: World, method: str, path: str, allowed: str
) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.ask(method, path)
    judged(answer, path, 405, "method_not_allowed")
    assert answer.header("allow") == allowed
    await served(world)


@pytest.mark.parametrize("path", ["/health", "/livez", "/ready", "/"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("more", ["", "connection: close\r\n", "Host: 10.0.0.7\r\n"])
async def test_probes_of_http_1_0_are_answered_and_closed(world: World, method: str, path: str, more: str) -> None:
    await world.engine()
    await world.gateway()
    client = await world.client(f"{method} {path} HTTP/1.0\r\n{more}\r\n".encode())
    head = await client.head()
    assert (head.status, head.header("connection")) == (200, "close")
    body = await client.rest()
    assert len(body) == (0 if method == "HEAD" else int(head.header("content-length") or "-1"))
    client.hang_up()


async def test_probes_with_options_keep_a_connection_that_may_stay(world: World) -> None:
    await world.engine()
    await world.gateway(identity={"require_key": True}, tenants=[{"name": "a", "keys": ["sha256:" + "0" * 64]}])
    client = await world.client()
    for path in ("/health", "/ready", "*"):
        client.send(request("OPTIONS", path))
        assert (await client.answer()).status == 200
    client.hang_up()


async def test_only_options_may_ask_for_the_whole_server(world: World) -> None:
    await world.engine()
    await world.gateway()
    assert (await world.ask("GET", "*")).error()["code"] == "bad_request"
    assert (await world.ask("OPTIONS", "**")).error()["code"] == "bad_request"


# --- sizes -----------------------------------------------------------------------------------------------------


async def early(client: Client) -> Answer:
    """The answer to a request that is not, or never will be, complete; then the connection closes."""
    answer = await client.answer()
    assert answer.header("connection") == "close"
    assert await client.rest() == b""
    client.hang_up()
    return answer


@BOTH
async def test_a_body_of_200_mb_is_refused_by_its_length_before_it_is_read(world: World, path: str) -> None:
    await world.engine()
    await world.gateway()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {200 << 20}\r\n\r\n".encode()
    judged(await early(await world.client(head + b"x" * 65536)), path, 413, "request_too_large")
    await served(world)


async def test_a_chunked_body_is_refused_at_the_byte_that_is_too_many(world: World) -> None:
    await world.engine()
    await world.gateway(limits={"max_body": "1MiB"})
    client = await world.client(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
    for _ in range(17):
        client.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    judged(await early(client), CHAT, 413, "request_too_large")
    await served(world)


async def test_a_packed_body_is_refused_when_it_unpacks_to_too_much(world: World) -> None:
    await world.engine()
    await world.gateway(limits={"max_body": "1MiB"})
    bomb = gzip.compress(b" " * (50 << 20))
    packed = {"content-encoding": "gzip"}
    judged(await world.ask(body=bomb, headers=packed), CHAT, 413, "request_too_large")
    judged(await world.ask(body=bomb[: len(bomb) // 2], headers=packed), CHAT, 413, "request_too_large")
    judged(await world.ask(body=b"not gzip", headers=packed), CHAT, 400, "bad_request")
    judged(await world.ask(body=gzip.compress(b"{}")[:-5], headers=packed), CHAT, 400, "bad_request")
    await served(world)


@pytest.mark.parametrize("field", [b"x-big: " + b"x" * (1 << 20), b"x: y\r\n" * 20_000], ids=["one", "many"])
async def test_a_head_of_1_mb_is_a_431(world: World, field: bytes) -> None:
    await world.engine()
    await world.gateway()
    client = await world.client(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode() + field)
    judged(await early(client), CHAT, 431, "header_too_large")
    await served(world)


# --- framing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: abc",
        b"content-length: -1",
        b"content-length: 1\r\ncontent-length: 2",
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: gzip, chunked",
        b"content-length: 99999999999999999999999",
    ],
)
async def test_a_wrong_length_is_a_400(world: World, framing: bytes) -> None:
    await world.engine()
    await world.gateway()
    client = await world.client(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode() + framing + b"\r\n\r\n{}")
    answer = await early(client)
    assert answer.status in (400, 413)
    judged(answer, CHAT, answer.status, "bad_request" if answer.status == 400 else "request_too_large")
    await served(world)


@BOTH
async def test_a_length_that_is_too_long_or_a_chunked_body_that_stops_is_a_408(world: World, path: str) -> None:
    await world.engine()
    await world.gateway(timeouts={"client_body": 0.2})
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n".encode()
    stopping = [b'content-length: 100\r\n\r\n{"model":', b'transfer-encoding: chunked\r\n\r\n9\r\n{"model":\r\n']
    for body in stopping:
        judged(await early(await world.client(head + body)), path, 408, "client_timeout")
    await served(world)


@BOTH
async def test_a_body_that_drips_is_a_408_when_its_time_in_all_is_over(world: World, path: str) -> None:
    await world.engine()
    await world.gateway(timeouts={"client_body_total": 0.3})
    client = await world.client(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
    reading = asyncio.ensure_future(early(client))
    while not reading.done():
        client.send(b" ")
        await asyncio.sleep(0.02)
    judged(await reading, path, 408, "client_timeout")
    await served(world)


async def test_a_length_that_is_too_short_cuts_the_body_and_the_rest_is_no_request(world: World) -> None:
    await world.engine()
    await world.gateway()
    body = json.dumps(chat()).encode()
    client = await world.client(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body) - 9}\r\n\r\n".encode() + body
    )
    judged(await client.answer(), CHAT, 400, "bad_request")
    judged(await early(client), CHAT, 400, "bad_request")
    await served(world)


async def test_a_client_that_leaves_in_the_middle_of_its_request_leaves_no_state(world: World) -> None:
    await world.engine()
    await world.gateway()
    whole = request(body=chat())
    for size in (0, 1, 20, 60, len(whole) - 1):
        client = await world.client(whole[:size])
        client.hang_up()
    await world.until(lambda: world.gate.server.connections == 0)
    await served(world)


@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"hello\r\n\r\n"]
)
async def test_what_is_not_http_1_is_a_400(world: World, raw: bytes) -> None:
    await world.engine()
    await world.gateway()
    judged(await early(await world.client(raw)), CHAT, 400, "bad_request")
    await served(world)


async def test_a_websocket_request_gets_426(world: World) -> None:
    await world.engine()
    await world.gateway()
    upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-key": "x"}
    client = await world.client(request("GET", "/v1/realtime", headers=upgrade))
    judged(await early(client), CHAT, 426, "websocket_unsupported")
    await served(world)


# --- forms -----------------------------------------------------------------------------------------------------

FORM = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n--b--\r\n'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", FORM % (b"model", b"sim")),
        ("multipart/form-data; boundary=b", b"nothing of the kind"),
        ("multipart/form-data; boundary=b", FORM % (b"model", b"")),
        ("multipart/form-data; boundary=b", FORM % (b"model", b"\xff")),
        ("multipart/form-data; boundary=b", (FORM % (b"model", b"sim"))[:-12]),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n" * 2000),
    ],
)
async def test_a_form_that_can_not_be_read_is_a_400(world: World, kind: str, body: bytes) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.ask(path="/v1/audio/transcriptions", body=body, headers={"content-type": kind})
    judged(answer, CHAT, 400, "bad_request")
    await served(world)


async def test_tgi_gets_errors_in_its_own_shape(world: World) -> None:
    for model in ("a", "b"):
        await world.engine(model=model)
    await world.gateway()
    answer = await world.ask(path="/generate", body={"inputs": "x"})
    body: dict[str, Any] = answer.json()
    assert (answer.status, body["error_type"], body["code"]) == (400, "validation", "bad_request")
    assert isinstance(body["error"], str)
