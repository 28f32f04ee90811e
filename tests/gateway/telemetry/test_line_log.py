"""Lines written in batches: complete, in order and soon; a reader that stops reading costs lines, never a request."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import logs
from penstock.gateway.telemetry import line_log, request_events
from penstock.gateway.telemetry.line_log import LineLog
from tests.gateway.conftest import World, chat
from tests.patience import WAIT_S, looks


def numbered(at_s: float, number: Any, is_json: bool) -> bytes:
    return logs.line(at_s, "INFO", "penstock.access", f"line {number} " + "x" * 300, {} if is_json else None)


class Pipe:
    """The log's reader."""

    def __init__(self) -> None:
        self.end, write_end = os.pipe()
        os.set_blocking(self.end, False)
        self.stream = os.fdopen(write_end, "w")

    def read(self) -> str:
        parts = []
        try:
            while part := os.read(self.end, 65536):
                parts.append(part)
        except BlockingIOError:
            pass
        return b"".join(parts).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe, root = Pipe(), logging.getLogger()
    before, level = list(root.handlers), root.level
    logs.configure("debug", pipe.stream)
    yield pipe
    root.handlers[:] = before
    root.setLevel(level)
    pipe.stream.close()
    os.close(pipe.end)


def numbers(text: str) -> list[int]:
    return [int(line.split("line ")[1].split()[0]) for line in text.splitlines() if " line " in line]


@pytest.mark.virtual_time
async def test_lines_are_written_together_after_a_tenth_of_a_second(pipe: Pipe) -> None:
    dropped: list[int] = []
    lines = LineLog(dropped.append)
    for number in range(5):
        lines.add(numbered, number)
        await asyncio.sleep(0.02)
    await asyncio.sleep(0)
    assert numbers(pipe.read()) == [0, 1, 2, 3, 4]
    lines.add(numbered, 5)
    await asyncio.sleep(0.09)
    assert pipe.read() == ""
    await asyncio.sleep(0.011)
    assert numbers(pipe.read()) == [5]
    assert dropped == []


async def test_a_reader_that_stops_costs_the_newest_lines_counted_and_reported_in_their_place(pipe: Pipe) -> None:
    dropped: list[int] = []
    lines = LineLog(dropped.append)
    for number in range(400):
        lines.add(numbered, number)
    while lines._waiting and lines._fill() and lines._write(0.0):
        pass  # until the pipe is full
    held = len(lines._waiting)
    assert 0 < held < 400
    for number in range(400, 10_400 - held + 25):
        lines.add(numbered, number)
    assert len(lines._waiting) == 10_000
    assert sum(dropped) == 25
    text = pipe.read()
    async for _ in looks(WAIT_S):
        text += pipe.read()
        if "are missing here" in text:
            break
    lines.add(numbered, 99_999)
    async for _ in looks(WAIT_S):
        text += pipe.read()
        if "line 99999 " in text:
            break
    assert numbers(text) == [*range(10_400 - held), 99_999], "complete, and in order"
    assert "WARNING penstock.gateway.telemetry.line_log 25 lines are missing here" in text.splitlines()[-2]


async def test_a_stop_writes_all_that_waits_and_does_not_wait_for_a_dead_reader(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_log, "CLOSE_S", 0.05)
    dropped: list[int] = []
    lines = LineLog(dropped.append)
    for number in range(50):
        lines.add(numbered, number)
    lines.close()
    assert numbers(pipe.read()) == list(range(50))
    for number in range(400):
        lines.add(numbered, number)
    lines.close()
    assert len(numbers(pipe.read())) + sum(dropped) == 400
    assert sum(dropped) > 0


async def test_each_write_is_whole_lines_that_a_pipe_takes_at_once(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    def write(descriptor: int, data: bytes) -> int:
        writes.append(data)
        return len(data)

    monkeypatch.setattr(os, "write", write)
    dropped: list[int] = []
    lines = LineLog(dropped.append)
    for number in range(30):
        lines.add(numbered, number)
    lines.close()
    assert len(writes) == 3
    assert all(len(data) <= 4096 and data.endswith(b"\n") for data in writes)
    assert numbers(b"".join(writes).decode()) == list(range(30))
    assert dropped == []


async def test_a_long_name_is_cut_before_its_line_waits(
    world: World, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_events, "FOLD_S", 60.0)
    await world.engine()
    gate = await world.gateway(log={"access": True})
    await world.ask(body=chat(model="m" * 5_000))
    gate.metrics.events.fold()
    lines = gate.reporting._lines
    assert lines is not None
    ((_, _, values),) = lines._waiting
    assert max(len(value) for value in values if isinstance(value, str)) == 129
    await world.close()
    assert " model=" + "m" * 127 + "… " in log.getvalue()


async def test_a_reload_loses_no_line_and_a_stop_writes_the_last(world: World, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway(log={"access": True})
    for number in range(3):
        await world.chat_with({"x-request-id": f"before-{number}"})
    world.document["log"] = {"access": True, "format": "json"}
    await world.gate.reload()
    await world.chat_with({"x-request-id": "after"})
    world.document["log"] = {}
    await world.gate.reload()
    await world.chat_with({"x-request-id": "unlogged"})
    await world.close()
    found = [line for line in log.getvalue().splitlines() if "penstock.access" in line]
    ids = [re.findall(r'request_id(?:=|":")([\w-]+)', line)[-1] for line in found]
    assert ids == ["before-0", "before-1", "before-2", "after"]


async def test_what_was_dropped_is_a_metric(world: World) -> None:
    await world.engine()
    gate = await world.gateway(log={"access": True})
    assert await world.metric("penstock_log_lines_dropped_total") == 0
    gate.metrics.dropped_lines(3)
    assert await world.metric("penstock_log_lines_dropped_total") == 3


def test_a_json_line_with_half_of_a_surrogate_pair_is_still_json() -> None:
    line = logs.line(0.0, "INFO", "penstock", "path \udc80", {})
    assert json.loads(line)["message"] == "path \udc80"
    assert line.isascii()
