"""Connections: newcomers, floods, drips, and what is not HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.gateway.openai.answers.stream_end import cut_off
from tests.gateway.conftest import CHAT, NOT_FOUND, World, chat, request
from tests.gateway.raw_engine import Peer, RawEngine
from tests.patience import WAIT_S
from tests.ports import free_port

NEWCOMERS = 200


async def test_a_turn_of_the_loop_takes_many_new_connections(world: World) -> None:
    """uvloop's own server takes one a turn: beside turns of 20 ms the last of 200 waited for 4 s."""
    await world.engine()
    await world.gateway()
    loop = asyncio.get_running_loop()
    newcomers = [socket.socket() for _ in range(NEWCOMERS)]
    for one in newcomers:
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.connect(("127.0.0.1", world.port))
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if world.gate.server.connections < NEWCOMERS:
            loop.call_soon(turn)

    loop.call_soon(turn)
    await world.until(lambda: world.gate.server.connections == NEWCOMERS)
    for one in newcomers:
        one.close()
    assert turns <= 8 * NEWCOMERS / 64  # some turns begin a connection after it was taken


async def test_connections_of_one_address_have_a_limit_if_set(world: World) -> None:
    await world.engine()
    await world.gateway(limits={"max_connections_per_address": 3})
    held = [await world.client() for _ in range(3)]
    await world.until(lambda: world.gate.server.connections == 3)
    refused = await world.chat()
    assert (refused.status, refused.error()["code"]) == (429, "overload")
    assert "from this address" in refused.error()["message"]
    await world.until(lambda: world.gate.server.connections == 3)
    held[0].hang_up()
    await world.until(lambda: world.gate.server.connections == 2)
    assert (await world.chat()).status == 200


@contextlib.contextmanager
def many_sockets(port: int, count: int) -> Iterator[list[socket.socket]]:
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.close()


async def test_without_file_descriptors_newcomers_wait_and_a_warning_is_logged() -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "penstock",
            "serve",
            "--listen",
            f"127.0.0.1:{port}",
            "--endpoint",
            "http://127.0.0.1:9",
        ),
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=few_files,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(WAIT_S):
            while b"listening" not in await process.stderr.readline():
                pass
            with many_sockets(port, 100):
                while b"new connections must wait" not in await process.stderr.readline():
                    pass
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("GET", "/health"))
            assert b"200" in await reader.readline()
            writer.close()
    finally:
        process.kill()
        await process.communicate()


# --- bodies ---------------------------------------------------------------------------------------------------------


async def test_an_unwanted_body_is_not_read(world: World) -> None:
    await world.engine()
    await world.gateway(identity={"require_key": True}, tenants=[{"name": "a", "keys": ["sha256:" + "0" * 64]}])
    head = b"GET /health HTTP/1.1\r\nhost: g\r\ncontent-length: 67108864\r\n\r\n"
    drips = [await world.client(head + b"x" * 1000) for _ in range(17)]
    for client in drips:
        assert (await client.head()).status == 413
    assert world.gate.server.bodies_bytes == 0
    unknown = await world.client(request(body=b"x")[:-1] + b"x")
    assert (await unknown.head()).status == 401
    assert (await world.ask("GET", "/health", b"{}")).status == 200


async def test_a_dripping_upload_makes_room_for_a_steady_one(world: World) -> None:
    await world.engine()
    await world.gateway(queue={"max_bytes": 100_000}, limits={"max_body": 100_000})
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 90000\r\n\r\n".encode()
    drips = [await world.client(head + b" " * 30_000) for _ in range(3)]
    server = world.gate.server
    await world.until(lambda: server.bodies_bytes == 90_000)
    dripping = {client.writer.get_extra_info("sockname")[1] for client in drips[1:]}
    for connection in server.receiving:
        if connection.peer[1] in dripping:
            connection._received_s -= 60.0  # they began a minute ago
    sender = await world.client(head + b" " * 45_000)
    await world.until(lambda: server.bodies_bytes == 75_000)
    refused = [await client.answer() for client in drips[1:]]
    assert [(answer.status, answer.error()["code"]) for answer in refused] == [(429, "overload")] * 2
    assert (await world.chat()).status == 200
    sender.hang_up()
    drips[0].hang_up()


# --- what is not HTTP -----------------------------------------------------------------------------------------------


