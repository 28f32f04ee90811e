"""How does the page for Prometheus come into being without holding anybody up, however many series there are?

A page of 87,000 series takes a second to make with prometheus_client, all of it on the loop, and anybody may ask. So
it is written line by line, a slice of the loop's time at once, by sources that give their lines as they are asked for
them. A page begins after the question for it: scrapes that come while one is made share the next one. And pages take no
more than a tenth of the CPU time: past that the last one is given again, until it is as old as a scrape is from the
next.

The text is prometheus_client's (text format 0.0.4); a test compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from prometheus_client.utils import floatToGoString

from penstock import clock

SLICE_S = 0.004  # of the loop at once: a fifth of what a stream's reader could notice
LINES_AT_ONCE = 64  # between two looks at the clock
TIME_SHARE = 0.1  # of a CPU for making pages
BURST_S = 0.25  # of CPU for making, before that share counts: a page made on each of a hundred questions in a row
KEPT_S_MAX = 15.0  # Prometheus asks every 15 s or more rarely, as people set it
Row = TypeVar("Row")
_EXACT_MAX = 1e6  # from there on Go writes exponents


class SeriesSource(Protocol):
    """Something that has series."""

    def lines(self) -> Iterator[str]: ...


def head(name: str, text: str, kind: str) -> str:
    """The two lines above a family's samples."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def labels_of(names: Sequence[str], values: Sequence[object]) -> str:
    """`a="x",b="y"`, by name."""
    return ",".join([f'{name}="{_escaped(str(value))}"' for name, value in sorted(zip(names, values, strict=True))])


def sample(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"


def number(value: float) -> str:
    """As Go writes it."""
    value = float(value)
    return repr(value) if 0.0 <= value < _EXACT_MAX else str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Levels:
    """A family whose values are read when they are printed. `kind`: by the name, if none is given."""

    def __init__(
        self,
        name: str,
        text: str,
        names: Sequence[str],
        values: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
        kind: str = "",
    ) -> None:
        self._head = head(name, text, kind or ("counter" if name.endswith("_total") else "gauge"))
        self._name = name
        self._names = names
        self._values = values

    def lines(self) -> Iterator[str]:
        yield self._head
        for key, value in self._values():
            yield sample(self._name, labels_of(self._names, key), value)


def level(name: str, text: str, value: float) -> Iterator[str]:
    """A family with one value."""
    return Levels(name, text, [], lambda: [((), value)]).lines()


def columns(
    prefix: str,
    label: str,
    table: Iterable[tuple[str, str, Callable[[Row], float]]],
    rows: Callable[[], Iterable[tuple[str, Row]]],
    kind: str = "",
) -> list[Levels]:
    """Families with one label, whose values are columns of the same rows: name, help, value of a row."""

    def family(name: str, text: str, value: Callable[[Row], float]) -> Levels:
        return Levels(prefix + name, text, [label], lambda: (((key,), value(row)) for key, row in rows()), kind)

    return [family(*column) for column in table]


class Page:
    """Makes the page, in slices, and keeps it a while."""

    def __init__(
        self, lines: Callable[[], Iterator[str]], now: Callable[[], float], cpu: Callable[[], float] = clock.cpu
    ) -> None:
        self._lines = lines
        self._now = now
        self._cpu = cpu
        self._answers: list[Callable[[bytes], None]] = []  # they get the page under way
        self._next: list[Callable[[bytes], None]] = []  # they came after its beginning
        self._made = b""
        self._begun_s = 0.0  # when the page that was made last, or is under way, was begun
        self._taken_s = 0.0  # of the CPU time for making, as of `_looked_s`; what is paid back leaves
        self._looked_s = 0.0
        self._cost_s = 0.0  # of the page under way

    def ask(self, answer: Callable[[bytes], None]) -> None:
        """Answer with a page that begins now, or with the last one if pages cost too much lately."""
        self._ask([answer])

    def _ask(self, answers: list[Callable[[bytes], None]]) -> None:
        if self._answers:
            self._next += answers
            return
        now = self._now()
        self._taken_s = max(0.0, self._taken_s - (now - self._looked_s) * TIME_SHARE)
        self._looked_s = now
        if self._made and self._taken_s > BURST_S and now - self._begun_s < KEPT_S_MAX:
            self._give(answers)
            return
        self._answers, self._begun_s, self._cost_s = answers, now, 0.0
        self._step(self._lines(), [])

    def _give(self, answers: list[Callable[[bytes], None]]) -> None:
        for answer in answers:
            answer(self._made)

    def _step(self, lines: Iterator[str], pieces: list[bytes]) -> None:
        began_s = now = self._now()
        began_cpu_s = self._cpu()
        done = False
        while not done and now - began_s < SLICE_S:
            piece = list(islice(lines, LINES_AT_ONCE))
            done = len(piece) < LINES_AT_ONCE
            pieces.append("".join(piece).encode())
            now = self._now()
        self._cost_s += self._cpu() - began_cpu_s
        if done:
            self._finished(b"".join(pieces))
        else:
            asyncio.get_running_loop().call_soon(self._step, lines, pieces)

    def _finished(self, page: bytes) -> None:
        self._taken_s += self._cost_s
        self._made = page
        answers, self._answers = self._answers, []
        following, self._next = self._next, []
        self._give(answers)
        if following:
            self._ask(following)
