"""The simulated engine over HTTP: vLLM's endpoints in front of the engine model.

Paths, the listening socket and the command line. `POST /sim/fault` sets faults; `GET /sim/log` shows requests. Uses no
gateway code.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import uvloop

from penstock.sim.engine.pages import PageWays, StrangePage
from penstock.sim.engine.profiles import PROFILES, EngineConfig
from penstock.sim.fake_engine import metrics
from penstock.sim.fake_engine import text as engine_text
from penstock.sim.fake_engine.calls import INFERENCE_PATHS, CallError, bad_request
from penstock.sim.fake_engine.http import EngineConnection, HttpRequest
from penstock.sim.fake_engine.kv_events import KvEventsError, KvPublisher
from penstock.sim.fake_engine.log import METRICS_FAULTS, Fault, FaultError, ways_of
from penstock.sim.fake_engine.rooms import Rooms
from penstock.sim.fake_engine.service import ServedEngine
from penstock.sim.fake_engine.transfer import HELD_S

VERSION = "0.32.0+sim"  # the vLLM release that this follows
DIE_DELAY_S = 0.01  # so that the client that set the fault gets its answer

Handler = Callable[[HttpRequest, EngineConnection], None]


class EngineServer:
    """A simulated engine on a socket. With `hard_exit` the fault `die` ends the process."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        model: str = "sim",
        seed: int = 0,
        kv_events: str | None = None,
        kv_replay: str | None = None,
        hard_exit: bool = False,
        kv_transfer_s: float | None = None,
        bootstrap_port: int | None = None,
    ) -> None:
        config = replace(config or EngineConfig(), kv_events=kv_events is not None)
        self.rooms = None if bootstrap_port is None else Rooms()
        self._bootstrap_port = bootstrap_port or 0
        self.service = ServedEngine(config, model=model, seed=seed, kv_transfer_s=kv_transfer_s, rooms=self.rooms)
        self.engine = self.service.engine
        self.log = self.service.log
        self.faults = self.service.faults
        self.model = model
        self._seed = seed
        self.url = ""
        self._kv_endpoint = kv_events
        self._kv_replay = kv_replay
        self._hard_exit = hard_exit
        self._peers: set[EngineConnection] = set()
        self._page, self._page_since_s = StrangePage(), 0.0  # the gauges under a fault of `/metrics`
        self._listener: asyncio.Server | None = None
        self._started_unix_s = time.time()
        self._routes = self._make_routes()

    @property
    def kv(self) -> KvPublisher | None:
        return self.service.kv

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen. Returns the port."""
        loop = asyncio.get_running_loop()
        kv: KvPublisher | None = None
        if self._kv_endpoint is not None:
            size = self.engine.config.block_size
            kv = KvPublisher(self._kv_endpoint, topic=f"kv@{self.model}", block_size=size, replay=self._kv_replay)
            kv.start(loop)
        self.service.start(loop, kv)
        try:
            if self.rooms is not None:
                await self.rooms.start(host, self._bootstrap_port)
            self._listener = await loop.create_server(
                lambda: EngineConnection(self._handle, self._peers), host, port, backlog=4096
            )
        except OSError:
            await self.close()
            raise
        port = int(self._listener.sockets[0].getsockname()[1])
        self.url = f"http://{host}:{port}"
        return port

    async def close(self) -> None:
        """Stop at once and abort open requests, like vLLM by default."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in tuple(self._peers):
            connection.reset()
        for _ in range(10):  # resets are carried out in the next turns of the loop
            if self._peers:
                await asyncio.sleep(0)
        self.service.stop()

    # routes ----------------------------------------------------------------------------------------

    def _make_routes(self) -> dict[str, dict[str, Handler]]:
        return {
            **{path: {"POST": self.service.infer} for path in INFERENCE_PATHS},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            "/v1/load_lora_adapter": {"POST": self.service.adapters.load},
            "/v1/unload_lora_adapter": {"POST": self.service.adapters.unload},
            "/health": {"GET": lambda _, connection: connection.respond(200, b"")},
            "/ping": {
                "GET": lambda _, connection: connection.respond(200, b""),
                "POST": lambda _, connection: connection.respond(200, b""),
            },
            "/version": {"GET": lambda _, connection: connection.respond_json(200, {"version": VERSION})},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/kv_event_sources": {"GET": self._kv_event_sources},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
            "/sim/fault": {"GET": self._show_faults, "POST": self._set_fault},
            "/sim/log": {"GET": self._show_log, "DELETE": self._clear_log},
        }

    def _handle(self, request: HttpRequest, connection: EngineConnection) -> None:
        methods = self._routes.get(request.path)
        if methods is None:
            connection.respond_json(404, {"detail": "Not Found"})
        elif (handler := methods.get(request.method)) is None:
            connection.respond_json(405, {"detail": "Method Not Allowed"})
        else:
            try:
                handler(request, connection)
            except CallError as refusal:
                connection.respond(refusal.status, refusal.body(request.path))

    def _models(self, _: HttpRequest, connection: EngineConnection) -> None:
        model = {
            "id": self.model,
            "object": "model",
            "created": int(self._started_unix_s),
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.engine.context_tokens_max,
        }
        connection.respond_json(200, {"object": "list", "data": [model, *self.service.adapters.listed(model)]})

    def _load(self, _: HttpRequest, connection: EngineConnection) -> None:
        connection.respond_json(200, {"server_load": self.service.load})

    def _kv_event_sources(self, _: HttpRequest, connection: EngineConnection) -> None:
        connection.respond_json(200, {} if self.kv is None else self.kv.sources)

    def _count_tokens(self, request: HttpRequest, connection: EngineConnection) -> None:
        prompt = self.service.reader.prompt(request.path, request.body)
        connection.respond_json(200, {"input_tokens": engine_text.token_count(prompt)})

    def _tokenize(self, request: HttpRequest, connection: EngineConnection) -> None:
        tokens = engine_text.tokenize(self.service.reader.prompt(request.path, request.body))
        length = self.engine.context_tokens_max
        answer: dict[str, Any] = {"count": len(tokens), "max_model_len": length, "tokens": tokens}
        connection.respond_json(200, answer)

    def _detokenize(self, request: HttpRequest, connection: EngineConnection) -> None:
        try:
            tokens = msgspec.json.decode(request.body, type=dict[str, Any]).get("tokens")
            connection.respond_json(200, {"prompt": engine_text.detokenize(tokens or [])})
        except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, TypeError, OverflowError) as error:
            raise bad_request(str(error), "tokens") from error

    def _metrics(self, _: HttpRequest, connection: EngineConnection) -> None:
        fault = self.faults.for_metrics()
        gauges = self.engine.gauges()
        if fault is not None:
            if fault.kind == "metrics_hang":
                self.service.hang(connection)
                return
            if fault.kind == "metrics_garbage":
                connection.respond(200, b"\x00\xff{]vllm:num_requests_waiting NaNana\n" * 8, "text/plain")
                return
        said = self._page.read(gauges, asyncio.get_running_loop().time() - self._page_since_s) if fault else gauges
        if said is None:
            connection.respond_json(404, {"detail": "Not Found"})
            return
        page = metrics.render(
            said,
            counters=self._page.has_counters if fault else True,
            model="another" if fault and self._page.of_another else self.model,
            config=self.engine.config,
            successes=self.service.successes,
            refused=self.service.refused,
            started_unix_s=self._started_unix_s,
            adapters_held=self.service.adapters.most if self.service.adapters else 0,
            adapters_running=self.service.adapters_running,
        )
        connection.respond(200, page, metrics.CONTENT_TYPE)

    def _reset_prefix_cache(self, _: HttpRequest, connection: EngineConnection) -> None:
        if not self.engine.reset_prefix_cache():
            connection.respond_json(409, {"detail": "requests are running"})
            return
        if self.kv is not None:
            self.kv.cleared(unix_s=time.time())
        connection.respond(200, b"")

    # faults and log --------------------------------------------------------------------------------

    def _set_fault(self, request: HttpRequest, connection: EngineConnection) -> None:
        try:
            self.set_fault(self.faults.read(request.body))
        except FaultError as error:
            raise bad_request(str(error), "kind") from error
        self._show_faults(request, connection)

    def set_fault(self, fault: Fault) -> None:
        """Misbehave by `fault` from now on. Raises `FaultError`."""
        if fault.kind in METRICS_FAULTS:
            self._use_page(ways_of(fault))
        if fault.kind == "die" and fault.after_bytes is None:
            asyncio.get_running_loop().call_later(DIE_DELAY_S, self._die)
            return
        self.faults.set(fault, asyncio.get_running_loop().time())

    def _use_page(self, ways: PageWays) -> None:
        self._page, self._page_since_s = StrangePage(ways, self._seed), asyncio.get_running_loop().time()
        if not ways.from_s:
            self._page.read(self.engine.gauges(), 0.0)  # freeze now

    def _die(self) -> None:
        if self._hard_exit:
            os._exit(1)
        if self._listener is not None:
            self._listener.close()
        self.service.died()
        for connection in tuple(self._peers):
            connection.reset()

    def _show_faults(self, _: HttpRequest, connection: EngineConnection) -> None:
        connection.respond_json(200, {"faults": self.faults.active()})

    def _show_log(self, _: HttpRequest, connection: EngineConnection) -> None:
        log = self.log
        connection.respond_json(
            200,
            {
                "in_engine": self.engine.in_engine,
                "in_engine_max": log.in_engine_max,
                "running_max": log.running_max,
                "waiting_max": log.waiting_max,
                "requests": list(log.entries),
            },
        )

    def _clear_log(self, _: HttpRequest, connection: EngineConnection) -> None:
        self.log.clear()
        connection.respond_json(200, {})


