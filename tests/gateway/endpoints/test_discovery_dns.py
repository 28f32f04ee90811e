"""DNS and files as sources: what an answer, a failure and an edit do to the set of endpoints."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from penstock.config.sections.discovery import Dns, FileWatch
from penstock.gateway.endpoints.discovery import base
from penstock.gateway.endpoints.discovery import dns as dns_source
from penstock.gateway.endpoints.discovery import file as file_source
from penstock.gateway.endpoints.discovery.dns import DnsSource
from penstock.gateway.endpoints.discovery.file import FileSource
from tests.gateway.endpoints.following import Seen, watching


class NameServer(asyncio.DatagramProtocol):
    """Answers with what it is told, over UDP."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 60
        self.code = dns.rcode.NOERROR
        self.asked = 0
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is no subclass

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.asked += 1
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        answer.set_rcode(self.code)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        records = self.records.get((question.name.to_text(), kind))
        if records and self.code == dns.rcode.NOERROR:
            answer.answer.append(dns.rrset.from_text(question.name, self.ttl_s, "IN", kind, *records))
        assert self.transport is not None
        self.transport.sendto(answer.to_wire(), addr)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    monkeypatch.setattr(dns_source, "REFRESH_S_MIN", 0.01)
    monkeypatch.setattr(base, "PAUSE_S", 0.005)
    loop = asyncio.get_running_loop()
    transport, made = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield made
    transport.close()


def asking(server: NameServer, name: str = "vllm.svc.", **settings: Any) -> DnsSource:
    assert server.transport is not None
    port = server.transport.get_extra_info("sockname")[1]
    given = {"name": name, "port": 8000, "resolver": f"127.0.0.1:{port}", **settings}
    return DnsSource(Dns.model_validate(given))


async def test_every_address_of_a_name_is_an_endpoint(server: NameServer) -> None:
    server.ttl_s = 0
    server.records = {("vllm.svc.", "A"): ["10.0.0.2", "10.0.0.1"], ("vllm.svc.", "AAAA"): ["fd00::1"]}
    async with watching(asking(server, slots=3, labels={"zone": "a"}, kv_events="auto"), Seen()) as seen:
        await seen.until(lambda: seen.told)
        assert seen.names() == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]
        assert [(e.slots, e.labels, e.kv_events) for e in seen.endpoints] == [(3, {"zone": "a"}, "auto")] * 3
        server.records = {("vllm.svc.", "A"): ["10.0.0.2", "10.0.0.3"]}
        await seen.until(lambda: seen.names() == ["10.0.0.2:8000", "10.0.0.3:8000"])


async def test_an_address_that_one_answer_leaves_out_stays(server: NameServer) -> None:
    server.ttl_s = 0
    both, one = ["10.0.0.1", "10.0.0.2"], ["10.0.0.1"]
    server.records = {("vllm.svc.", "A"): both}
    source = asking(server)
    async with watching(source, Seen()) as seen:
        await seen.until(lambda: seen.told)
        server.records = {("vllm.svc.", "A"): one}
        told = seen.told
        await seen.until(lambda: seen.told > told)
        assert seen.names() == ["10.0.0.1:8000", "10.0.0.2:8000"]
        await seen.until(lambda: seen.names() == ["10.0.0.1:8000"])


@pytest.mark.parametrize("code", [dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN, dns.rcode.REFUSED])
async def test_a_look_up_that_fails_keeps_what_was_known(server: NameServer, code: dns.rcode.Rcode) -> None:
    server.ttl_s = 0
    server.records = {("vllm.svc.", "A"): ["10.0.0.1"]}
    async with watching(asking(server), Seen()) as seen:
        await seen.until(lambda: seen.told)
        server.code = code
        asked, told = server.asked, seen.told
        await seen.until(lambda: server.asked > asked + 6)
        assert seen.told <= told + 1  # one that was under way
        assert seen.names() == ["10.0.0.1:8000"]
        server.code = dns.rcode.NOERROR
        server.records = {("vllm.svc.", "A"): ["10.0.0.1", "10.0.0.2"]}
        await seen.until(lambda: len(seen.names()) == 2)


async def test_an_answer_is_kept_as_long_as_it_says(server: NameServer) -> None:
    server.ttl_s = 30
    server.records = {("vllm.svc.", "A"): ["10.0.0.1"]}
    async with watching(asking(server, refresh=60), Seen()) as seen:
        await seen.until(lambda: seen.told)
        assert server.asked == 2  # A and AAAA, and nothing more for now


async def test_srv_records_bring_their_own_hosts_and_ports(server: NameServer) -> None:
    server.records = {
        ("_http._tcp.vllm.svc.", "SRV"): [
            "0 5 8001 a.svc.",
            "0 5 8002 a.svc.",
            "0 1 8001 b.svc.",
            "9 1 9999 spare.svc.",
        ]
    }
    async with watching(asking(server, "_http._tcp.vllm.svc.", type="srv", port=None), Seen()) as seen:
        await seen.until(lambda: seen.told)
        assert seen.names() == ["a.svc:8001", "a.svc:8002", "b.svc:8001"]


