"""Reading recorded sessions of coding agents.

A session is a list of turns, one request each: a prompt that mostly begins with the whole prompt before it, an answer,
and the time that the agent's tools and its user took before the turn. Sub-agents start beside their parent and have
turns of their own. Two forms of the same record: *Weka JSON* (`requests` with `hash_ids`, one id per block of the
prompt; a folder of files, one file, or one session a line), and *packed* (one session a line; `hash_ids` tells how many
leading blocks are kept from the request before, and runs of ids). Ids are known within their session only.

Blocks are chained here: a block's number stands for the prompt up to its end, as in an engine's cache, and several
small blocks make one of `BLOCK_TOKENS`. A session's turns are made when it begins, so memory stays flat.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.sim.traces.trace import BLOCK_TOKENS, GZIP_MAGIC, TOKENS_MAX, TraceError

SESSIONS_MAX = 100_000
FILE_BYTES_MAX = 1 << 30  # unpacked; 700 sessions are 300 MB as Weka JSON
GAP_S_MAX = 30 * 86_400.0  # a longer one is a broken stamp

Count = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class RecordedTurn(msgspec.Struct, frozen=True):
    """One request of a session or of a sub-agent."""

    prompt_tokens: int
    output_tokens: int
    think_s: float  #: from the end of the turn before
    blocks: tuple[int, ...]  #: of the prompt's full blocks, chained; numbered within the session from 1
    agents: tuple[SubAgent, ...] = ()  #: started after this turn, before the next


class SubAgent(msgspec.Struct, frozen=True):
    """A sub-agent of a session."""

    delay_s: float  #: from the end of its parent's turn to its first request
    joined: bool  #: the parent's next turn came after its end
    turns: tuple[RecordedTurn, ...]


class _Packed(msgspec.Struct):
    keep: Count = 0
    runs: list[tuple[int, Count]] = []


class _Request(msgspec.Struct):
    type: str = "n"
    t: float = 0.0
    prompt: Count = msgspec.field(name="in", default=0)
    out: Count = 0
    think_time: float | None = None
    api_time: float | None = None
    duration_ms: float | None = None
    hash_ids: _Packed | list[int] | None = None
    requests: list[_Request] | None = None

    @property
    def end_s(self) -> float:
        return self.t + (self.api_time or (self.duration_ms or 0.0) / 1000.0)


class RecordedSession(msgspec.Struct):
    """One session as recorded."""

    id: str
    requests: list[_Request]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_TOKENS)] = 64

    @property
    def longest_tokens(self) -> int:
        """The longest prompt with its answer, sub-agents included."""
        return _longest(self.requests)

    def turns(self) -> tuple[RecordedTurn, ...]:
        """Returns the session's turns, with their sub-agents."""
        return _turns(self.requests, _Chain(BLOCK_TOKENS // self.block_size))


_session = msgspec.json.Decoder(RecordedSession).decode
_sessions = msgspec.json.Decoder(list[RecordedSession]).decode


def read(path: Path, context_max: int = TOKENS_MAX) -> list[RecordedSession]:
    """Returns the sessions of a file or folder whose longest prompt and answer fit `context_max` tokens.

    Raises `TraceError`, which names the file and the line, and if no session is left.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    found: list[RecordedSession] = []
    kept = 0
    for file in files:
        for session in _read_file(file):
            if BLOCK_TOKENS % session.block_size:
                raise TraceError(
                    f"{file}: {session.id} has blocks of {session.block_size}, no divisor of {BLOCK_TOKENS}"
                )
            kept += 1
            if kept > SESSIONS_MAX:
                raise TraceError(f"{path} has more than {SESSIONS_MAX} sessions")
            if 0 < session.longest_tokens <= context_max:
                found.append(session)
    if not found:
        raise TraceError(f"{path} has no session of up to {context_max:,} tokens")
    return found


def is_sessions(path: Path) -> bool:
    """True for a folder, or a file whose beginning looks like a session."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            start = (gzip.GzipFile(fileobj=file) if zipped else file).read(4096)
    except (OSError, EOFError, zlib.error):
        return False  # the reader of other formats says what is wrong
    return b'"requests"' in start and start.lstrip()[:1] in (b"{", b"[")


def _read_file(path: Path) -> Iterator[RecordedSession]:
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            text = (gzip.GzipFile(fileobj=file) if zipped else file).read(FILE_BYTES_MAX + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} can't be unpacked: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error.strerror or error}") from None
    if len(text) > FILE_BYTES_MAX:
        raise TraceError(f"{path} is longer than {FILE_BYTES_MAX:,} bytes")
    whole = path.suffixes[-2:] in ([".json"], [".json", ".gz"]) or path.suffix == ".json"
    if whole:
        yield from _decoded(path, None, text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield from _decoded(path, number, line)


def _decoded(path: Path, number: int | None, text: bytes) -> list[RecordedSession]:
    try:
        return _sessions(text) if text.lstrip()[:1] == b"[" else [_session(text)]
    except msgspec.DecodeError as error:  # validation errors are of this kind too
        where = path if number is None else f"{path}, line {number}"
        raise TraceError(f"{where}: {error}") from None


def _longest(requests: Sequence[_Request]) -> int:
    longest = 0
    for request in requests:
        longest = max(longest, request.prompt + request.out, _longest(request.requests or ()))
    return longest


class _Chain:
    """Numbers the blocks of one session: equal numbers are equal prompts up to the block's end."""

    def __init__(self, small: int) -> None:
        self._small = small  # recorded blocks in one of ours
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def blocks(self, ids: list[int], keep: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the numbers of a prompt's full blocks; the first `keep` ids are those of `before`."""
        small, known = self._small, self._known
        made = list(before[: keep // small])
        for start in range(len(made) * small, len(ids) - small + 1, small):
            key = (made[-1] if made else 0, tuple(ids[start : start + small]))
            made.append(known.setdefault(key, len(known) + 1))
        return tuple(made)


def _turns(requests: list[_Request], chain: _Chain) -> tuple[RecordedTurn, ...]:
    """Makes the turns of one list of requests. Sub-agents recorded before the first turn go with it."""
    turns: list[RecordedTurn] = []
    agents: list[list[SubAgent]] = []
    ids: list[int] = []
    blocks: tuple[int, ...] = ()
    end_s = 0.0
    ordered = [request for request in requests if request.requests is None and request.prompt > 0]
    for request in ordered:
        ids, keep = _ids(request, ids)
        blocks = chain.blocks(ids, keep, blocks)[: request.prompt // BLOCK_TOKENS]
        think_s = request.think_time if request.think_time is not None else request.t - end_s
        think_s = min(max(0.0, think_s), GAP_S_MAX) if turns else 0.0
        turns.append(RecordedTurn(request.prompt, max(1, request.out), think_s, blocks))
        agents.append([])
        end_s = request.end_s
    for request in requests:
        if request.requests is not None and turns:
            at = max(0, sum(1 for turn in ordered if turn.t <= request.t) - 1)
            delay_s = min(max(0.0, request.t - ordered[at].end_s), GAP_S_MAX)
            joined = at + 1 < len(ordered) and request.end_s <= ordered[at + 1].t
            if inside := _turns(request.requests, chain):
                agents[at].append(SubAgent(delay_s, joined, inside))
    return tuple(
        msgspec.structs.replace(turn, agents=tuple(beside)) if beside else turn
        for turn, beside in zip(turns, agents, strict=True)
    )


def _ids(request: _Request, before: list[int]) -> tuple[list[int], int]:
    """Returns a request's block ids, and how many leading ones it shares with the request before."""
    told = request.hash_ids
    if told is None:
        return [], 0
    if isinstance(told, _Packed):
        keep = min(told.keep, len(before))
        runs = [first + i for first, length in told.runs for i in range(length)]
        return before[:keep] + runs, keep
    keep = 0
    for mine, other in zip(told, before, strict=False):
        if mine != other:
            break
        keep += 1
    return told, keep
