"""Input files, line by line: what is accepted, and every way in which a line can be no request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.batch.input_file import InputReader, read_line
from penstock.batch.states import OPEN, TRANSITIONS, BatchEvent, Status, after, is_open, may
from penstock.batch.values import LineProblem, NewItem
from penstock.batch.window import window_s

PROBLEMS_MAX = 1000

CHAT = "/v1/chat/completions"


def line(custom_id: Any = "a", model: Any = "sim", **more: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more.pop("body", {})}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **more}


def file_of(*lines: dict[str, Any] | bytes) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def read(data: bytes, *, step: int | None = None, **settings: Any) -> tuple[InputReader, list[NewItem]]:
    items: list[NewItem] = []
    reader = InputReader(
        urls=lambda url: url in (CHAT, "/v1/embeddings"),
        **{"lines_max": 100, "line_bytes_max": 10_000, "on_item": items.append, **settings},
    )
    for at in range(0, len(data), step or len(data) or 1):
        reader.feed(data[at : at + (step or len(data))])
    reader.end()
    return reader, items


def problems(data: bytes, **settings: Any) -> list[tuple[str, int | None]]:
    reader, _ = read(data, **settings)
    return [(problem.code, problem.line) for problem in reader.problems]


@pytest.mark.parametrize("step", [1, 2, 7, 100, None])
def test_items_are_found_for_any_split_of_the_bytes(step: int | None) -> None:
    data = file_of(line("a"), b"", line("b", "other"), b"  ", line("c€"))[:-1]  # the last line needs no break
    reader, items = read(data, step=step)
    assert reader.problems == []
    assert [(item.line, item.custom_id, item.model) for item in items] == [
        (1, "a", "sim"),
        (3, "b", "other"),
        (5, "c€", "sim"),
    ]
    for item in items:
        assert read_line(data[item.at : item.at + item.size]).custom_id == item.custom_id
    assert reader.models == {"sim": 1, "other": 3}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"not json", "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (b'{"custom_id": "x"', "invalid_json_line"),
        (b"[" * 5000, "invalid_json_line"),
        (b"\x00\x01\xfe\xff", "invalid_json_line"),
        (json.dumps(line("x")).encode().replace(b"hello", b"\xff"), "invalid_encoding"),
        (json.dumps(line("x")).encode() + b"\r", "invalid_line_ending"),
        (b"\r", "invalid_line_ending"),
        (b"x" * 20_000, "line_too_large"),
        (line("a"), "duplicate_custom_id"),
        (line(None), "missing_required_parameter"),
        (line(""), "missing_required_parameter"),
        (line(7), "missing_required_parameter"),
        (line("x" * 600), "invalid_custom_id"),
        (line("a\0b"), "invalid_custom_id"),
        (line("x", method="GET"), "invalid_method"),
        (line("x", url=None), "missing_required_parameter"),
        (line("x", url="/v1/nothing"), "invalid_url"),
        (line("x", url="/v1/embeddings"), "mismatched_url"),
        (line("x", body={"stream": True}), "stream_unsupported"),
        *((line("x", body={"model": "sim", "background": on}), "background_unsupported") for on in (True, "true", 1)),
        (line("x", None), "missing_required_parameter"),
        (line("x", ["sim"]), "missing_required_parameter"),
        (line("x", "m" * 300), "invalid_model"),
        ({"custom_id": "x", "method": "POST", "url": CHAT}, "missing_required_parameter"),
        ({"custom_id": "x", "method": "POST", "url": CHAT, "body": "text"}, "invalid_body"),
    ],
)
def test_a_wrong_line_is_named(wrong: dict[str, Any] | bytes, code: str) -> None:
    data = file_of(line("a"), wrong, line("b"))
    assert problems(data, endpoint=CHAT) == [(code, 2)]
    assert problems(data, endpoint=CHAT, step=11) == [(code, 2)]


def test_a_byte_order_mark_is_named() -> None:
    assert problems(b"\xef\xbb\xbf" + file_of(line("a"), line("b"))) == [("byte_order_mark", 1)]


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n"])
def test_a_file_without_requests_is_empty(data: bytes) -> None:
    assert problems(data) == [("empty_file", None)]


def test_all_wrong_lines_are_named_up_to_a_bound() -> None:
    some = file_of(*(line(str(n)) if n % 2 else b"no" for n in range(1, 21)))
    assert problems(some) == [("invalid_json_line", n) for n in range(2, 21, 2)]
    many, _ = read(b"no\n" * (PROBLEMS_MAX + 500), lines_max=10_000)
    assert len(many.problems) == PROBLEMS_MAX + 1
    assert many.problems[-1] == LineProblem(
        "more_errors", f"500 more lines have problems; only the first {PROBLEMS_MAX} are listed."
    )


def test_lines_and_models_are_bounded() -> None:
    data = file_of(*(line(str(n)) for n in range(10)))
    assert problems(data, lines_max=8) == [("too_many_lines", 9)]
    assert problems(file_of(*(line(str(n), f"m{n}") for n in range(101))), lines_max=200) == [("too_many_models", 101)]


def test_prompts_that_begin_alike_stand_together() -> None:
    def key(system: str, user: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return read_line(json.dumps(line("a", body={"messages": messages})).encode()).prefix

    long, other = "You are kind. " * 300, "You are brief. " * 300
    assert key(long, "one") == key(long, "two") != key(other, "one")
    assert key("You are kind. " * 30, "one") >> 32 == key(long, "one") >> 32
    assert 0 <= key(long, "one") < 2**63


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86_400.0), ("90s", 90.0), ("7d", 604_800.0), ("1d12h", 129_600.0), ("15m", 900.0)]
    + [(wrong, None) for wrong in ("", "0s", "24", "h", "1w", "-1h", "9999999d", "1h ", "١h", 24, None)],
)
def test_a_window_has_any_length(text: object, seconds: float | None) -> None:
    assert window_s(text) == seconds


def test_every_state_is_reached_and_those_that_are_left_are_open() -> None:
    reached = {Status.VALIDATING, *TRANSITIONS.values()}
    assert reached == set(Status)
    assert {status for status, _ in TRANSITIONS} == set(OPEN) == {status for status in Status if is_open(status)}
    assert after(Status.VALIDATING, BatchEvent.VALID) is Status.IN_PROGRESS
    assert not may(Status.COMPLETED, BatchEvent.CANCEL)


@pytest.mark.parametrize("body", [{"stream": False, "background": False}, {"stream": None, "background": None}])
def test_what_is_switched_off_is_no_problem(body: dict[str, Any]) -> None:
    assert problems(file_of(line("a", body=body)), endpoint=CHAT) == []
