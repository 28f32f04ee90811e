"""The engine's request log and faults.

The log is a ring; `GET /sim/log` shows it. There is at most one fault of each sort: for inference requests, `/metrics`,
the speed of steps, and the wait in front of the engine. `ANSWER_FAULTS` add up.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import fields
from typing import Any

import msgspec

from penstock.sim.engine.pages import TRUE, PageWays

LOG_ENTRIES_MAX = 10_000
LOG_BODY_BYTES_MAX = 4096  # of larger bodies only size and checksum are logged

INFERENCE_FAULTS = ("refuse", "hang", "busy", "error", "abort", "die")
ANSWER_FAULTS = ("no_stream", "no_usage", "no_done", "no_finish_reason")
METRICS_FAULTS = ("metrics_garbage", "metrics_hang", "metrics_freeze", "metrics_missing", "metrics_late", "metrics_lie")
FAULT_KINDS = (*INFERENCE_FAULTS, "slow", *METRICS_FAULTS, *ANSWER_FAULTS, "door", "none")
SORTS = ("inference", "slow", "door", "metrics", *ANSWER_FAULTS)  # at most one fault of each
SECONDS_MAX = 3600.0
COURSE_MAX = 1000
GAUGES_TO_SET = ("running", "waiting", "kv_usage")


class LogEntry(msgspec.Struct):
    """One inference request; times are unix seconds."""

    id: str
    path: str
    headers: dict[str, str]
    body: msgspec.Raw | None
    body_bytes: int
    body_sha256: str
    arrived: float
    model: str = ""
    stream: bool = False
    priority: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    kv_transfer: str = ""  # promised, used, or stale (the blocks did not match)
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None
    status: int | None = None
    outcome: str = "open"  # finished, aborted, rejected, refused, busy, error, hung, died


class RequestLog:
    def __init__(self) -> None:
        self.entries: deque[LogEntry] = deque(maxlen=LOG_ENTRIES_MAX)
        self.running_max = self.waiting_max = self.in_engine_max = 0

    def open(self, *, path: str, headers: dict[str, str], body: bytes, arrived: float) -> LogEntry:
        entry = LogEntry(
            id=headers.get("x-request-id", ""),
            path=path,
            headers=headers,
            body=_small_json(body),
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
            arrived=arrived,
        )
        self.entries.append(entry)
        return entry

    def saw(self, *, running: int, waiting: int) -> None:
        self.running_max = max(self.running_max, running)
        self.waiting_max = max(self.waiting_max, waiting)
        self.in_engine_max = max(self.in_engine_max, running + waiting)

    def clear(self) -> None:
        self.entries.clear()
        self.running_max = self.waiting_max = self.in_engine_max = 0


def _small_json(body: bytes) -> msgspec.Raw | None:
    if len(body) > LOG_BODY_BYTES_MAX:
        return None
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return msgspec.Raw(body)


class Fault(msgspec.Struct):
    kind: str
    count: int | None = None  # so many requests; None: until `none`
    after_bytes: int | None = None
    factor: float | None = None
    value: dict[str, Any] | None = None
    seconds: float | None = None
    course: list[tuple[float, float]] | None = None  # from when on, in seconds since it was set, and how much


def ways_of(fault: Fault) -> PageWays:
    """Returns a fault's effect on `/metrics`; `TRUE` for other faults."""
    value = fault.value or {}
    if fault.kind == "metrics_missing":
        return PageWays(missing=True)
    if fault.kind == "metrics_late":
        return PageWays(late_s=fault.seconds or 0.0)
    if fault.kind == "metrics_freeze":
        if any(name not in GAUGES_TO_SET or not isinstance(number, int | float) for name, number in value.items()):
            raise FaultError(f"value may set the numbers {', '.join(GAUGES_TO_SET)}")
        return PageWays(frozen=True, **{f"frozen_{name}": number for name, number in value.items()})
    if fault.kind != "metrics_lie":
        return TRUE
    unknown = set(value) - {field.name for field in fields(PageWays)}
    if unknown or not value:
        known = ", ".join(field.name for field in fields(PageWays))
        raise FaultError(f"metrics_lie needs a value of {known}")
    try:
        return msgspec.convert(value, PageWays)
    except msgspec.ValidationError as error:
        raise FaultError(str(error)) from error


