"""Real engines and a real gateway as processes: started, asked, killed, and gone when the tests are."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.ports import free_port

MODEL = "tiny-llama"
HOME = Path(os.environ.get("PENSTOCK_ENGINES") or Path.home() / ".cache" / "penstock-engines")
READY_S_MAX = 300.0  # vLLM takes 15 s alone on two idle cores; three at a time on busy ones minutes
STOP_S_MAX = 20.0
SIZE = 8  # requests that each vLLM runs at once
LLAMA_SIZE = 4
QUEUED_MAX = 12  # the second vLLM holds so many at most, running or not, and refuses the rest with 503
BLOCK_TOKENS = 32
CONTEXT = 32768
KEY = "a-key-of-the-engine"  # what the guarded vLLM wants on its /v1 paths
ADAPTER = "tiny-lora"  # the name that the adapter at hand is served under
ACCESS_LOG = {"format": "json", "access": True}

QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def say(text: str) -> None:
    """Progress, past pytest's capture."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.__stderr__, flush=True)


def fetch(url: str, *, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body; status 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, TimeoutError):
        return 0, b""


def series(page: bytes, name: str, label: str = "") -> float:
    """The sum of a series over its samples that hold a label."""
    lines = (line for line in page.decode().splitlines() if line.startswith((name + "{", name + " ")))
    return sum(float(line.rpartition(" ")[2]) for line in lines if label in line)


def until(claim: Callable[[], Any], *, what: str, within_s: float = 30.0, every_s: float = 0.02) -> float:
    """Wait for what other processes do, and say how long it took."""
    began_s = time.monotonic()
    while not claim():
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(every_s)  # there is nothing of another process to wait on but its answers
    return time.monotonic() - began_s


