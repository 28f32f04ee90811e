"""Who comes to the port that gateways have for each other, and is none of the group: each is told off in one line."""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.config.load import shared_hash
from penstock.config.sections.share import ShareSection
from penstock.gateway.cluster import edge_table, listener, supervisor, worker
from penstock.gateway.cluster.greeting import EDGE, NAME, GreetingError, dialing, listening
from penstock.gateway.cluster.link import Link, taken_over
from penstock.gateway.cluster.listener import Dialler, GroupListener
from penstock.share.frames import edge_reader, written
from penstock.share.messages import PROTOCOL, Down, Frame, Hello, NotTaken, Welcome
from tests.gateway.conftest import World
from tests.gateway.share.group import SECRET
from tests.gateway.workers.beside import WorkerBeside
from tests.patience import WAIT_S
from tests.ports import free_port

NONCE_BYTES = 32


def section(port: int = 0, secret: str = SECRET) -> ShareSection:
    place = f"127.0.0.1:{port}"
    return ShareSection.model_validate(
        {"listen": place, "advertise": f"127.0.0.1:{port or 1}", "secret": secret, "elect": {"static": "127.0.0.1:1"}}
    )


# --- the greeting -----------------------------------------------------------------------------------------------------


def talk(dialled: bytes, listens: bytes) -> tuple[str, str]:
    """What both sides come to, whose secrets are these."""
    ends = dialing(dialled, EDGE, b"d" * NONCE_BYTES), listening(listens, b"l" * NONCE_BYTES)
    came = [bytearray(), bytearray()]
    wanted = [0, 0]
    results = ["", ""]
    for at, end in enumerate(ends):
        out, wanted[at] = next(end)
        came[1 - at] += out
    for _ in range(10):
        for at, end in enumerate(ends):
            while not results[at] and len(came[at]) >= wanted[at]:
                piece = bytes(came[at][: wanted[at]])
                del came[at][: wanted[at]]
                try:
                    out, wanted[at] = end.send(piece)
                except StopIteration as done:
                    results[at] = done.value.decode()
                except GreetingError as error:
                    results[at] = str(error)
                else:
                    came[1 - at] += out
    return results[0], results[1]


def test_two_that_know_the_secret_greet_each_other() -> None:
    assert talk(b"secret", b"secret") == ("e", "e")


def test_another_secret_is_reported_to_both() -> None:
    assert talk(b"secret", b"other") == ("its share.secret differs",) * 2


def test_what_was_heard_once_opens_nothing() -> None:
    """A proof is of both numbers: it does not fit another one."""
    end = dialing(b"secret", EDGE, b"d" * NONCE_BYTES)
    next(end)
    proof, _ = end.send(NAME + b"l" * NONCE_BYTES)
    again = listening(b"secret", b"m" * NONCE_BYTES)
    next(again)
    again.send(NAME + EDGE + b"d" * NONCE_BYTES)
    assert again.send(proof)[0] == b"n"


def test_who_listens_and_does_not_know_the_secret_is_found_out() -> None:
    end = dialing(b"secret", EDGE, b"d" * NONCE_BYTES)
    next(end)
    end.send(NAME + b"l" * NONCE_BYTES)
    end.send(b"y")
    with pytest.raises(GreetingError, match=r"does not know share\.secret"):
        end.send(secrets.token_bytes(32))


# --- the port ---------------------------------------------------------------------------------------------------------


def _aborted(transport: asyncio.Transport, _: bytes) -> None:
    transport.abort()


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GroupListener]:
    monkeypatch.setattr(listener, "GREETING_S", 0.3)
    made = GroupListener(section(), edge=lambda transport, _: transport.close(), question=_aborted)
    await made.start()
    yield made
    await made.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + b"x" * 64, "not a greeting of a gateway"),
        (NAME + b"e" + b"n" * 10, "its greeting was not over after 0.3 s"),
        (b"", "its greeting was not over after 0.3 s"),
        (NAME + b"e" + b"n" * NONCE_BYTES + b"p" * 32, "its share.secret differs"),
        (NAME + b"z" + b"n" * NONCE_BYTES, "not a greeting of a gateway"),
    ],
    ids=["HTTP", "half a greeting", "nothing", "wrong proof", "no such kind"],
)
async def test_a_stranger_is_closed_with_a_line(
    port: GroupListener, caplog: pytest.LogCaptureFixture, sent: bytes, words: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(sent)
    await closed(reader)
    assert [words in record.message for record in caplog.records] == [True]
    writer.close()


async def test_a_crowd_of_strangers_fills_no_log(port: GroupListener, log: io.StringIO) -> None:
    """They wrote 5 GB a day."""
    for at in range(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write((b"GET / HTTP/1.1\r\nhost: %d\r\n\r\n" % at).ljust(128, b"x"))
        await closed(reader)
        writer.close()
    assert log.getvalue().count("was closed: ") <= 30


async def test_a_crowd_of_strangers_keeps_no_gateway_out(port: GroupListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GREETINGS_MAX", 5)
    monkeypatch.setattr(listener, "GREETING_S", 20.0)
    crowd = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(20)]
    transport, _ = await Dialler(section())(f"127.0.0.1:{port.port}", EDGE)
    transport.close()
    assert len(port._greeters) <= 5
    for _, writer in crowd:
        writer.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 64, "the peer is not a gateway of this version"),
        (b"", "no answer within 0.3 s"),
        (None, "it hung up inside the greeting"),
    ],
    ids=["HTTP", "nothing", "hangs up"],
)
async def test_what_is_no_gateway_is_found_out_by_who_dials(
    answer: bytes | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GREETING_S", 0.3)

    left = asyncio.Event()

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            writer.write(answer)
            await reader.read()  # until whoever dialled has hung up
        writer.close()
        left.set()

    server = await asyncio.start_server(stranger, "127.0.0.1", 0)
    async with server:
        at = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=words):
            await Dialler(section())(f"127.0.0.1:{at}", EDGE)
        async with asyncio.timeout(WAIT_S):
            await left.wait()


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "WorkerProcess", WorkerBeside)
    monkeypatch.setattr(worker, "TICKS_PER_STANDING", 1)
    monkeypatch.setattr(worker, "TICK_S", 0.02)
    monkeypatch.setattr(edge_table, "HELLO_S", 0.3)
    monkeypatch.setattr(edge_table, "SILENT_S", 0.5)