async def test_only_http_is_spoken(world: World) -> None:
    await world.engine()
    await world.gateway()
    for line in (b"GET /health RTSP/1.0", b"POST /v1/chat/completions RTSP/1.0", b"GET /health RTSP/1.1"):
        client = await world.client(line + b"\r\nhost: g\r\n\r\n")
        assert (await client.head()).status == 400
    client = await world.client()
    for byte in b"\r\nGET /health HTTP/1.1\r\nhost: g\r\n\r\n":  # in pieces it is what it was
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.answer()).status == 200
    client.send(request("GET", "/health") * 2)
    assert [(await client.answer()).status for _ in range(2)] == [200, 200]
    client.send(b"GET /health RTSP/1.0\r\nhost: g\r\n\r\n")
    assert (await client.head()).status == 400


def test_an_endless_event_is_cut_off() -> None:
    assert cut_off(b'data: {"a": 1}\n\ndata: {"choices": [{"ind')
    assert cut_off(b"data: wor")
    for whole in (
        b"data: words\n",
        b"data: words\n\n",
        b'data: {"a": 1}',
        b"data: [DONE]",
        b"data: [DONE]\r\n\r\n",
        b": x",
    ):
        assert not cut_off(whole), whole


async def test_a_stream_that_closes_in_the_middle_of_an_event_is_broken(world: World) -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'

    async def cut(peer: Peer) -> None:
        data = await peer.request()
        if data.startswith(b"GET "):
            await peer.send(NOT_FOUND)
        else:
            await peer.send(head, event, b'data: {"choices": [{"ind')

    raw = await world.beside(RawEngine(cut))
    await world.gateway(endpoints=[{"url": raw.url, "engine": "openai", "models": ["sim"]}])
    answer = await world.ask(body=chat(stream=True))
    assert answer.status == 200
    assert b"stream_broken" in answer.body


async def closing(world: World, kind: str, *answers: tuple[bytes, ...]) -> dict[str, Any]:
    """An engine whose answers end with their connection, one after the other: its settings."""
    head = b"HTTP/1.0 200 OK\r\ncontent-type: %b\r\n\r\n" % kind.encode()
    given = iter(answers)

    async def script(peer: Peer) -> None:
        data = await peer.request()
        await peer.send(*((NOT_FOUND,) if data.startswith(b"GET ") else (head, *next(given))))

    raw = await world.beside(RawEngine(script))
    return {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4}


async def test_a_stream_that_closes_in_the_middle_of_a_long_event_is_broken(world: World) -> None:
    """Events of more than 64 KiB (sounds, pictures) pass in pieces; their rest may be of any size."""
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    sound = b'data: {"choices": [{"index": 0, "delta": {"audio": {"data": "' + b"x" * 300_000
    endpoint = await closing(
        world, "text/event-stream", (event, sound), (event, sound, b"yy"), (sound,), (event, sound, b'"}}}]}\n\n')
    )
    await world.gateway(endpoints=[endpoint])
    broken = [b"stream_broken" in (await world.ask(body=chat(stream=True))).body for _ in range(4)]
    assert broken == [True, True, True, False]


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        ("text/event-stream", b'data: {"choices": [{"ind'),
        ("text/event-stream", b'data: {"choices": [{"delta": {"audio": "' + b"x" * 100_000),
        ("application/json", b'{"choices": [{"message": {"cont'),
        ("application/json", b'{"choices": [{"message": {"content": "a"}}]'),
    ],
    ids=["first event", "long first event", "in a text", "behind a list"],
)
async def test_an_answer_that_closes_before_its_end_is_asked_for_elsewhere(world: World, kind: str, cut: bytes) -> None:
    """Without a length, only the text shows that it is not whole."""
    endpoint, good = await closing(world, kind, (cut,)), await world.engine()
    await world.gateway(endpoints=[endpoint, {"url": good.url, "slots": 1}], routing={"policy": "round_robin"})
    answer = await world.chat(stream=kind != "application/json")
    assert (answer.status, good.url.endswith(answer.header("x-penstock-endpoint") or "")) == (200, True)
    assert answer.header("x-penstock-attempts") == "2"


async def test_large_json_that_closes_before_its_end_is_not_taken_for_whole(world: World) -> None:
    text = b'{"choices": [{"message": {"content": "%b"}}]}\n' % (b"a" * 100_000)
    await world.gateway(endpoints=[await closing(world, "application/json", (text[:90_000],), (text,))])
    client = await world.client(request(path=CHAT, body=chat()))
    await client.head()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.whole()
    assert (await world.ask(body=chat())).body == text


async def test_an_answer_that_only_calls_itself_json_passes_as_it_is(world: World) -> None:
    texts = [b"pong", b"12", b'"a"', b"null", b'{"a": NaN}', b"[1]\n", b'{"a": 1}\r\n{"b": 2}']
    await world.gateway(endpoints=[await closing(world, "application/json", *[(text,) for text in texts])])
    assert [(await world.ask(body=chat())).body for _ in texts] == texts
