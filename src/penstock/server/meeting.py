"""A request at two engines at once: one computes its prompt, the other waits for that and answers.

As SGLang has it: both are sent the same body, with three fields more that say where they meet: the host and bootstrap
port of the engine that computes the prompt, and a room, a number that no other request has. The KV goes from one to the
other without us. The answer of the first says nothing that the client should see, unless it refuses the request; it
tells that the prompt is computed, and what of it was cached. Whichever fails before the first byte, the other one's
work is worth nothing, and is stopped.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec

from penstock.core.retry import Failure
from penstock.server.answer import Answer
from penstock.server.body import set_fields
from penstock.server.relay import ERROR_BODY_BYTES_MAX
from penstock.server.upstream import Call, Headers, UpstreamError

if TYPE_CHECKING:
    from penstock.core.request import Usage
    from penstock.server.journey import QueuedJourney

SSE = b"text/event-stream"
ROOM_BITS = 63  # SGLang reads it as a signed number of 64


class Meeting:
    """One journey's engines that meet. It is the sink of the first one's call, and that call's owner."""

    __slots__ = (
        "_body", "_head", "_heard", "_journey", "call", "computing", "decode", "prefill", "rank", "room", "since_s",
        "usage",
    )  # fmt: skip

    transfer = "met"  #: how the KV comes to who answers

    def __init__(self, journey: QueuedJourney, prefill: str, decode: str, rank: int | None) -> None:
        self._journey = journey
        self._head: tuple[int, Headers] = (0, [])
        self._heard = Answer(streamed=False, hides_usage=False)
        self._body = bytearray()  # of a refusal
        self.prefill = prefill  #: the endpoint that computes the prompt
        self.decode = decode  #: the one that answers
        self.rank = rank  #: among those that wait at the engines
        self.room = secrets.randbits(ROOM_BITS)
        self.since_s = journey.elapsed_s()
        self.computing = True  #: nobody told yet that the prompt is computed
        self.call: Call | None = None  #: the first one's, while it is of interest
        self.usage: Usage | None = None

    def body(self, body: bytes, host: str, port: int) -> bytes:
        """For both. An IPv6 address stands in brackets."""
        host = f"[{host}]" if ":" in host else host
        values = {"bootstrap_host": msgspec.json.encode(host), "bootstrap_port": b"%d" % port}
        return set_fields(body, values | {"bootstrap_room": b"%d" % self.room})

    def let_down(self) -> bool:
        """Who answers failed. Whether that was while the prompt was being computed, which is of no use then."""
        computing = self.computing
        self.hang_up()
        return computing

    def hang_up(self) -> None:
        """What the first one does is of no use any more, or is done."""
        self.computing = False
        if self.call is not None:
            self.call.abort()
            self.call = None

    # --- the first one's answer -----------------------------------------------------------------------------

    def on_response(self, status: int, headers: Headers, /) -> None:
        self._head = (status, headers)
        streamed = any(name.lower() == b"content-type" and value[:17].lower() == SSE for name, value in headers)
        self._heard = Answer(streamed=streamed, hides_usage=False)

    def on_data(self, data: bytes, /) -> None:
        if self._head[0] < 300:
            self._heard.take(data)
        elif len(self._body) < ERROR_BODY_BYTES_MAX:
            self._body += data[: ERROR_BODY_BYTES_MAX - len(self._body)]

    def on_end(self) -> None:
        self.call = None
        if not self.computing:
            return
        self.computing = False
        if self._head[0] >= 300:
            self._journey.refused_in_prefill(self._head[0], self._body, self._head[1])
        elif self._heard.tells_error():
            self._journey.hang_up()
            self._journey.failed(Failure.SERVER_ERROR, "an error in the answer to a prefill")
        else:
            self.usage = self._heard.usage()
            self._journey.computed(self.usage)

    def on_error(self, error: UpstreamError, /) -> None:
        self.call = None
        if self.computing:
            self.computing = False
            self._journey.hang_up()
            self._journey.on_error(error)
