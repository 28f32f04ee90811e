"""The gRPC server of the endpoint picker: ext_proc, and the three health services that gateways ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from penstock.config.address import split_listen
from penstock.config.model import Settings
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.epp.picker import Picker
from penstock.gateway.epp.stream import ProxyStream
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.target import Target

logger = logging.getLogger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS, READINESS = "liveness", "readiness"
DRAIN_S_MAX = 86_400.0  # of streams under way: `close` comes earlier, when queue.stop_timeout is over
WATCH_S = 0.5  # a watched state is looked at so often
_MESSAGE_BYTES = 1 << 20  # of a message beside a body
_SERVING, _NOT_SERVING, _UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"  # grpc.health.v1.HealthCheckResponse


def picker_server(
    settings: Settings,
    *,
    app: App,
    driver: Driver[Decides],
    targets: Mapping[str, Target],
    catalog: Catalog,
    hold: Callable[[int], bool],
) -> PickerServer:
    """Returns the picker of a process that carries requests: a gateway alone, or a worker."""
    return PickerServer(Picker(app, driver, targets, catalog, hold), settings)


class PickerServer:
    """Serves proxies on one port."""

    def __init__(self, picker: Picker, settings: Settings) -> None:
        self._picker = picker
        self._settings = settings
        self._certificate: tuple[bytes, bytes] | None = None
        self.port = 0
        size = settings.limits.max_body + _MESSAGE_BYTES
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ext_proc.ProcessingRequest.FromString,
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

    async def start(self, listen: str) -> None:
        """Listen. Raises OSError if that is not possible."""
        self._picker.follow(self._settings)
        host, port = split_listen(listen)
        place = f"{host or '[::]'}:{port}"
        try:
            if self._settings.tls.cert:
                certificate = await asyncio.to_thread(self._read)
                credentials = grpc.dynamic_ssl_server_credentials(_configuration(*certificate), self._renewed)
                self.port = self._server.add_secure_port(place, credentials)
            else:
                self.port = self._server.add_insecure_port(place)
        except RuntimeError as error:
            raise OSError(f"epp.listen {listen}: {error}") from None
        await self._picker.places.look()
        await self._server.start()
        self._looks = asyncio.get_running_loop().create_task(self._picker.places.run())
        logger.info("picking endpoints for proxies on %s", f"{host or '0.0.0.0'}:{self.port}")

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
        await ProxyStream(self._picker, context).run()

    # --- TLS ------------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[bytes, bytes]:
        tls = self._settings.tls
        assert tls.cert is not None
        assert tls.key is not None
        self._certificate = Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()
        return self._certificate

    def _renewed(self) -> Any:
        """Called by gRPC for each new connection, in a thread of its own."""
        before = self._certificate
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


def _configuration(key: bytes, chain: bytes) -> Any:
    return grpc.ssl_server_certificate_configuration([(key, chain)])
