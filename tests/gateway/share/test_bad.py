"""What can be wrong between gateways, as processes: each is told in words, and whatever can be served is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

import penstock
from penstock.cli.main import main
from penstock.gateway.cluster.greeting import EDGE, NAME
from penstock.gateway.cluster.link import Link, taken_over
from penstock.gateway.cluster.listener import Dialler, GroupListener
from penstock.share.frames import decider_reader, edge_reader
from penstock.share.messages import PROTOCOL, Down, Hello, Up, Welcome
from tests.gateway.conftest import World
from tests.gateway.elect import valkey
from tests.gateway.elect.lease_api import LeaseApi
from tests.gateway.share.group import GatewayProcess, group
from tests.gateway.share.test_strangers import section
from tests.patience import WAIT_S

pytestmark = pytest.mark.slow


def _hello(**other: Any) -> Hello:
    said = {"protocol": PROTOCOL, "version": penstock.__version__, "name": "gw9/w1", "epoch": 0, "settings": ""}
    return Hello(**{**said, **other})


async def _says(at: str, data: bytes) -> None:
    """A stranger at the port: whatever it says, it is closed."""
    reader, writer = await asyncio.open_connection(*at.rsplit(":", 1))
    writer.write(data)
    async with asyncio.timeout(WAIT_S):
        await reader.read()
    writer.close()


async def _links(at: str, *messages: Hello, then: bytes = b"") -> None:
    """One that knows the secret, says these, and then something else: it is closed."""
    over = asyncio.Event()
    link: Link[Down] = Link(edge_reader(), epoch=0, heard=lambda _: None, lost=lambda _: over.set())
    taken_over(*await Dialler(section())(at, EDGE), link)
    for message in messages:
        link.say(message)
    link.flush()
    if then:
        assert link._transport is not None
        link._transport.write(then)
    async with asyncio.timeout(WAIT_S):
        await over.wait()


async def test_bad_links_are_reported_and_lose_nothing(world: World, tmp_path: Path) -> None:
    """All at once, at the one that decides, while streams run and others wait at both gateways."""
    engine = await world.engine(step_s=0.01)
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2")
        runs = [await one.streaming(tokens=900) for one in (first, second, first, second)]
        for client in runs:
            await client.begun()
        waits = [await one.streaming(tokens=2) for one in (first, second)]
        await first.until(lambda state: state["waiting"] == 2)
        at = first.share
        await asyncio.gather(
            _says(at, b"\x16\x03\x01" + b"garbage" * 20),
            _says(at, NAME + b"e" + b"n" * 10),
            _says(at, NAME + b"e" + b"n" * 32 + b"p" * 32),
            _links(at, then=b"\xff\xff\xff\xff"),
            _links(at, then=b"\x00\x00\x00\x04junk"),
            _links(at, then=b"\x00\x00\x01\x00half"),
            _links(at, _hello(version="0.0.1")),
            _links(at, _hello(protocol=99)),
            _links(at, _hello(settings="0" * 12)),
        )
        for words in (
            "not a greeting of a gateway",
            "its greeting was not over after 5 s",
            "its share.secret differs",
            "a frame of 4294967295 bytes was announced",
            "not a message",
            "no hello within 5 s",
            "the edge is Penstock 0.0.1, the decider",
            "the other end speaks protocol 99",
            "two gateways with different settings: the edge has 000000000000, the decider",
        ):
            await first.said(words)
        state = await second.state()
        assert (state["running"], state["waiting"]) == (4, 2)
        assert {row["why"].partition(":")[0] for row in state["share"]["refused"]} >= {
            "two gateways with different settings"
        }
        for client in runs:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        for client in waits:
            assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        assert engine.log.in_engine_max == 4
        assert len(engine.log.entries) == 6


@asynccontextmanager
async def _decider(at: str, epochs: Iterator[int]) -> AsyncIterator[None]:
    """A stand-in for one that decides, and welcomes each edge in the next of these epochs."""
    links: list[Link[Up]] = []

    def came(transport: asyncio.Transport, rest: bytes) -> None:
        def heard(frame: Any) -> None:
            if isinstance(hello := frame.messages[0], Hello) and hello.name.endswith("/"):
                link.at(next(epochs))
                link.say(Welcome(penstock.__version__, hello.settings))

        link: Link[Up] = Link(decider_reader(), epoch=0, heard=heard, lost=lambda _: None)
        links.append(link)
        taken_over(transport, rest, link)

    port = GroupListener(
        section(int(at.rpartition(":")[2])), edge=came, question=lambda transport, _: transport.abort()
    )
    await port.start()
    try:
        yield
    finally:
        for link in links:
            link.close()
        await port.close()


async def test_a_decider_of_an_epoch_that_is_over_is_not_followed(world: World, tmp_path: Path) -> None:
    """As one that was cut off for long, or whose store lost what was written last."""
    await world.engine()
    async with group(world, tmp_path) as made:
        made.made("gw1")  # where the stand-in listens
        second = made.made("gw2")
        async with _decider(made.decider, iter([9, *[5] * 100])):
            await second.start()
            await second.said("leads, epoch 9")
            await second.said("its epoch is 5, and 9 was followed already")
            state = await second.until(lambda state: state["share"]["role"] == "alone")
            assert "its epoch is 5" in state["headline"]
            assert state["share"]["epoch"] > 9
            assert (await second.chat()).status == 200


@contextmanager
def _bad_stores() -> Iterator[dict[str, tuple[dict[str, Any], str]]]:
    """What `share.elect` says of stores with which no election is possible, and what is to be told of each.

    One that does not let them in, one that may only be read, one that is not there; the words for all that stores may
    be are in `elect/test_stores.py`.
    """
    with ExitStack() as stack:
        wants = stack.enter_context(valkey.server())
        wants.say("CONFIG", "SET", "requirepass", "open-sesame")
        api = LeaseApi()
        stack.callback(api.stop)
        api.verbs = {"get"}
        lease = {"server": api.url, "token_file": api.token_file, "namespace": "prod", "lease": "gate"}
        yield {
            "wrong password": (
                {"valkey": {"url": wants.url.replace("unix://", "unix://:not-this@")}},
                "it does not take this user and password",
            ),
            "no rights": ({"kubernetes": lease}, "the account needs the verbs get, create and update on leases"),
            "nobody there": ({"valkey": {"url": "valkey://127.0.0.1:1"}}, "penstock:decider in Valkey: Error"),
        }
        with redis.Redis.from_url(wants.url.replace("unix://", "unix://:open-sesame@")) as client:
            client.config_set("requirepass", "")


async def test_stores_without_a_possible_election_are_reported_and_all_is_served(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.engine()
    with _bad_stores() as stores:
        async with group(world, tmp_path) as made:
            gateways = {
                name: made.made(name.replace(" ", "-"), share={"elect": elect}) for name, (elect, _) in stores.items()
            }
            await asyncio.gather(*(one.start() for one in gateways.values()))
            for name, (_, words) in stores.items():
                await _is_told(gateways[name], words)
                await asyncio.to_thread(main, ["status", "--url", f"http://127.0.0.1:{gateways[name].port}"])
                assert words in " ".join(capsys.readouterr().out.split()), "wherever its lines end"
                assert "open-sesame" not in gateways[name].log
                assert "not-this" not in gateways[name].log


async def _is_told(one: GatewayProcess, words: str) -> None:
    """In the log, in the first sentence; and requests are served meanwhile and afterwards."""
    early = asyncio.create_task(one.chat())  # it waits until somebody decides
    await one.said(words)
    state = await one.until(lambda state: state["share"]["role"] == "alone")
    assert words in state["headline"]
    assert words in state["share"]["trouble"]
    assert (await early).status == (await one.chat()).status == 200
