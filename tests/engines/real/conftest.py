"""Two real vLLM and a real llama.cpp, for all tests; and a gateway of its own for each.

Run by `make test-engines`, which installs them. Whatever a test does, when it is over no lease is held, nothing waits,
the gateway has ended in good order, and no engine works on anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engines.real.processes import (
    HOME,
    KEY,
    MODEL,
    QUEUED_MAX,
    Adapted,
    Engine,
    Gateway,
    LlamaCpp,
    Vllm,
    say,
    until,
)

TIMEOUT_S = 600.0  # a test may have to start an engine on a busy machine
IDLE_S_MAX = 120.0  # llama.cpp may finish what nobody wants any more

Start = Callable[..., Gateway]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))


class Fleet:
    """The engines, by name."""

    def __init__(self, logs: Path) -> None:
        self.a = Vllm("vllm-a", logs)
        self.b = Vllm("vllm-b", logs, "--max-num-queued-reqs", str(QUEUED_MAX))
        self.c = LlamaCpp("llama-c", logs)
        self.all: list[Engine] = [self.a, self.b, self.c]
        self.adapted = Adapted("vllm-lora", logs)  # this one and the next are started by the tests that need them
        self.guarded = Vllm("vllm-guarded", logs, "--api-key", KEY)

    def ensure(self) -> None:
        for engine in self.all:
            if engine.process.dead:
                say(f"starting {engine.name} on port {engine.port}; its log: {engine.process.log}")
                engine.process.start()
        for engine in self.all:
            engine.ensure()


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    missing = [
        path
        for path in ("vllm/bin/vllm", "llama-build/bin/llama-server", "tiny-llama.gguf", "tiny-lora-2")
        if not (HOME / path).exists()
    ]
    assert not missing, f"{missing} not in {HOME}: run scripts/engines/install, or `make test-engines`"
    fleet = Fleet(tmp_path_factory.mktemp("engines"))
    try:
        yield fleet
    finally:
        say("stopping the engines")
        for engine in (*fleet.all, fleet.adapted, fleet.guarded):
            engine.process.kill()


@pytest.fixture
def fleet(started: Fleet) -> Fleet:
    """All of them ready and idle, whatever the test before has done."""
    started.ensure()
    for engine in started.all:
        rest(engine)
    return started


@pytest.fixture
def serve(fleet: Fleet, tmp_path: Path) -> Iterator[Start]:
    """Starts gateways: `serve(endpoints=[…], **settings)`."""
    running: list[Gateway] = []

    def start(endpoints: list[Mapping[str, Any]], **settings: Any) -> Gateway:
        gateway = Gateway(tmp_path, {"endpoints": endpoints, **settings})
        running.append(gateway)
        gateway.start()
        return gateway

    yield start
    try:
        for gateway in running:
            until(gateway.is_idle, what="leases and waiting requests end at 0")
            assert gateway.process.stop() == 0, gateway.process.log.read_text()[-2000:]
            text = gateway.process.log.read_text()
            assert "Traceback" not in text, text[-4000:]
            assert " ERROR " not in text, text[-4000:]
            assert '"level": "error"' not in text, text[-4000:]
        for engine in (*fleet.all, fleet.adapted):
            if not engine.process.dead:
                rest(engine)
    finally:
        for gateway in running:
            gateway.process.kill()


def rest(engine: Engine) -> None:
    until(lambda: engine.idle, what=f"{engine.name} has nothing to do", within_s=IDLE_S_MAX)


def client(gateway: Gateway, **headers: str) -> openai.AsyncOpenAI:
    """What a user has. It does not try again by itself: what fails shall be seen."""
    return openai.AsyncOpenAI(
        base_url=gateway.url + "/v1", api_key="none", max_retries=0, default_headers=headers, timeout=300.0
    )


def direct(engine: Engine) -> openai.AsyncOpenAI:
    """Past the gateway."""
    return openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=300.0)


def chat(content: str = "hello", *, tokens: int = 8, **more: Any) -> dict[str, Any]:
    """Ends at `tokens`, never by chance."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0, **more}
