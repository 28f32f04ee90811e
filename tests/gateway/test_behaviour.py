"""docs/behaviour.md says what is done to HTTP: its tables are compared with the code, its statements with tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from penstock.config.load import from_mapping
from penstock.config.paths import PathKind
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.retry import RetryBudget, final_reason, may_retry
from penstock.core.values.rows import Allowance, Left
from penstock.gateway.openai import errors as wire
from penstock.gateway.openai.errors import Api
from penstock.gateway.openai.routes import ROUTES
from penstock.gateway.proxy.headers import request_headers
from penstock.http.client.pool import UpstreamTimeouts
from penstock.http.server.server import ServerLimits
from tests.gateway.conftest import CHAT, Answer, World, chat, request

HERE = Path(__file__).parent
DOCUMENT = (HERE.parents[1] / "docs" / "behaviour.md").read_text()
Row = list[str]


def tables() -> list[tuple[str, list[Row]]]:
    """The tables that say by what they are checked."""
    found = re.findall(r"<!-- checked: (\w+) -->\n((?:\|.*\n)+)", DOCUMENT)
    return [(name, [row for line in text.splitlines()[2:] for row in rows_of(line)]) for name, text in found]


def rows_of(line: str) -> list[Row]:
    """A line's first cell may list several names that have the other cells in common."""
    first, *others = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return [[cell.strip("`") for cell in (name, *others)] for name in first.split(", ")]


def yes(value: object) -> str:
    return "yes" if value else "no"


# --- tables ------------------------------------------------------------------------------------------------------


def paths(rows: list[Row]) -> None:
    known = {path: ways["POST"] for path, ways in ROUTES.items()}
    told = {path: (kind, api, events) for path, kind, api, events in rows}
    assert told == {path: (way.kind.value, way.api.value, yes(way.events)) for path, way in known.items()}
    assert {way.kind for way in known.values()} == set(PathKind)


def request_header_rows(rows: list[Row]) -> None:
    when = {
        "always": {},
        "key": {"has_key": True},
        "unpacked": {"inflated": True},
        "ranked": {"ranked": True},
        "streamed": {"plain": True},
    }
    sent = [(name.encode(), b"x") for name, _ in rows if name != "connection"] + [(b"x-other", b"x")]

    def dropped(**more: bool) -> set[str]:
        facts: dict[str, bool] = {"inflated": False, **more}
        kept = {name for name, _ in request_headers(sent, api_key=None, request_id=b"r", **facts)}
        return {name.decode() for name, _ in sent if name not in kept}

    always = dropped()
    for reason, facts in when.items():
        told = {name for name, behind in rows if behind == reason and name != "connection"}
        assert dropped(**facts) - (always if facts else set()) == told, reason
    assert {behind for _, behind in rows} == set(when)


def response_header_rows(rows: list[Row]) -> None:
    left = Left(1, 1, 1.0)
    rates = {name.decode() for name, _ in wire.rate_limits(Allowance(left, left, left))}
    refusals = {name.decode() for r in Reason for name, _ in wire.refusal(Api.OPENAI, r, "x", retry_after_s=1.0)[1]}
    named = {name for name, _ in rows}
    assert rates | refusals - {"content-type"} <= named
    proxy = HERE.parents[1] / "src/penstock/gateway/proxy"
    source = "".join((proxy / f"{f}.py").read_text() for f in ("journey", "relay", "direct"))
    own = set(re.findall(r'\(b"(x-[a-z-]+)"', source))
    assert own <= named
    assert named <= own | rates | refusals


def settings(rows: list[Row]) -> None:
    for key, value, _ in rows:
        section, name = key.split(".")
        assert from_mapping({section: {name: value}}) == from_mapping({}), key


def failures(rows: list[Row]) -> None:
    assert [failure for failure, _, _ in rows] == [
        failure.value
        for failure in (
            Failure.CONNECT,
            Failure.STALE,
            Failure.RESET,
            Failure.SERVER_ERROR,
            Failure.BUSY,
            Failure.FIRST_BYTE_TIMEOUT,
            Failure.NOT_AN_ENGINE,
            Failure.KEY_REFUSED,
            Failure.MODEL_GONE,
            Failure.TOO_LONG,
            Failure.MODALITY,
            Failure.NO_PATH,
            Failure.NO_TOOLS,
            Failure.NO_FEATURE,
            Failure.BROKEN,
        )
    ]
    assert {failure for failure, _, _ in rows} == {failure.value for failure in Failure}
    for name, costs, end in rows:
        tried = 1
        while may_retry(Failure(name), attempts=tried, attempts_max=4, budget=RetryBudget(1.0)):
            tried += 1
            if tried > 9:
                break
        attempts = {"an attempt": 4, "an attempt, two at most": 2, "never tried again": 1}.get(costs, 10)
        assert tried == attempts, name
        reason = final_reason(Failure(name))
        in_stream = reason is Reason.STREAM_BROKEN
        assert ("error event" in end) if in_stream else (str(reason.status) in end), name