async def test_the_systems_resolver_is_asked_where_none_is_named() -> None:
    async with watching(DnsSource(Dns(name="localhost", port=8000)), Seen()) as seen:
        await seen.until(lambda: seen.told)
        assert "127.0.0.1:8000" in seen.names()


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(base, "PAUSE_S", 0.005)
    monkeypatch.setattr(base, "PAUSE_S_MAX", 0.02)
    monkeypatch.setattr(file_source, "LOOK_S", 0.005)
    return tmp_path / "endpoints.yaml"


def of(file: Path) -> FileSource:
    return FileSource(FileWatch(path=str(file)))


async def test_a_file_may_come_late_and_change(listing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "secret")
    async with watching(of(listing), Seen()) as seen:
        listing.write_text("[http://a:1, {url: 'http://b:2', name: b, slots: 4, api_key: '${ENGINE_KEY}'}]")
        await seen.until(lambda: seen.names() == ["a:1", "b"])
        key = seen.endpoints[1].api_key
        assert key is not None
        assert (seen.endpoints[1].slots, key.get_secret_value()) == (4, "secret")
        other = listing.with_suffix(".new")
        other.write_text('{"endpoints": [{"url": "http://c:3"}]}')
        other.rename(listing)
        await seen.until(lambda: seen.names() == ["c:3"])
        listing.write_text("[http://127.0.0.1:8080]")  # the gateway's own port by default, and that of llama.cpp
        await seen.until(lambda: seen.names() == ["127.0.0.1:8080"])
        listing.write_text("[]")
        await seen.until(lambda: seen.names() == [])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected a list of endpoints (write `[]` for none)"),
        (b"- url: http://a:1\n- url: [", "is not YAML in line 2"),
        (b"- url: nonsense\n", "endpoints[0].url: `nonsense` is not a URL with a host"),
        (b"- http://a:1\n- {url: 'http://b:2', slotz: 1}\n", "endpoints[1].slotz: unknown setting"),
        (b"- http://a:1\n- http://a:1\n", "endpoints[1].url: is the same as that of endpoints[0]"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"{endpoints: 5}", "expected a list of endpoints"),
        (b"[{url: 'http://a:1', api_key: '${NOT_SET}'}]", "the environment variable NOT_SET is not set"),
        (b"[{url: 'http://a:1', api_key: '${HOME}'}]", "the environment variable HOME is not set"),
        (b"['http://a:1/${ENGINE_KEY:-x}']", "endpoints[0].url: a variable may only stand in `api_key` here"),
        (b"[{url: 'http://a:1', labels: {x: '${ENGINE_KEY:-x}'}}]", "endpoints[0].labels: a variable may only"),
    ],
)
async def test_a_bad_file_changes_nothing_and_is_logged_once(
    listing: Path, content: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    listing.write_text("[http://good:1]")
    async with watching(of(listing), Seen()) as seen:
        await seen.until(lambda: seen.names() == ["good:1"])
        listing.write_bytes(content)
        await seen.until(lambda: caplog.records)
        assert said in caplog.records[0].getMessage()
        looks = itertools.count()
        await seen.until(lambda: next(looks) > 30)
        assert (seen.told, seen.names(), len(caplog.records)) == (1, ["good:1"], 1)
        listing.write_text("[http://better:1]")
        await seen.until(lambda: seen.names() == ["better:1"])


async def test_a_file_that_is_being_written_is_not_read_half(listing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half is a valid list on its own."""
    listing.write_text("- http://a:1\n")
    sets: list[list[str]] = []
    monkeypatch.setattr(file_source, "LOOK_S", 0.05)
    source = of(listing)
    async with watching(source, Seen()) as seen:
        await seen.until(lambda: seen.told)
        with listing.open("w") as file:
            for n in range(20):
                file.write(f"- http://a:{n + 1}\n")
                file.flush()
                os.fsync(file.fileno())
                sets.append(seen.names())
                await asyncio.sleep(0.01)  # a writer slower than the reader looks
        await seen.until(lambda: len(seen.names()) == 20)
        assert {len(names) for names in sets} == {1}


async def test_a_file_that_is_gone_leaves_what_was_known(listing: Path, caplog: pytest.LogCaptureFixture) -> None:
    listing.write_text("[http://a:1]")
    async with watching(of(listing), Seen()) as seen:
        await seen.until(lambda: seen.told)
        listing.unlink()
        await seen.until(lambda: caplog.records)
        assert "no such file or directory" in caplog.records[0].getMessage()
        assert seen.names() == ["a:1"]
        listing.write_text("[http://b:1]")
        await seen.until(lambda: seen.names() == ["b:1"])
