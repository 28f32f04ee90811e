"""The gRPC server of the endpoint picker: ext_proc, and the three health services that gateways ask.

A proxy proves itself by a certificate (`epp.client_ca`), by a secret in the metadata of each stream (`epp.secret`), or
not at all: then engines' keys are given out on loopback only. Connections, streams, heads and messages are bounded, and
a peer that answers no ping is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError

from penstock.config.model import Settings
from penstock.gateway.epp.picker import Picker
from penstock.gateway.epp.stream import ProxyStream
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.target import Target

logger = logging.getLogger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS, READINESS = "liveness", "readiness"
DRAIN_S_MAX = 86_400.0  # of streams under way: `close` comes earlier, when queue.stop_timeout is over
SECRET = "x-penstock-secret"  # noqa: S105 (its name)
PING_S, PONG_S = 30.0, 10.0  # to a silent connection; a dead one frees its slots after both
PINGS_S_MIN = 5.0  # between a peer's own: Envoy's keepalive is 10 s and more
WATCH_S = 0.5  # a watched state is looked at so often
_MESSAGE_BYTES = 1 << 20  # of a message beside a body
_Files = tuple[bytes, bytes, bytes | None]  # key, chain, authority of clients
_SERVING, _NOT_SERVING, _UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"  # grpc.health.v1.HealthCheckResponse


def picker_server(
    settings: Settings,
    *,
    app: App,
    driver: Driver[Decides],
    targets: Mapping[str, Target],
    hold: Callable[[int], bool],
) -> PickerServer:
    """Returns the picker of a process that carries requests: a gateway alone, or a worker."""
    return PickerServer(Picker(app, driver, targets, hold, gives_keys=settings.epp.gives_keys), settings)


class PickerServer:
    """Serves proxies on one port."""

    def __init__(self, picker: Picker, settings: Settings) -> None:
        self._picker = picker
        self._settings = settings
        self._files: _Files | None = None
        self._streams: Counter[str] = Counter()  # open ones, by their peer's address
        self.port = 0
        secret = settings.epp.secret
        self._secret = None if secret is None else secret.get_secret_value().encode()
        self._server = grpc.aio.server(
            options=bounds(settings), maximum_concurrent_rpcs=settings.limits.max_connections
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=_message,
            response_serializer=ext_proc.ProcessingResponse.SerializeToString,
        )
        health = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
            )
        )
        self._looks: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    def follow(self, settings: Settings) -> None:
        """Use these bounds, and for new connections this certificate."""
        self._settings = settings
        self._picker.follow(settings)

    def problems(self) -> str:
        """Returns what is wrong with the filters of proxies, in sentences; empty: nothing."""
        return " ".join(self._picker.filters.problems())

    async def start(self) -> None:
        """Listen. Raises OSError if that is not possible."""
        self._picker.follow(self._settings)
        epp = self._settings.epp
        host, port = epp.address
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._settings.tls.cert:
                files = await asyncio.to_thread(self._read)
                credentials = grpc.dynamic_ssl_server_credentials(
                    _configuration(*files), self._renewed, require_client_authentication=epp.client_ca is not None
                )
                self.port = self._server.add_secure_port(place, credentials)
            else:
                self.port = self._server.add_insecure_port(place)
        except RuntimeError as error:
            raise OSError(f"epp.listen {epp.listen}: {error}") from None
        await self._picker.places.look()
        await self._server.start()
        self._looks = asyncio.get_running_loop().create_task(self._picker.places.run())
        logger.info("picking endpoints for proxies on %s", place.removesuffix(f":{port}") + f":{self.port}")

    def drain(self) -> None:
        """Send proxies to another picker: GOAWAY on their connections, and no new ones. Streams under way go on."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._server.stop(DRAIN_S_MAX))

    async def close(self, grace_s: float) -> None:
        """Let streams end for `grace_s`, then end them."""
        if self._looks is not None:
            self._looks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looks
        await self._server.stop(grace_s)
        if self._draining is not None:
            await self._draining

    async def _process(self, _: AsyncIterator[Any], context: Any) -> None:
        if self._secret is not None and not self._knows_secret(context.invocation_metadata() or ()):
            self._picker.filters.strange(context.peer(), f"it does not send `{SECRET}` as the settings have it")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"`{SECRET}` is missing or wrong")
        address = self._picker.address(context.peer())[0]
        if self._streams[address] >= self._settings.epp.max_streams_per_address:
            self._picker.filters.strange(context.peer(), "its address has `epp.max_streams_per_address` streams open")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of this address")
        self._streams[address] += 1
        try:
            await ProxyStream(self._picker, context).run()
        finally:
            self._streams[address] -= 1
            if not self._streams[address]:
                del self._streams[address]

    def _knows_secret(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        given = [value.encode() if isinstance(value, str) else value for key, value in metadata if key == SECRET]
        return self._secret is not None and len(given) == 1 and hmac.compare_digest(given[0], self._secret)

    # --- TLS ------------------------------------------------------------------------------------------------------

    def _read(self) -> _Files:
        tls, authority = self._settings.tls, self._settings.epp.client_ca
        assert tls.cert is not None
        assert tls.key is not None
        ca = None if authority is None else Path(authority).read_bytes()
        self._files = Path(tls.key).read_bytes(), Path(tls.cert).read_bytes(), ca
        return self._files

    def _renewed(self) -> Any:
        """Called by gRPC for each new connection, in a thread of its own."""
        before = self._files
        try:
            now = self._read()
        except OSError:
            return None  # the one before
        return None if now == before else _configuration(*now)

    # --- health ---------------------------------------------------------------------------------------------------

    def _state(self, request: bytes) -> bytes:
        """The state of the service that a HealthCheckRequest names: its field 1."""
        service = request[2:].decode("utf-8", "replace")
        if service == LIVENESS:
            return _SERVING
        if service in ("", READINESS, SERVICE):
            return _SERVING if self._picker.is_ready else _NOT_SERVING
        return _UNKNOWN

    async def _check(self, request: bytes, context: Any) -> bytes:
        state = self._state(request)
        if state == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return state

    async def _watch(self, request: bytes, context: Any) -> None:
        before = b""
        while True:
            if (state := self._state(request)) != before:
                await context.write(state)
                before = state
            await asyncio.sleep(WATCH_S)


def _configuration(key: bytes, chain: bytes, ca: bytes | None) -> Any:
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=ca)


def _message(data: bytes) -> Any:
    """Returns a proxy's message; None: it is none."""
    try:
        return ext_proc.ProcessingRequest.FromString(data)
    except DecodeError:
        return None


def bounds(settings: Settings) -> list[tuple[str, int]]:
    """Returns gRPC's options that bound connections, streams and messages."""
    size = settings.limits.max_body + _MESSAGE_BYTES
    return [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        ("grpc.max_metadata_size", settings.limits.max_header),
        ("grpc.max_concurrent_streams", settings.limits.max_connections),
        ("grpc.max_connection_idle_ms", round(settings.timeouts.client_idle * 1000)),
        ("grpc.keepalive_time_ms", round(PING_S * 1000)),
        ("grpc.keepalive_timeout_ms", round(PONG_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(PINGS_S_MIN * 1000)),
    ]