def errors(rows: list[Row]) -> None:
    sent = [reason for reason in Reason if reason.status != 499]
    assert sorted(row[0] for row in rows) == sorted(sent)
    for code, status, retry_after, *types in rows:
        reason = Reason(code)
        assert status == ("in the stream" if reason is Reason.STREAM_BROKEN else str(reason.status))
        assert retry_after == yes(reason.retryable)
        bodies = [json.loads(wire.error_body(api, reason, "x")) for api in (Api.OPENAI, Api.ANTHROPIC, Api.TGI)]
        told = [bodies[0]["error"]["type"], bodies[1]["error"]["type"], bodies[2]["error_type"]]
        assert types == told, code


CHECKS: dict[str, Callable[[list[Row]], None]] = {
    "paths": paths,
    "request_headers": request_header_rows,
    "response_headers": response_header_rows,
    "settings": settings,
    "failures": failures,
    "errors": errors,
}


def test_every_table_matches_the_code() -> None:
    found = tables()
    assert {name for name, _ in found} == set(CHECKS)
    for name, rows in found:
        assert rows, name
        CHECKS[name](rows)


# --- statements --------------------------------------------------------------------------------------------------


def statements() -> list[str]:
    """The points of all lists, each with the comment that names its tests."""
    return [point.strip() for point in re.findall(r"^- (.*(?:\n  .*)*)", DOCUMENT, re.MULTILINE)]


def test_every_statement_is_held_by_tests_that_exist() -> None:
    assert len(statements()) > 50
    sources: dict[str, str] = {}
    for path in HERE.parent.rglob("test_*.py"):
        name = path.stem.removeprefix("test_")
        sources[name] = sources.get(name, "") + path.read_text()
    for statement in statements():
        held = re.search(r"<!-- (.*) -->$", statement, re.DOTALL)
        assert held is not None, f"no test is named for: {statement}"
        for name in held[1].split(","):
            file, _, test = name.strip().partition("::")
            assert re.search(rf"^(?:async )?def {test}\(", sources[file], re.MULTILINE), name


def test_the_numbers_that_cannot_be_set_are_the_codes() -> None:
    limits, upstream = ServerLimits(), UpstreamTimeouts()
    for told in (
        f"closed after {limits.first_request_timeout_s:g} s",
        f"closed after {upstream.idle_s:g} s",
        f"more than {limits.header_count_max} lines",
        f"{limits.pipelined_bytes_max // 1024} KiB ahead",
        "at least every 15 s",
        "at most 128 bytes",
    ):
        assert told in DOCUMENT.replace("\n  ", " "), told


# --- what no other file holds ------------------------------------------------------------------------------------


def judged(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.error()["code"]) == (status, code)


async def test_a_slow_head_is_a_408(world: World) -> None:
    await world.gateway(timeouts={"client_header": 0.2})
    client = await world.client(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: ")
    judged(await client.answer(), 408, "client_timeout")
    assert await client.rest() == b""


async def test_an_idle_client_connection_is_kept_and_announced_for_the_configured_time(world: World) -> None:
    await world.gateway(timeouts={"client_idle": "1s"})
    client = await world.client(request("GET", "/health"))
    assert (await client.answer()).header("keep-alive") == "timeout=1"
    assert await client.rest() == b""


async def test_a_client_that_expects_100_continue_gets_it(world: World) -> None:
    await world.engine()
    await world.gateway()
    data = request(headers={"expect": "100-continue"}, body=chat())
    head, _, body = data.partition(b"\r\n\r\n")
    client = await world.client(head + b"\r\n\r\n")
    assert (await client.head()).status == 100
    client.send(body)
    assert (await client.answer()).status == 200


async def test_a_refusal_comes_instead_of_a_continue(world: World) -> None:
    await world.gateway(limits={"max_body": "1KiB"})
    for path, length, status, code in (("/nowhere", 5, 404, "path_not_found"), (CHAT, 5000, 413, "request_too_large")):
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        judged(await (await world.client(head.encode())).answer(), status, code)


async def test_bodies_in_transfer_are_bounded_like_the_queue(world: World) -> None:
    await world.gateway(queue={"max_bytes": "1MiB"}, limits={"max_body": "1MiB"})
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n".encode()
    slow = await world.client(head + b"x" * 600_000)
    await world.until(lambda: world.gate.server.bodies_bytes == 600_000)
    refused = await (await world.client(head + b"x" * 600_000)).answer()
    judged(refused, 429, "overload")
    assert refused.header("retry-after") == "1"
    slow.hang_up()
    await world.until(lambda: world.gate.server.bodies_bytes == 0)
