"""The PROXY protocol at the door: who is named, what is refused, and that nothing else of a connection changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http.server import listener
from penstock.http.server.limits import ServerLimits
from penstock.http.server.proxy_header import SIGNATURE, ProxyHeaderError, missing, read
from tests.fuzz.targets import TARGETS
from tests.http.http1_world import World, on_both_loops, request

LINE_BYTES_MAX = 107

CLIENT = ("203.0.113.7", 56324)
V1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n"
V1_SIX = b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n"
UNKNOWN = b"PROXY UNKNOWN\r\n"


def block(rest: bytes, *, command: int = 1, family: int = 1, transport: int = 1, version: int = 2) -> bytes:
    return SIGNATURE + bytes([version << 4 | command, family << 4 | transport]) + struct.pack("!H", len(rest)) + rest


def four(more: bytes = b"") -> bytes:
    return socket.inet_aton("203.0.113.7") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 56324, 443) + more


def six(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, address) + bytes(16) + struct.pack("!HH", 56324, 443)


V2 = block(four())
TLV = b"\x03\x00\x04\x00\x00\x00\x00"  # a checksum, which a reader may leave alone

NAMES = {
    "a line": (V1, CLIENT),
    "a line of version six": (V1_SIX, ("2001:db8::7", 56324)),
    "a line of an address in another's form": (
        b"PROXY TCP6 ::ffff:203.0.113.7 ::1 56324 443\r\n",
        CLIENT,
    ),
    "the longest line": (
        b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535".ljust(LINE_BYTES_MAX - 2, b".") + b"\r\n",
        None,
    ),
    "a line that does not know": (UNKNOWN, None),
    "a block": (V2, CLIENT),
    "a block with more behind its addresses": (block(four(TLV * 40)), CLIENT),
    "a block of version six": (block(six("2001:db8::7"), family=2), ("2001:db8::7", 56324)),
    "a block of an address in another's form": (block(six("::ffff:203.0.113.7"), family=2), CLIENT),
    "a block of the balancer itself": (block(b"", command=0, family=0, transport=0), None),
    "a block of the balancer itself, with addresses": (block(four(), command=0), None),
    "a block that does not know": (block(TLV, family=0, transport=0), None),
    "a block of a unix socket": (block(bytes(216), family=3), None),
}

BAD = {
    "a request": request(),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "zeros": bytes(300),
    "a line of lower case": V1.replace(b"PROXY", b"proxy"),
    "a line without words": b"PROXY \r\n" + request(),
    "a line of another protocol": b"PROXY UDP4 203.0.113.7 192.0.2.1 1 2\r\n",
    "a line with too few words": b"PROXY TCP4 203.0.113.7 192.0.2.1 56324\r\n",
    "a line with too many words": b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 443 5\r\n",
    "a line with two spaces": b"PROXY TCP4  203.0.113.7 192.0.2.1 56324 443\r\n",
    "a line with a tab": b"PROXY TCP4\t203.0.113.7 192.0.2.1 56324 443\r\n",
    "a line with a name": b"PROXY TCP4 localhost 192.0.2.1 56324 443\r\n",
    "a line with an octal number": b"PROXY TCP4 203.0.113.007 192.0.2.1 56324 443\r\n",
    "a line of mixed kinds": b"PROXY TCP4 2001:db8::7 192.0.2.1 56324 443\r\n",
    "a line with a scope": b"PROXY TCP6 fe80::1%eth0 fe80::2 56324 443\r\n",
    "a line with a large port": b"PROXY TCP4 203.0.113.7 192.0.2.1 65536 443\r\n",
    "a line with a long port": b"PROXY TCP4 203.0.113.7 192.0.2.1 056324 443\r\n",
    "a line with a negative port": b"PROXY TCP4 203.0.113.7 192.0.2.1 -1 443\r\n",
    "a line with another's digits": "PROXY TCP4 203.0.113.7 192.0.2.1 ٣ 443\r\n".encode(),
    "a line with a bare LF": V1.replace(b"\r\n", b"\n") + request(),
    "a line with a NUL": b"PROXY TCP4 203.0.113.7\x00 192.0.2.1 56324 443\r\n",
    "a line too long": b"PROXY UNKNOWN ".ljust(LINE_BYTES_MAX, b".") + b"\r\n",
    "a line without an end": b"PROXY TCP4 " + b"1" * 1000,
    "a block of version one": block(four(), version=1),
    "a block of version three": block(four(), version=3),
    "a block of another command": block(four(), command=2),
    "a block of another family": block(four(), family=4),
    "a block of another transport": block(four(), transport=3),
    "a block too short": block(four()[:-1]),
    "a block of version six too short": block(four(), family=2),
    "a block too long": block(four(bytes(3000))),
    "a signature with a fault": SIGNATURE[:-1] + b"X" + V2[12:],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_header_names_the_client(name: str) -> None:
    data, client = NAMES[name]
    assert missing(data) == 0
    assert read(data) == client


@pytest.mark.parametrize("name", NAMES)
def test_no_byte_behind_the_header_is_ever_asked_for(name: str) -> None:
    data, _ = NAMES[name]
    for size in range(len(data)):
        assert 0 < missing(data[:size]) <= len(data) - size


@given(st.binary(max_size=300) | st.builds(bytes.__add__, st.sampled_from([V1, V2, V1[:20]]), st.binary(max_size=99)))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    TARGETS["proxy_header"](b"\x07" + data)


@on_both_loops
async def test_the_header_names_the_client_for_the_whole_connection(world: World) -> None:
    server = await world.serve()
    server.brings = lambda address: address == "127.0.0.1"
    for data, told in NAMES.values():
        client = await world.client(data + request(body=b"one"))  # in one piece: nothing of the request is lost
        assert (await client.response())[2] == b"POST /v1/x  one"
        client.send(request(body=b"two"))
        assert (await client.response())[2] == b"POST /v1/x  two"
        first, second = world.handler.begun[-2:]
        assert first.peer == second.peer == (told or client.writer.get_extra_info("sockname"))
        assert first.brought
        assert second.brought
        client.close()


@on_both_loops
async def test_a_header_may_come_byte_by_byte(world: World) -> None:
    server = await world.serve()
    server.brings = lambda address: True
    for data in (V1, V2):
        client = await world.client()
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            client.send(data[at : at + 1])
            await client.writer.drain()
            await asyncio.sleep(0)
        client.send(request(body=b"hello"))
        assert (await client.response())[0] == 200
        assert world.handler.begun[-1].peer == CLIENT
        client.close()


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """What the listener says in the log, which nobody else hears."""
    said: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return False

    listener.logger.addFilter(note)
    try:
        yield said
    finally:
        listener.logger.removeFilter(note)


@on_both_loops
async def test_other_bytes_close_the_connection_and_are_logged(world: World) -> None:
    server = await world.serve()
    server.brings = lambda address: True
    with told() as said:
        for name, data in BAD.items():
            assert await world.ask(data, eof=True) == b"", name
    assert world.handler.begun == []
    assert len(said) == len(BAD)
    for line in said:
        assert line.startswith("closed a connection from 127.0.0.1, a peer listed in `client_address.proxy_protocol`: ")


@on_both_loops
async def test_a_header_that_does_not_come_in_time_ends_the_connection(world: World) -> None:
    server = await world.serve()
    server.limits = ServerLimits(header_timeout_s=0.05)  # as a reload does
    server.brings = lambda address: True
    for data in (b"", V1[:20], V2[:20], SIGNATURE):
        assert await world.ask(data) == b""
    assert world.handler.begun == []


@on_both_loops
async def test_only_balancers_can_name_a_client(world: World) -> None:
    """Neither a peer that brings nobody's connections, nor a client behind one that does."""
    server = await world.serve()
    for brings, data in ((False, V1), (False, V2), (True, V2 + V1), (True, V1 + V2), (True, UNKNOWN + V1)):
        server.brings = lambda address, brings=brings: brings
        answered = await world.ask(data + request())
        assert answered.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert answered.count(b"HTTP/1.1") == 1
    assert world.handler.begun == []


