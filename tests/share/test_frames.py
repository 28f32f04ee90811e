"""What comes on a link is read strictly: nothing that is no message of ours goes on, and the word says what came."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

import penstock
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.request import Contents, Request, Turn, Usage
from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import Prices
from penstock.share.frames import LinkError, decider_reader, edge_reader, why_not, written
from penstock.share.messages import PROTOCOL, Arrived, Failed, Finished, Hello, Stop, Told, WireRequest

FRAME_BYTES_MAX = 32 * 1024 * 1024

REQUEST = WireRequest.of(
    Request(
        "r-1",
        "m",
        1,
        tenant="a",
        flow=("a", "user"),
        weights=(2.0, 1.0),
        contents=Contents(5, pictures=1),
        deadline_s=3.5,
        prefix=(2**64 - 1, 0, -(2**63)),
        prices=Prices(prompt=2.0),
    )
)
ACTIONS: list[Action] = [
    Dispatch("r-1", "e", 7, 0.25, 3, "d"),
    Decode("r-1", "d", 8),
    Requeue("r-1", "busy"),
    Reject("r-1", Reason.QUEUE_FULL, 2.0),
    Reject("r-2", Reason.TENANT_LIMIT, 2.0, limit=LimitReached("queued", 4)),
    Evict("r-1", Reason.DISPLACED),
    Fail("r-1", Reason.UPSTREAM_ERROR),
    Abort("r-1", Reason.OPERATOR),
]


def test_what_is_written_is_read_however_it_is_cut() -> None:
    up = [Arrived(1, REQUEST), Finished(1, 7, Usage(3, 4, 1, cached_told=True).row()), Failed(2, 8, Failure.BUSY)]
    down = [Told(1, action) for action in ACTIONS]
    for size in (1, 3, 10, 10_000):
        read_up, read_down = decider_reader(), edge_reader()
        for messages, reader in ((up, read_up), (down, read_down)):
            data = written(3, messages) + written(4, messages)
            frames = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
            assert [frame.epoch for frame in frames] == [3, 4]
            assert [frame.messages for frame in frames] == [messages, messages]
            assert not reader.inside


def test_every_field_of_a_request_arrives_in_another_process() -> None:
    fields = {
        **{name: name for name in ("id", "model", "tenant", "account", "pinned", "session", "home", "instead_of")},
        **{name: (name, "x") for name in ("flow", "also", "only", "needs", "others")},
        **{name: len(name) for name in ("band", "body_bytes", "output_tokens_max", "priority", "prefix_chunk_bytes")},
        **{name: len(name) / 4 for name in ("deadline_s", "locate_s", "time_per_output_token_s_max")},
        **dict.fromkeys(("streamed", "falls_back", "prefix_grows", "carried"), True),
        "divisible": False,
        "weights": (2.0, 0.5),
        "prefix": (1, 2),
        "prompt_tokens_max": 7,
        "prices": Prices(prompt=3.0),
        "contents": Contents(1, 2, 3, 4, 5, 6, 7, 8),
        "turn": Turn("s", "p", (1, 2**64 - 1), last=True),
    }
    sent = Request(**fields)  # type: ignore[arg-type]
    assert set(WireRequest.__struct_fields__) == set(fields)
    (frame,) = decider_reader().feed(written(1, [Arrived(1, WireRequest.of(sent))]))
    (arrived,) = frame.messages
    assert isinstance(arrived, Arrived)
    came = arrived.request.request()
    assert came == sent
    assert {name: getattr(came, name) for name in fields} == fields


def test_many_messages_go_in_several_frames() -> None:
    frames = decider_reader().feed(written(1, [Arrived(n, REQUEST) for n in range(1, 2001)]))
    assert len(frames) > 2
    assert [message.number for frame in frames for message in frame.messages] == list(range(1, 2001))  # type: ignore[union-attr]


UNWRITABLE = [  # a lone surrogate, a number of more than 64 bits, a value of no message
    Arrived(2, msgspec.structs.replace(REQUEST, session="\ud800")),
    Finished(2, 7, (2**70, 1, 0, False, 0)),
    object(),
]


@pytest.mark.parametrize("bad", UNWRITABLE, ids=["surrogate", "number", "value"])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_message_that_cannot_be_written_takes_no_other_with_it(bad: object, at: int) -> None:
    messages: list[object] = [Arrived(number, REQUEST) for number in range(10, 17)]
    messages.insert(at, bad)
    left_out: list[object] = []
    data = written(1, messages, lambda message, _error: left_out.append(message))
    came = [message for frame in decider_reader().feed(data) for message in frame.messages]
    assert [message.number for message in came] == list(range(10, 17))  # type: ignore[union-attr]
    assert left_out == [bad]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        written(1, messages)


def test_long_messages_of_one_turn_go_in_several_frames() -> None:
    long = msgspec.structs.replace(REQUEST, session="x" * (FRAME_BYTES_MAX // 3))
    frames = decider_reader().feed(written(1, [Arrived(number, long) for number in range(1, 6)]))
    assert [message.number for frame in frames for message in frame.messages] == [1, 2, 3, 4, 5]  # type: ignore[union-attr]


def test_a_length_of_four_gigabytes_ends_the_link_before_anything_is_kept() -> None:
    reader = decider_reader()
    with pytest.raises(LinkError, match=f"a frame of 4294967295 bytes was announced; at most {FRAME_BYTES_MAX}"):
        reader.feed(b"\xff\xff\xff\xff")


def test_half_a_frame_waits_and_is_known_to_be_half() -> None:
    reader = decider_reader()
    data = written(1, [Arrived(1, REQUEST)])
    assert reader.feed(data[:-1]) == []
    assert reader.inside


@pytest.mark.parametrize(
    "payload",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
        msgspec.msgpack.encode({"epoch": 1}),
        msgspec.msgpack.encode([1, [["arrived", "one", []]]]),
        msgspec.msgpack.encode([1, [["no_such_thing", 1]]]),
        msgspec.msgpack.encode([1, [["stop"]]]),  # a decider's word is none of an edge's
        msgspec.msgpack.encode(["1", []]),
        b"\x91" * 100_000,
    ],
    ids=["http", "empty", "object", "wrong kind", "unknown", "wrong way", "epoch", "deep"],
)
def test_garbage_ends_the_link_with_a_word(payload: bytes) -> None:
    with pytest.raises(LinkError, match="not a message"):
        decider_reader().feed(len(payload).to_bytes(4, "big") + payload)


def test_random_bytes_never_do_anything_but_end_the_link() -> None:
    random = Random(7)
    good = written(1, [Arrived(1, REQUEST), Finished(1, 7, Usage(3, 4).row())])
    ended = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(random.randrange(1, 6)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            decider_reader().feed(bytes(data))
        except LinkError:
            ended += 1
    assert ended > 500


def test_another_protocol_or_version_is_reported_with_both_names() -> None:
    hello = Hello(PROTOCOL, penstock.__version__, "w", 0, "")
    assert why_not(hello, version=penstock.__version__) is None
    other = msgspec.structs.replace(hello, version="0.0.1")
    assert why_not(other, version="9.9") == "the edge is Penstock 0.0.1, the decider 9.9: run one version"
    newer = msgspec.msgpack.encode([1, [["hello", PROTOCOL + 1, "8.8", {"of": "another shape"}]]])
    with pytest.raises(LinkError, match=rf"the other end speaks protocol {PROTOCOL + 1} \(Penstock '8.8'\), this one"):
        decider_reader().feed(len(newer).to_bytes(4, "big") + newer)


def test_a_frame_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(LinkError, match="too long to send"):
        written(1, [Arrived(1, msgspec.structs.replace(REQUEST, session="x" * (FRAME_BYTES_MAX + 1)))])
    assert edge_reader().feed(written(1, [Stop()]))[0].messages == [Stop()]