# the command ---------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9001)
    parser.add_argument("--model", default="sim", help="the model name it serves")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="default", help="speed and size")
    parser.add_argument("--slots", type=int, help="requests that run at once (max_num_seqs)")
    parser.add_argument("--step-ms", type=float, help="a fixed step time for any load")
    parser.add_argument("--kv-blocks", type=int, help="KV blocks in all")
    parser.add_argument("--block-size", type=int, help="tokens in a KV block")
    parser.add_argument("--no-enable-prefix-caching", action="store_true", help="keep no blocks of ended requests")
    parser.add_argument("--max-batched-tokens", type=int, help="token budget of a step")
    parser.add_argument("--max-num-queued-reqs", type=int, help="answer 503 beyond so many in the engine")
    parser.add_argument("--priority", action="store_true", help="serve by (priority, arrival), lower first")
    parser.add_argument("--lora-modules", metavar="NAME", nargs="+", default=[], help="LoRA adapters that it lists")
    parser.add_argument("--max-loras", type=int, default=1, help="how many of them are in memory at once")
    parser.add_argument("--lora-load-ms", type=float, default=500.0, help="how long bringing one there takes")
    parser.add_argument("--kv-events", metavar="tcp://HOST:PORT", help="publish KV events here (ZMQ)")
    parser.add_argument("--kv-replay", metavar="tcp://HOST:PORT", help="replay lost KV events here (ZMQ)")
    parser.add_argument(
        "--kv-transfer",
        metavar="SECONDS",
        type=float,
        nargs="?",
        const=HELD_S,
        help="compute prompts for other engines and go on from theirs (`kv_transfer_params`); blocks are held so long",
    )
    parser.add_argument(
        "--bootstrap-port",
        metavar="PORT",
        type=int,
        help="compute prompts for engines that ask for them here (`bootstrap_host`, `_port`, `_room`, as SGLang's)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fault",
        metavar="JSON",
        action="append",
        default=[],
        help='misbehave from the start, as by POST /sim/fault: {"kind": "no_usage"}; again for another one',
    )