class FaultError(ValueError):
    """An invalid fault; the message explains it."""


class Faults:
    def __init__(self) -> None:
        self._set: dict[str, tuple[Fault, float]] = {}  # by sort, and since when

    def slow_factor(self, now: float) -> float:
        """Returns the factor of a step that begins now."""
        fault, since_s = self._set.get("slow", (None, 0.0))
        return 1.0 if fault is None else _at(fault, now - since_s, fault.factor or 1.0)

    def door_s(self, now: float) -> float:
        """Returns the wait of a request that arrives now, in front of the engine."""
        since_s = self._set["door"][1] if "door" in self._set else 0.0
        fault = self._next("door")
        return 0.0 if fault is None else _at(fault, now - since_s, fault.seconds or 0.0)

    def read(self, raw: bytes) -> Fault:
        try:
            fault = msgspec.json.decode(raw, type=Fault)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FaultError(f"{error}; kind is one of {', '.join(FAULT_KINDS)}") from error
        if fault.kind not in FAULT_KINDS:
            raise FaultError(f"unknown kind {fault.kind!r}; kind is one of {', '.join(FAULT_KINDS)}")
        if fault.count is not None and fault.count < 1:
            raise FaultError("count must be at least 1")
        if fault.after_bytes is not None and fault.after_bytes < 0:
            raise FaultError("after_bytes must not be negative")
        if fault.kind == "abort" and fault.after_bytes is None:
            raise FaultError("abort needs after_bytes; 0: as one that still waited in the engine")
        _check_course(fault)
        if fault.kind == "slow" and not fault.course and not (fault.factor is not None and fault.factor > 0):
            raise FaultError("slow needs a factor above 0, or a course of them")
        if fault.kind == "metrics_late" and fault.seconds is None:
            raise FaultError("metrics_late needs seconds")
        if fault.kind == "door" and fault.seconds is None and not fault.course:
            raise FaultError("door needs seconds, or a course of them")
        return fault

    def set(self, fault: Fault, now: float) -> None:
        if fault.kind == "none":
            self._set.clear()
        elif fault.kind in METRICS_FAULTS:
            self._set["metrics"] = fault, now
        elif fault.kind in INFERENCE_FAULTS:
            self._set["inference"] = fault, now
        else:
            self._set[fault.kind] = fault, now

    def for_inference(self) -> Fault | None:
        """Returns the fault for the next inference request, if any, and counts it down."""
        return self._next("inference")

    def for_answer(self) -> frozenset[str]:
        """Returns the parts that the next answer lacks. Each of these faults then has one answer less to spoil."""
        return frozenset([kind for kind in ANSWER_FAULTS if self._next(kind) is not None])

    def for_metrics(self) -> Fault | None:
        return self._next("metrics")

    def active(self) -> list[Fault]:
        return [self._set[sort][0] for sort in SORTS if sort in self._set]

    def _next(self, sort: str) -> Fault | None:
        """Returns the fault of a sort, if any, and counts one use of it."""
        fault, _ = self._set.get(sort, (None, 0.0))
        if fault is not None and fault.count is not None:
            fault.count -= 1
            if not fault.count:
                del self._set[sort]
        return fault


def _at(fault: Fault, after_s: float, at_first: float) -> float:
    """Returns the value of a fault's course at a time after it was set."""
    value = at_first
    for from_s, following in fault.course or ():
        if from_s > after_s:
            break
        value = following
    return value


def _check_course(fault: Fault) -> None:
    lowest = 0.0 if fault.kind == "door" else 1e-6
    course = fault.course or []
    if fault.seconds is not None and not 0 <= fault.seconds <= SECONDS_MAX:
        raise FaultError(f"seconds must be between 0 and {SECONDS_MAX:g}")
    if len(course) > COURSE_MAX or any(from_s < 0 or value < lowest for from_s, value in course):
        raise FaultError(f"a course is up to {COURSE_MAX} pairs: from how many seconds on, and how much")
    if course != sorted(course):
        raise FaultError("a course is in order of time")