@on_both_loops
async def test_connections_are_counted_by_the_reported_address(world: World) -> None:
    server = await world.serve(connections_per_address_max=1)
    server.brings = lambda address: True
    first = await world.client(V1 + request())
    assert (await first.response())[0] == 200
    first.send(request()[:1])
    await world.until(lambda: not server.idle)
    assert (await (await world.client(V1 + request())).response())[0] == 503
    assert (await (await world.client(V1_SIX + request())).response())[0] == 200
    first.close()
    await world.until(lambda: server.connections == 1)
    assert (await (await world.client(V1 + request())).response())[0] == 200


@on_both_loops
async def test_a_proxy_of_many_clients_is_not_held_to_one_clients_connections(world: World) -> None:
    server = await world.serve(connections_per_address_max=1)
    server.carries_many = lambda address: address == "127.0.0.1"
    for _ in range(3):
        assert (await (await world.client(request())).response())[0] == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificate is made by openssl")
def test_tls_begins_behind_the_header(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"

    async def main(world: World) -> None:
        made = await asyncio.create_subprocess_exec(
            *command.split(),
            *("-keyout", str(key), "-out", str(cert), "-addext", "subjectAltName=DNS:localhost"),
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await made.wait() == 0
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(cert, key)
        server = await world.serve(ssl=serving)
        server.brings = lambda address: True
        for data in (V1, V2):
            client = await world.client(data)
            await client.writer.drain()
            await client.writer.start_tls(ssl.create_default_context(cafile=str(cert)), server_hostname="localhost")
            client.send(request(body=b"hello"))
            assert (await client.response())[2] == b"POST /v1/x  hello"
            assert world.handler.begun[-1].peer == CLIENT
            client.close()

    async def run() -> None:
        world = World()
        try:
            await main(world)
        finally:
            await world.leave()

    asyncio.run(run())


def test_refusals_come_as_early_as_possible() -> None:
    for data in BAD.values():
        with pytest.raises(ProxyHeaderError):
            read_all(data)


def read_all(data: bytes) -> None:
    at = 0
    while size := missing(data[:at]):
        if at == len(data):
            raise ProxyHeaderError("it ended")
        at = min(at + size, len(data))
    read(data[:at])