def config_of(args: argparse.Namespace) -> EngineConfig:
    """Returns the profile, overridden by the flags. Raises ValueError if that makes no engine."""
    told: dict[str, Any] = {
        "max_num_seqs": args.slots,
        "step_s": None if args.step_ms is None else args.step_ms / 1000,
        "kv_blocks": args.kv_blocks,
        "block_size": args.block_size,
        "prefix_caching": False if args.no_enable_prefix_caching else None,
        "max_num_batched_tokens": args.max_batched_tokens,
        "max_num_queued_reqs": args.max_num_queued_reqs,
        "priority": args.priority,
    }
    told = {name: value for name, value in told.items() if value is not None}
    return replace(PROFILES[args.profile], **told)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    if not 0 <= args.port <= 65535:  # uvloop would take it modulo 65536
        return _complain(f"--port must be between 0 and 65535, got {args.port}")
    if args.bootstrap_port is not None and not 0 <= args.bootstrap_port <= 65535:
        return _complain(f"--bootstrap-port must be between 0 and 65535, got {args.bootstrap_port}")
    if args.kv_replay and not args.kv_events:
        return _complain("--kv-replay needs --kv-events")
    try:
        server = EngineServer(
            config_of(args),
            model=args.model,
            seed=args.seed,
            kv_events=args.kv_events,
            kv_replay=args.kv_replay,
            hard_exit=True,
            kv_transfer_s=args.kv_transfer,
            bootstrap_port=args.bootstrap_port,
        )
        server.service.adapters.serve(args.lora_modules, most=args.max_loras, load_s=args.lora_load_ms / 1000)
    except ValueError as error:
        return _complain(str(error))
    try:
        faults = [server.faults.read(text.encode()) for text in args.fault]
        for fault in faults:
            ways_of(fault)
    except FaultError as error:
        return _complain(f"--fault: {error}")
    return uvloop.run(_serve(server, args.host, args.port, faults))


async def _serve(server: EngineServer, host: str, port: int, faults: list[Fault]) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        await server.start(host, port)
        for fault in faults:
            server.set_fault(fault)
    except KvEventsError as error:
        return _complain(str(error))
    except OSError as error:
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        return _complain(f"cannot listen on {host}:{port}: {reason}")
    print(f"engine {server.model} listening on {server.url}", flush=True)
    await stopped.wait()
    await server.close()
    return 0


def _complain(message: str) -> int:
    print(f"penstock engine: {message}", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="penstock engine", description="A simulated inference engine.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