async def decider(world: World) -> str:
    """A gateway that decides: its address."""
    at = f"127.0.0.1:{free_port()}"
    await world.engine(step_s=0.01)
    await world.gateway(slots=2, share={"listen": at, "secret": SECRET, "elect": {"static": at}, "name": "gw1"})
    return at


class Other:
    """What an edge of another gateway would be."""

    def __init__(self) -> None:
        self.frames: list[Frame[Down]] = []
        self.why = ""
        self.link: Link[Down] = Link(edge_reader(), epoch=0, heard=self.frames.append, lost=self._lost)

    def _lost(self, why: str) -> None:
        self.why = why

    async def dial(self, at: str, *says: object) -> None:
        taken_over(*await Dialler(section())(at, EDGE), self.link)
        for message in says:
            self.link.say(message)

    @property
    def heard(self) -> list[Down]:
        return [message for frame in self.frames for message in frame.messages]

    def told(self, kind: type) -> object | None:
        return next((message for message in self.heard if isinstance(message, kind)), None)


def hello(world: World, **other: object) -> Hello:
    said: dict[str, object] = {
        "protocol": PROTOCOL,
        "version": penstock.__version__,
        "name": "gw2/w1",
        "epoch": 0,
        "settings": shared_hash(world.settings()),
        **other,
    }
    return Hello(**said)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"settings": "0" * 12}, "two gateways with different settings: the edge has 000000000000, the decider"),
        ({"version": "0.0.0"}, "the edge is Penstock 0.0.0, the decider"),
        ({"protocol": 99}, "the other end speaks protocol 99"),
        ({"name": "gw1/w1"}, "another edge is called gw1/w1: give each gateway a `share.name` of its own"),
        ({"name": ""}, "an edge needs a name"),
    ],
    ids=["settings", "version", "protocol", "name", "no name"],
)
async def test_an_edge_that_does_not_fit_gets_the_reason(
    world: World, caplog: pytest.LogCaptureFixture, other: dict[str, object], words: str
) -> None:
    at = await decider(world)
    edge = Other()
    await edge.dial(at, hello(world, **other))
    await world.until(lambda: edge.why)
    refused = edge.told(NotTaken)
    assert isinstance(refused, NotTaken)
    assert refused.why.startswith(words)
    assert sum(words in record.message for record in caplog.records) == 1
    share = (await world.ask("GET", "/admin/state")).json()["share"]
    assert words in share["refused"][-1]["why"]
    assert (await world.chat()).status == 200


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes was announced"),
        (b"\x00\x00\x00\x04junk", "not a message"),
        (b"\x00\x00\x01\x00half", "it has said nothing for 0.5 s"),
        (written(0, [Hello(PROTOCOL, penstock.__version__, "gw2/w1", 0, "")]), "a link begins with a hello, once"),
    ],
    ids=["4 GB", "garbage", "half a frame", "hello twice"],
)
@pytest.mark.parametrize("greeted", [False, True], ids=["at first", "later"])
async def test_a_link_with_invalid_messages_is_closed_with_a_log_line(
    world: World, caplog: pytest.LogCaptureFixture, data: bytes, words: str, *, greeted: bool
) -> None:
    at = await decider(world)
    edge = Other()
    await edge.dial(at, *([hello(world)] if greeted else []))
    if greeted:
        await world.until(lambda: edge.told(Welcome))
    else:
        words = {"it has said nothing for 0.5 s": "no hello within 0.3 s"}.get(words, words)
        words = words.replace("a link begins with a hello, once", "two gateways with different settings")
    caplog.clear()
    assert edge.link._transport is not None
    edge.link._transport.write(data)
    await world.until(lambda: edge.why)
    assert sum(words in record.message for record in caplog.records) == 1
    assert (await world.chat()).status == 200


@pytest.mark.usefixtures("_beside")
async def test_an_edge_that_has_followed_a_higher_epoch_makes_the_decider_take_one_above(world: World) -> None:
    at = await decider(world)
    assert world.gate.cluster is not None
    epoch = world.gate.cluster.table.decider.epoch
    edge, again = Other(), Other()
    await edge.dial(at, hello(world, epoch=epoch + 7, follows="elsewhere:1"))
    await world.until(lambda: edge.told(NotTaken))
    await world.until(lambda: world.gate.cluster.table.decider.epoch == epoch + 8)  # type: ignore[union-attr]
    await again.dial(at, hello(world, epoch=epoch + 7, follows="elsewhere:1"))
    await world.until(lambda: again.told(Welcome))
    assert again.frames[0].epoch == epoch + 8
    assert (await world.chat()).status == 200
    again.link.close()
