"""The engine's log and faults: what did it see of each request, and how shall it misbehave?

The log is a ring; `GET /sim/log` shows it. At most one fault of each sort is set at a time: for
inference requests, for `/metrics`, and for the pace of steps.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

import msgspec

LOG_ENTRIES_MAX = 10_000
LOG_BODY_BYTES_MAX = 4096  # larger bodies are told by size and checksum

INFERENCE_FAULTS = ("refuse", "hang", "busy", "error", "abort", "die")
METRICS_FAULTS = ("metrics_garbage", "metrics_hang", "metrics_freeze")
FAULT_KINDS = (*INFERENCE_FAULTS, "slow", *METRICS_FAULTS, "none")


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
    kv_transfer: str = ""  # promised, used, or stale: asked to use what did not fit
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


class FaultError(ValueError):
    """A fault that makes no sense; the message says what would."""


class Faults:
    def __init__(self) -> None:
        self._inference: Fault | None = None
        self._metrics: Fault | None = None
        self._slow: Fault | None = None

    @property
    def slow_factor(self) -> float:
        return (self._slow.factor or 1.0) if self._slow else 1.0

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
        if fault.kind == "slow" and not (fault.factor is not None and fault.factor > 0):
            raise FaultError("slow needs a factor above 0")
        return fault

    def set(self, fault: Fault) -> None:
        if fault.kind == "none":
            self._inference = self._metrics = self._slow = None
        elif fault.kind == "slow":
            self._slow = fault
        elif fault.kind in METRICS_FAULTS:
            self._metrics = fault
        else:
            self._inference = fault

    def for_inference(self) -> Fault | None:
        """The fault for the next inference request, counted down."""
        fault = self._inference
        if fault is not None and fault.count is not None:
            fault.count -= 1
            if fault.count == 0:
                self._inference = None
        return fault

    def for_metrics(self) -> Fault | None:
        fault = self._metrics
        if fault is not None and fault.count is not None:
            fault.count -= 1
            if fault.count == 0:
                self._metrics = None
        return fault

    def active(self) -> list[Fault]:
        return [fault for fault in (self._inference, self._slow, self._metrics) if fault is not None]
