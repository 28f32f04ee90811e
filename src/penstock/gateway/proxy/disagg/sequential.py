"""A request in two phases: its prompt computed by one engine, its answer made by another (vLLM's connectors).

The first engine is asked for one token, with `kv_transfer_params` that announce another engine; its answer names where
the KV cache is, and that is spliced into the request for the second engine, whose answer goes to the client. The
client gets the first answer only if it is a refusal. If the first engine names nothing (it has no connector), the
second computes the prompt again: slow, not wrong.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from penstock.core.values.catalogue import Failure
from penstock.gateway.openai.answers.usage import read_usage
from penstock.gateway.openai.fields import NOTHING
from penstock.gateway.openai.splice import Body, Spliced, set_field, set_fields
from penstock.gateway.proxy.disagg.base import Divided, Division
from penstock.http.client.pool import Headers, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.values.actions import Dispatch
    from penstock.gateway.proxy.target import Target

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})  # where engines know `kv_transfer_params`
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of a prefill: one token, and 8 bytes or so for each 16 tokens of the prompt
_LOOKED_AT_BYTES = 1024  # of a prompt: how a list of them begins
_ASKED = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)


class _Shape(msgspec.Struct, gc=False):
    """The raw fields that decide whether a request can be divided."""

    kv_transfer_params: msgspec.Raw = NOTHING
    bootstrap_host: msgspec.Raw = NOTHING
    bootstrap_port: msgspec.Raw = NOTHING
    bootstrap_room: msgspec.Raw = NOTHING
    n: msgspec.Raw = NOTHING
    best_of: msgspec.Raw = NOTHING
    use_beam_search: msgspec.Raw = NOTHING
    echo: msgspec.Raw = NOTHING
    prompt_logprobs: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    stream_options: msgspec.Raw = NOTHING
    max_completion_tokens: msgspec.Raw = NOTHING
    min_tokens: msgspec.Raw = NOTHING


class _Prefilled(msgspec.Struct, gc=False):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


_decode_shape = msgspec.json.Decoder(_Shape).decode
_NO_WISH = (b"null", b"0", b"1", b"false")
_SEVERAL_PROMPTS = re.compile(rb"\s*\[\s*[^\s\d\]]")  # a list of other things than token ids
_prefilled = msgspec.json.Decoder(_Prefilled).decode


def divisible(path: str, body: Body) -> bool:
    """True if a request has one prompt, one answer, and no transfer fields of its own."""
    if path not in PATHS:
        return False
    shape = _shape(body)
    several = any(
        _wished(wish) and bytes(wish) not in _NO_WISH for wish in (shape.n, shape.best_of, shape.use_beam_search)
    )
    of_the_prompt = (_wished(shape.echo) and bytes(shape.echo) not in (b"false", b"0")) or _wished(
        shape.prompt_logprobs
    )
    prompts = _SEVERAL_PROMPTS.match(memoryview(shape.prompt)[:_LOOKED_AT_BYTES]) is not None
    own = (shape.kv_transfer_params, shape.bootstrap_host, shape.bootstrap_port, shape.bootstrap_room)
    return not (several or of_the_prompt or prompts or any(_wished(wish) for wish in own))


def _shape(body: Body) -> _Shape:
    return body.fields(_Shape) if isinstance(body, Spliced) else _decode_shape(body)


def _wished(raw: msgspec.Raw) -> bool:
    return raw is not NOTHING and bytes(memoryview(raw)[:4]) != b"null"


def prefill_body(path: str, body: Body) -> Body:
    """Returns the request for its prompt alone: one token, not streamed, its KV cache to be fetched."""
    shape = _shape(body)
    values = {"max_tokens": b"1", "stream": b"false", "kv_transfer_params": _ASKED}
    if path == "/v1/chat/completions" or _wished(shape.max_completion_tokens):
        values["max_completion_tokens"] = b"1"
    if _wished(shape.min_tokens):
        values["min_tokens"] = b"0"
    if _wished(shape.stream_options):
        values["stream_options"] = b"null"
    return set_fields(body, values)


class TwoPhase(Division):
    """The first phase of one journey, and its result for the second. It is the sink of the prefill's call."""

    __slots__ = ("_body", "_params", "_status", "transfer")

    def __init__(self, journey: Divided, dispatch: Dispatch) -> None:
        super().__init__(journey, dispatch)
        self._status = 0
        self._body = bytearray()
        self._params: bytes | None = None  # JSON, as the prefill's engine wrote it
        self.transfer = "none"  #: `named` once the first engine has named the KV cache

    def begin(self, targets: Mapping[str, Target]) -> None:
        journey = self._journey
        body = prefill_body(journey.exchange.target_path, journey.body)
        journey.ask(targets[self.prefill], self.prefill, self.rank, body, sink=self, counts=False)

    def rest(self, body: Body) -> Body:
        return body if self._params is None else set_field(body, "kv_transfer_params", self._params)

    # --- the prefill's answer -------------------------------------------------------------------------------

    def on_response(self, status: int, headers: Headers, /) -> None:
        self._status = status
        self._journey.on_response(status, headers)

    def on_data(self, data: bytes, /) -> None:
        self._body += data
        if len(self._body) > ANSWER_BYTES_MAX:
            self._journey.hang_up()
            self._useless("an answer to a prefill that does not end")

    def on_end(self) -> None:
        if not 200 <= self._status < 300:
            self._journey.refused(self._status, self._body)
            return
        body = bytes(self._body)
        self._body.clear()
        try:
            params = bytes(_prefilled(body).kv_transfer_params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._useless("no answer to a prefill")
            return
        if params.startswith(b"{"):
            self._params, self.transfer = params, "named"
        self.usage = read_usage(body)
        self._journey.prefilled(self.usage)

    def on_error(self, error: UpstreamError, /) -> None:
        self._journey.on_error(error)

    def _useless(self, detail: str) -> None:
        self._body.clear()
        self._journey.no_answer()
        self._journey.failed(Failure.SERVER_ERROR, detail)
