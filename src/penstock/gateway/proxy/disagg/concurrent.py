"""A request at two engines at once: one computes its prompt, the other waits for that and answers (SGLang).

Both get the same body, with three fields that name their meeting place: the host and bootstrap port of the first, and a
room, a number unique to the request. They transfer the KV cache themselves. The first one's answer shows that the
prompt is computed and what of it was cached; the client gets it only if it is a refusal. If one fails before the first
byte, the other's work is useless and is stopped.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec

from penstock.core.values.catalogue import Failure
from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.gateway.openai.splice import set_fields
from penstock.gateway.proxy.disagg.base import Divided, Division
from penstock.gateway.proxy.relay import ERROR_BODY_BYTES_MAX
from penstock.http.client.pool import Call, Headers, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.values.actions import Dispatch
    from penstock.gateway.proxy.target import Target

SSE = b"text/event-stream"
ROOM_BITS = 63  # SGLang reads it as a signed number of 64


class Meeting(Division):
    """The two engines of one journey. It owns the first one's call and is its sink."""

    __slots__ = ("_body", "_call", "_computing", "_decode", "_head", "_heard", "_target")

    transfer = "met"

    def __init__(self, journey: Divided, dispatch: Dispatch) -> None:
        super().__init__(journey, dispatch)
        assert dispatch.decode is not None
        self._decode = dispatch.decode  # the endpoint that answers
        self._head: tuple[int, Headers] = (0, [])
        self._heard = AnswerReader(streamed=False, hides_usage=False)
        self._body = bytearray()  # of a refusal
        self._computing = True  # until the prompt is reported as computed
        self._target: Target | None = None  # the first one,
        self._call: Call | None = None  # and its call, while it is of interest

    def begin(self, targets: Mapping[str, Target]) -> None:
        journey, self._target = self._journey, targets[self.prefill]
        assert self._target.meeting_place is not None
        body = set_fields(journey.body, meeting_fields(*self._target.meeting_place))
        self._call = journey.ask(self._target, self.prefill, self.rank, body, sink=self, counts=True)
        journey.ask(targets[self._decode], self._decode, self.rank, body, counts=True)

    def has_asked(self, endpoint: str) -> bool:
        return endpoint == self._decode

    def answers(self, status: int) -> bool:
        """True if the answer may go on, even before the first engine reported the prompt. A refusal ends both."""
        if self._computing:
            self.hang_up()
            self._journey.endpoint = self._decode
            if status >= 300:
                return False
            self._journey.prefilled(None)
        return True

    def let_down(self) -> str | None:
        by = self._decode if self._computing else None
        self.hang_up()
        return by

    def hang_up(self) -> None:
        self._computing = False
        if self._call is not None:
            self._call.abort()
            self._call = None

    # --- the first one's answer -----------------------------------------------------------------------------

    def on_response(self, status: int, headers: Headers, /) -> None:
        self._head = (status, headers)
        streamed = any(name.lower() == b"content-type" and value[:17].lower() == SSE for name, value in headers)
        self._heard = AnswerReader(streamed=streamed, hides_usage=False)

    def on_data(self, data: bytes, /) -> None:
        if self._head[0] < 300:
            self._heard.take(data)
        elif len(self._body) < ERROR_BODY_BYTES_MAX:
            self._body += data[: ERROR_BODY_BYTES_MAX - len(self._body)]

    def on_end(self) -> None:
        self._call = None
        if not self._computing:
            return
        self._computing = False
        if self._head[0] >= 300:
            assert self._target is not None
            self._journey.refused_by(self._target, self._head, self._body)
        elif self._heard.tells_error():
            self._journey.hang_up()
            self._journey.failed(Failure.SERVER_ERROR, "an error in the answer to a prefill")
        else:
            self.usage = self._heard.usage()
            self._journey.prefilled(self.usage)

    def on_error(self, error: UpstreamError, /) -> None:
        self._call = None
        if self._computing:
            self._computing = False
            self._journey.hang_up()
            self._journey.on_error(error)


def meeting_fields(host: str, port: int) -> dict[str, bytes]:
    """Returns the fields that name the meeting place, as JSON. An IPv6 address is in brackets."""
    host = f"[{host}]" if ":" in host else host
    room = secrets.randbits(ROOM_BITS)
    return {
        "bootstrap_host": msgspec.json.encode(host),
        "bootstrap_port": b"%d" % port,
        "bootstrap_room": b"%d" % room,
    }