class Process:
    """One process and all that it starts, in a session of their own."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._env = {**os.environ, **(env or {})}
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.dead
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def cpu_s(self) -> float:
        """What it and all that it started have used of processors so far."""
        assert self._process is not None
        ticks = 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                fields = file.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # its session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def signal(self, number: int, *, group: bool = False) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self._process.pid, number)

    def kill(self) -> None:
        """All at once, as when the machine goes."""
        if self._process is not None:
            self.signal(signal.SIGKILL, group=True)
            self._process.wait()

    def stop(self) -> int:
        """In good order, if it can; its exit status."""
        assert self._process is not None
        if not self.dead:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S_MAX)
        status = self._process.poll()
        self.kill()
        return -signal.SIGKILL if status is None else status


class Engine:
    """A real engine. May be killed and started again, at the same port."""

    kind: str
    size: int
    ready_path: str
    gauges: tuple[str, str]
    env: Mapping[str, str] = {}

    def __init__(self, name: str, logs: Path) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = Process(self._command(), logs / f"{name}.log", {**QUIET, **ON_CPU, **self.env})

    def _command(self) -> list[str]:
        raise NotImplementedError

    @property
    def endpoint(self) -> dict[str, Any]:
        """As it stands in the settings, where nothing more is known of it."""
        return {"url": self.url, "name": self.name}

    def is_ready(self) -> bool:
        assert not self.process.dead, f"{self.name} ended by itself: see {self.process.log}"
        return fetch(self.url + self.ready_path)[0] == 200

    def ensure(self) -> None:
        """Running and ready, whatever the test before has done to it."""
        if self.process.dead:
            say(f"starting {self.name} on port {self.port}; its log: {self.process.log}")
            self.process.start()
        until(self.is_ready, what=f"{self.name} is ready", within_s=READY_S_MAX, every_s=0.2)

    def load(self) -> tuple[float, float]:
        """Running and waiting, as the engine says."""
        page = fetch(self.url + "/metrics")[1]
        return series(page, self.gauges[0]), series(page, self.gauges[1])

    @property
    def idle(self) -> bool:
        return self.load() == (0, 0)


class Vllm(Engine):
    kind = "vllm"
    size = SIZE
    ready_path = "/version"  # the port is bound long before it listens
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")

    def __init__(self, name: str, logs: Path, *flags: str) -> None:
        self._flags = flags
        super().__init__(name, logs)

    def _command(self) -> list[str]:
        events = {"enable_kv_cache_events": True, "publisher": "zmq"}
        ports = {"endpoint": f"tcp://*:{free_port()}", "replay_endpoint": f"tcp://*:{free_port()}"}
        return [
            str(HOME / "vllm/bin/vllm"), "serve", str(HOME / "tiny-llama"), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16", "--enforce-eager",
            "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SIZE), "--block-size", str(BLOCK_TOKENS),
            "--num-gpu-blocks-override", "8192", "--scheduling-policy", "priority", "--enable-server-load-tracking",
            "--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--shutdown-timeout", "30",
            "--kv-events-config", json.dumps(events | ports), *self._flags,
        ]  # fmt: skip


class Adapted(Vllm):
    """A vLLM with an adapter, that takes more of them at run time, and in development mode: it can be put to sleep, and
    tells how many it runs at a time."""

    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}  # noqa: RUF012

    def __init__(self, name: str, logs: Path) -> None:
        adapter = f"{ADAPTER}={adapter_folder(1)}"
        super().__init__(
            name, logs, "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules", adapter
        )

    def post(self, path: str, body: Any = None) -> None:
        """Ask it to do something that is not about a request."""
        status, answer = fetch(self.url + path, body=body or {})
        assert status == 200, answer


def adapter_folder(number: int) -> Path:
    return HOME / f"tiny-lora-{number}"


class LlamaCpp(Engine):
    kind = "llamacpp"
    size = LLAMA_SIZE
    ready_path = "/health"
    gauges = ("llamacpp:requests_processing", "llamacpp:requests_deferred")

    def _command(self) -> list[str]:
        return [
            str(HOME / "llama-build/bin/llama-server"), "-m", str(HOME / "tiny-llama.gguf"), "--alias", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port), "--parallel", str(LLAMA_SIZE),
            "--ctx-size", str(CONTEXT * LLAMA_SIZE), "--threads", "1", "--metrics", "--slots",
        ]  # fmt: skip


class Gateway:
    """A running `penstock serve`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.file = folder / f"penstock-{self.port}.yaml"
        self.file.write_text(json.dumps({"listen": f"127.0.0.1:{self.port}", **settings}))
        self.endpoints = len(settings["endpoints"])
        command = [sys.executable, "-m", "penstock", "serve", "-c", str(self.file)]
        self.process = Process(command, folder / f"penstock-{self.port}.log")

    def start(self) -> None:
        self.process.start()
        until(lambda: fetch(self.url + "/health")[0] == 200, what=f"the gateway listens ({self.process.log})")
        until(lambda: self.knows_all(), what=f"it knows its endpoints ({self.process.log})")

    def knows_all(self) -> bool:
        """Every endpoint is up, has told what it serves, and was read at least twice."""
        endpoints = self.state()["endpoints"]
        told = [e for e in endpoints if e["state"] == "up" and e["models"] and e["observed_s_ago"] is not None]
        return len(told) == self.endpoints

    def state(self) -> Any:
        return json.loads(fetch(self.url + "/admin/state")[1])

    def endpoint(self, name: str) -> Any:
        return next(endpoint for endpoint in self.state()["endpoints"] if endpoint["name"] == name)

    def metric(self, name: str, label: str = "") -> float:
        return series(fetch(self.url + "/metrics")[1], f"penstock_{name}", label)

    def began(self, endpoint: str, *, asked_s: float) -> list[float]:
        """When requests that were asked for after `asked_s` were sent there, by the gateway's own access log.

        Unix times: a busy test learns too late what it asks for. Needs `ACCESS_LOG`, which lacks who is under way.
        """
        began = []
        for line in self.process.log.read_text().splitlines():
            ended = json.loads(line) if line.startswith("{") else {}
            if ended.get("endpoint") == endpoint and "queue_ms" in ended:
                at_s = datetime.fromisoformat(ended["at"]).timestamp() - ended["total_ms"] / 1000
                if at_s >= asked_s:
                    began.append(at_s + ended["queue_ms"] / 1000)
        return sorted(began)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`penstock …`, as an operator has it."""
        command = [sys.executable, "-m", "penstock", *arguments, "--url", self.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def is_idle(self) -> bool:
        state = self.state()
        return not (state["waiting"] or state["running"] or any(e["leases"] for e in state["endpoints"]))
