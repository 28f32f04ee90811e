"""One client's answer, written from the engine's tokens.

Tokens are only counted when the engine makes them; `pump` writes those not yet sent, and stops while the client reads
too slowly. So a slow reader needs no buffer and never holds a slot. The exchange ends when its last byte is written or
its client is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.engine.values import EngineUsage, Progress
from penstock.sim.fake_engine.answers import DONE
from penstock.sim.fake_engine.calls import EngineCall, broken
from penstock.sim.fake_engine.http import EngineConnection
from penstock.sim.fake_engine.log import Fault, LogEntry


class EngineExchange:
    """A call under way. `leave` is called exactly once, when nothing more will be written."""

    __slots__ = (
        "_answer", "_begun", "_break", "_connection", "_end", "_error_after", "_muted", "_produced", "_sent", "_silent",
        "_stream", "engine_id", "entry", "leave",
    )  # fmt: skip

    def __init__(
        self,
        engine_id: str,
        connection: EngineConnection,
        call: EngineCall,
        entry: LogEntry,
        leave: Callable[[EngineExchange], None],
    ) -> None:
        self.engine_id = engine_id
        self.entry = entry
        self.leave = leave
        self._connection = connection
        self._answer = call.answer
        self._stream = call.stream
        self._end: Progress | None = None
        self._produced = self._sent = 0
        self._begun = self._muted = False
        self._silent: frozenset[str] = frozenset()  # missing parts: `ANSWER_FAULTS`
        self._error_after: int | None = None
        self._break = self._error
        connection.on_gone = self._gone
        connection.on_writable = self.pump

    def lacks(self, kinds: frozenset[str]) -> None:
        """Leave the parts named in `kinds` out of the answer."""
        self._silent = kinds
        self._stream = self._stream and "no_stream" not in kinds
        self._answer.tells_usage = "no_usage" not in kinds

    def _reason(self, end: Progress) -> str | None:
        return None if "no_finish_reason" in self._silent else end.finish_reason

    def misbehave(self, fault: Fault) -> None:
        """Break the answer after some bytes of its body, by `fault`."""
        assert fault.after_bytes is not None
        if fault.kind in ("error", "abort"):
            self._error_after = fault.after_bytes
            self._break = self._error if fault.kind == "error" else self._abort
        elif fault.kind == "hang":
            self._connection.cut_after(fault.after_bytes, self._hang)
        elif fault.kind == "die":
            self._connection.cut_after(fault.after_bytes, self._die)

    def progress(self, event: Progress, unix_s: float) -> None:
        entry = self.entry
        self._produced += event.tokens
        entry.tokens = self._produced
        if event.usage is not None:
            entry.cached_tokens = event.usage.cached_tokens
        if event.first:
            entry.first_token = unix_s
        if event.finish_reason is not None:
            self._end = event
            entry.finished = unix_s
        self.pump()

    def pump(self) -> None:
        """Write the tokens not yet sent, as far as the client takes them."""
        if self._muted or (not self._stream and self._end is None):
            return
        if not self._stream:
            self._whole()
            return
        if not self._produced:
            return
        connection = self._connection
        if not self._begun:
            self._begun = True
            self.entry.status = 200
            connection.begin(200, "text/event-stream; charset=utf-8")
            if self._error_after == 0:
                self._break()
                return
            if head := self._answer.head():
                connection.chunk(head)
        plain = self._produced if self._end is None else self._produced - 1
        while self._sent < plain and not connection.paused and not self._muted:
            connection.chunk(self._answer.token(self._sent))
            self._sent += 1
            if self._error_after is not None and connection.body_bytes >= self._error_after:
                self._break()
        if self._end is not None and self._sent == plain and not connection.paused and not self._muted:
            self._last(self._end)

    def _whole(self) -> None:
        assert self._end is not None
        assert self._end.finish_reason is not None
        assert self._end.usage is not None
        self.entry.status = 200
        body = self._answer.whole(self._reason(self._end), self._end.usage)
        self._connection.respond(200, body)
        if not self._muted:  # a fault may have cut it short
            self._close("finished")

    def _last(self, end: Progress) -> None:
        assert end.finish_reason is not None
        assert end.usage is not None
        last = self._answer.last(self._sent, self._reason(end), end.usage)
        self._connection.chunk(last.removesuffix(DONE) if "no_done" in self._silent else last)
        if not self._muted:  # a fault may have cut the answer in this very chunk
            self._close("finished")
            self._connection.end()

    def _error(self) -> None:
        self._close("error")
        self._connection.chunk(b"data: %b\n\n" % broken().body() + DONE)
        self._connection.end()

    def _abort(self) -> None:
        """Ends like vLLM at shutdown: a running request with reason `abort`, a waiting one without."""
        self._close("aborted")
        last = self._answer.last(self._sent, "abort", EngineUsage(0, 0, self._sent)) if self._error_after else DONE
        self._connection.chunk(last)
        self._connection.end()

    def _hang(self) -> None:
        self._muted = True
        self.entry.outcome = "hung"

    def _die(self) -> None:
        self._close("died")
        self._connection.reset()

    def _gone(self) -> None:
        if not self._muted or self.entry.outcome == "hung":
            self._close("aborted")

    def _close(self, outcome: str) -> None:
        self._muted = True
        if self.entry.outcome == "open":
            self.entry.outcome = outcome
        self.leave(self)
