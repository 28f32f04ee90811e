"""A connection that brings the same head again: nothing of one request may be taken for another one's."""

from __future__ import annotations

from penstock.http.server.server import Refusal, SocketExchange
from tests.http.http1_world import World, chunked, on_both_loops, request

KEY = b"authorization: Bearer one\r\n"


def noted(world: World) -> list[object]:
    """Has each request note its number in its head. Returns the notes that were there already, as they come.

    The first request of a connection has no head that is kept.
    """
    found: list[object] = []

    def begin(exchange: SocketExchange) -> None:
        found.append(None if exchange.head is None else exchange.head.note)
        if exchange.head is not None and exchange.head.note is None:
            exchange.head.note = len(found)

    world.handler.on_begin = begin
    return found


@on_both_loops
async def test_a_head_that_differs_in_its_length_only_keeps_its_note(world: World) -> None:
    await world.serve()
    notes = noted(world)
    bodies = [b"first", b"hello", b"", b"x" * 1000, b"hello"]
    client = await world.client(b"".join([request(body=body, extra=KEY) for body in bodies]))
    for body in bodies:
        assert (await client.response())[2] == b"POST /v1/x  " + body
    assert notes == [None, None, 2, 2, 2]
    for exchange, body in zip(world.handler.completed, bodies, strict=True):
        length = b"%d" % len(body)
        assert exchange.headers == [
            (b"Host", b"penstock"),
            (b"Content-Length", length),
            (b"authorization", b"Bearer one"),
        ]
        assert exchange.lookup == {b"host": b"penstock", b"content-length": length, b"authorization": b"Bearer one"}


OTHERS = [
    request(body=b"hello", extra=b"authorization: Bearer two\r\n"),
    request(body=b"hello", extra=b"Authorization: Bearer one\r\n"),
    request(body=b"hello", extra=b"authorization: Bearer one \r\n"),
    request(body=b"hello", extra=KEY + b"x-user-id: ann\r\n"),
    request(body=b"hello"),
    request("/v1/y", b"hello", extra=KEY),
    request("/v1/x?id=a", b"hello", extra=KEY),
    request(body=b"hello", extra=KEY, version="1.0"),
    request(body=b"hello", extra=KEY).replace(b"POST", b"PUT", 1),
    request(body=b"hello", extra=KEY).replace(b": 5\r\n", b": 5\r\nx-more: 5\r\n", 1),
    b"\r\n" + request(body=b"hello", extra=KEY),
    chunked(b"hello"),
]


@on_both_loops
async def test_a_head_with_any_other_difference_is_another_one(world: World) -> None:
    await world.serve()
    notes = noted(world)
    for other in OTHERS:
        notes.clear()
        client = await world.client(2 * request(body=b"hello", extra=KEY) + other)
        assert [(await client.response())[0] for _ in range(3)] == [200] * 3
        assert notes == [None] * 3, other
        seen = world.handler.completed[-1]
        assert seen.body == b"hello"
        assert seen.lookup == {name.lower(): value for name, value in seen.headers}


@on_both_loops
async def test_another_connection_knows_nothing(world: World) -> None:
    await world.serve()
    notes = noted(world)
    for _ in range(2):
        client = await world.client(3 * request(extra=KEY))
        assert [(await client.response())[0] for _ in range(3)] == [200] * 3
    assert notes == [None, None, 2, None, None, 5]


@on_both_loops
async def test_a_known_head_is_judged_again(world: World) -> None:
    await world.serve()
    client = await world.client(2 * request(body=b"hello", extra=KEY))
    assert [(await client.response())[0] for _ in range(2)] == [200, 200]
    client.send(request(extra=KEY).replace(b"Length: 0", b"Length: 99999999999999999999999"))
    assert (await client.response())[0] == 400
    assert [refusal for refusal, _ in world.handler.refusals] == [Refusal.BAD_REQUEST]


@on_both_loops
async def test_a_head_in_pieces_or_a_long_one_is_read_as_before(world: World) -> None:
    await world.serve()
    notes: list[object] = []

    def begin(exchange: SocketExchange) -> None:
        notes.append(exchange.head)

    world.handler.on_begin = begin
    long = request(body=b"x", extra=b"x-long: %b\r\n" % (b"y" * 5000))
    client = await world.client(long + long)
    assert [(await client.response())[0] for _ in range(2)] == [200, 200]
    whole = request(body=b"hello", extra=KEY)
    for cut in (1, 20, len(whole) - 7):
        client.send(whole[:cut])
        await client.writer.drain()
        await world.until(lambda: world.server.idle == {})
        client.send(whole[cut:])
        assert (await client.response())[2] == b"POST /v1/x  hello"
    assert notes == [None] * 5


@on_both_loops
async def test_connections_share_the_names_of_headers_and_no_values(world: World) -> None:
    await world.serve()
    long = b"x-" + b"y" * 200
    for value in (b"one", b"two"):
        client = await world.client(request(extra=b"Authorization: %b\r\n%b: %b\r\n" % (value, long, value)))
        assert (await client.response())[0] == 200
    one, two = world.handler.completed
    for name in (b"Host", b"Content-Length", b"Authorization"):
        assert next(given for given, _ in one.headers if given == name) is next(
            given for given, _ in two.headers if given == name
        )
    assert [seen.lookup[b"authorization"] for seen in (one, two)] == [b"one", b"two"]
    assert [seen.lookup[long] for seen in (one, two)] == [b"one", b"two"]
