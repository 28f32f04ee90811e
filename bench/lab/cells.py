"""The matrix: which strange engines are there, and under which load is each of them put?

A cell's name says which group it belongs to: `grid/` crosses slots, step times and lengths of answers on plain engines;
every other group takes a few engines of different sizes and makes one thing about them odd. Cells of `flood/` have a
light tenant (far under its share) beside the load. No cell asks for more answers a second than `ANSWERS_PER_S_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from bench.capacity import requests_per_s
from bench.lab import pages
from bench.lab.pages import PAGES
from penstock.sim.engine.profiles import PROFILES, EngineConfig
from penstock.sim.engine.strange import PLAIN, Course, Strange


def stalls(every_s: float, for_s: float, step_s: float, until_s: float) -> Course:
    """Returns a course of speeds: every `every_s` seconds one step of `step_s` takes `for_s`, up to `until_s`."""
    course: list[tuple[float, float]] = []
    at_s = every_s
    while at_s < until_s:
        course += [(at_s, for_s / step_s), (at_s + step_s, 1.0)]
        at_s += every_s
    return tuple(course)


QUEUE_MAX: Final = 4.0  # requests in an engine beyond its slots, 99th percentile
WARM_S: Final = 10.0  # the time that the gateway has to find out
WINDOW_S: Final = 20.0  # the time that is measured, at least
WINDOW_S_MAX: Final = 240.0
TOKENS_PER_S_DEAR: Final = 20_000  # simulated a second: such a cell is measured for half as long
LIGHT_SAMPLES: Final = 200  # first tokens of a light tenant: the 99th percentile is the second of them from the top
LIGHT_ANSWER: Final = 20
FLOOD_CLIENTS: Final = 3.0  # per slot
CLIENTS_MORE: Final = 12  # than slots: enough for a queue that would be too long
LIGHT_SHARE: Final = 0.1  # of the slots that the light tenant would use alone
LONG_PROMPT: Final = 8_000  # tokens
ANSWERS_PER_S_MAX: Final = 1_000  # more than a gateway in Python sends, and more than an engine of this size answers


class CellLoad(StrEnum):
    """Which load an engine gets."""

    CLOSED = "closed"  #: a fixed number of clients; each asks again when it was answered
    FLOOD = "flood"  #: three clients a slot, and a light tenant beside them
    OPEN = "open"  #: arrivals at random, at a share of what the engines can do


@dataclass(frozen=True)
class Cell:
    """One strange engine (or several) under one load."""

    name: str
    slots: int = 64
    step_s: float | None = 0.02  #: None: as the profile `default`, where prompts cost time
    answer: int = 100  #: tokens on average
    prompt: int = 100
    strange: Strange = PLAIN
    others: tuple[Strange, ...] = ()  #: more engines of the same size
    load: CellLoad = CellLoad.CLOSED
    clients: float = 1.5  #: per slot, in a closed loop
    streamed: bool = True  #: what clients ask for
    half_whole: bool = False  #: every other client of a closed loop does not ask for a stream
    share: float = 0.5  #: of the capacity, where arrivals are open
    deadline_s: float | None = None  #: of first tokens; goals are then the deadlines, not the throughput
    long_share: float = 0.0  #: of requests have prompts longer by `LONG_PROMPT`
    foreign: float = 0.0  #: clients per slot that go past the gateway
    picture_bytes: int = 0  #: of every other request, in base64
    documents: int = 0  #: that prompts begin with; 0: prompts share nothing
    late_share_max: float | None = None  #: the share of requests whose first token may take over 3 s
    window_s: float = WINDOW_S
    small: bool = False  #: `make test-all` runs it, too

    @property
    def engines(self) -> tuple[Strange, ...]:
        return (self.strange, *self.others)

    @property
    def clients_each(self) -> int:
        """Clients for each engine: enough that some always wait, unless the cell is about too few clients."""
        if self.load is CellLoad.FLOOD:
            return round(FLOOD_CLIENTS * self.slots)
        clients = max(1, round(self.clients * self.slots))
        return clients if self.clients < 1.0 else max(clients, self.slots + CLIENTS_MORE)

    @property
    def config(self) -> EngineConfig:
        """Every engine's size and speed. Its memory is never the bound."""
        blocks = max(8192, self.slots * (4 * self.answer + 2 * self.prompt) // 16 + 8192)
        budget = max(8192, self.slots)
        if self.step_s is not None:
            return EngineConfig(
                step_s=self.step_s, max_num_seqs=self.slots, max_num_batched_tokens=budget, kv_blocks=blocks
            )
        size = 512 if self.documents else 16
        return replace(
            PROFILES["default"],
            max_num_seqs=self.slots,
            block_size=size,
            kv_blocks=max(1, blocks * 16 // size),
        )

    @property
    def capacity_per_s(self) -> float:
        """Answers a second that one engine can do."""
        if self.step_s is not None:
            return self.slots / (self.answer * self.step_s)
        return requests_per_s(self.config, self.prompt + self.long_share * LONG_PROMPT, self.answer)

    @property
    def light_per_s(self) -> float:
        return LIGHT_SHARE * self.slots / (LIGHT_ANSWER * (self.step_s or 0.015))

    @property
    def turnover_max(self) -> float:
        """The share of an engine that can be used with at most `QUEUE_MAX` requests in the engine's own queue.

        A request that is sent when an answer ended begins one step later, unless it waits inside already. So with short
        answers a slot loses one step each, and only a queue as long as what ends in a step would help: the two goals
        are at odds.
        """
        return min(1.0, (self.slots + QUEUE_MAX) / self.slots * self.answer / (self.answer + 1))

    @property
    def measured_s(self) -> float:
        """How long a run is measured, in seconds after the warm-up."""
        if self.load is CellLoad.FLOOD:
            return min(WINDOW_S_MAX, max(self.window_s, LIGHT_SAMPLES / self.light_per_s))
        if self.step_s is not None and self.slots / self.step_s > TOKENS_PER_S_DEAR:
            return self.window_s / 2
        return self.window_s


# --- the engines that each oddity is tried on -------------------------------------------------------------------

SIZES: Final = (  # slots, step, answer
    (4, 0.05, 100),
    (64, 0.02, 100),
    (200, 0.1, 20),
)
SPEEDS: Final = {
    "slows-4x": Strange(speeds=((15.0, 4.0),)),
    "quickens-4x": Strange(speeds=((0.0, 4.0), (15.0, 1.0))),
    "wavers": Strange(speeds=tuple((5.0 * n, 3.0 if n % 2 else 1.0) for n in range(60))),
    "compiles-first": Strange(speeds=((0.0, 50.0), (3.0, 1.0))),
}
DOORS: Final = {
    "door-1s": Strange(doors=((0.0, 1.0),)),
    "door-jumps": Strange(doors=tuple((6.0 * n, 2.0 if n % 2 else 0.0) for n in range(50))),
}


def _sized(slots: int, step_s: float, answer: int) -> str:
    return f"{slots}x{step_s * 1000:g}ms/{answer}"


def _grid() -> Iterator[Cell]:
    for slots in (4, 8, 32, 64, 200, 512):
        for step_s in (0.005, 0.02, 0.05, 0.1, 0.2):
            for answer in (1, 4, 20, 100, 500, 2000):
                if slots / (step_s * answer) <= ANSWERS_PER_S_MAX:
                    yield Cell(f"grid/{_sized(slots, step_s, answer)}", slots, step_s, answer)


def _not_streamed() -> Iterator[Cell]:
    for slots, step_s, answer in (*SIZES, (64, 0.1, 1), (200, 0.05, 60), (512, 0.05, 500)):
        plain = Cell("", slots, step_s, answer)
        name = _sized(slots, step_s, answer)
        yield replace(plain, name=f"whole/not-asked/{name}", streamed=False)
        yield replace(plain, name=f"whole/half/{name}", half_whole=True)
        yield replace(plain, name=f"whole/never-streams/{name}", strange=Strange(streams=False))
        silent = Strange(streams=False, tells_usage=False, page=pages.MISSING)
        yield replace(plain, name=f"whole/says-nothing/{name}", strange=silent)


def _pages() -> Iterator[Cell]:
    for page, ways in PAGES.items():
        for slots, step_s, answer in SIZES:
            plain = Cell("", slots, step_s, answer, strange=Strange(page=ways), window_s=30.0)
            name = _sized(slots, step_s, answer)
            yield replace(plain, name=f"pages/{page}/{name}")
            yield replace(plain, name=f"pages/{page}/whole/{name}", streamed=False)
            yield replace(plain, name=f"flood/{page}/{name}", load=CellLoad.FLOOD)


def _floods() -> Iterator[Cell]:
    sizes = (*SIZES, (8, 0.1, 500), (8, 0.02, 20), (32, 0.2, 100), (64, 0.05, 2000), (200, 0.05, 60), (512, 0.05, 100))
    for slots, step_s, answer in sizes:
        plain = Cell(f"flood/plain/{_sized(slots, step_s, answer)}", slots, step_s, answer, load=CellLoad.FLOOD)
        yield plain
        yield replace(plain, name=f"flood/whole/{_sized(slots, step_s, answer)}", streamed=False)


def _odd() -> Iterator[Cell]:
    for group, ways in (("speeds", SPEEDS), ("doors", DOORS)):
        for oddity, strange in ways.items():
            for slots, step_s, answer in SIZES:
                name = f"{oddity}/{_sized(slots, step_s, answer)}"
                plain = Cell(f"{group}/{name}", slots, step_s, answer, strange=strange, window_s=40.0)
                yield plain
                yield replace(plain, name=f"flood/{name}", load=CellLoad.FLOOD)
    for slots, step_s, answer in SIZES:
        name = _sized(slots, step_s, answer)
        jumpy = Strange(speeds=stalls(5.0, 2.0, step_s, WINDOW_S_MAX))
        yield Cell(f"stalls/{name}", slots, step_s, answer, strange=jumpy, window_s=40.0)
        yield Cell(f"usage/never-told/{name}", slots, step_s, answer, strange=Strange(tells_usage=False))
        yield Cell(f"clients/fewer-than-slots/{name}", slots, step_s, answer, clients=0.8)
        yield Cell(f"clients/four-times/{name}", slots, step_s, answer, clients=4.0)
        yield Cell(f"others/half/{name}", slots, step_s, answer, foreign=0.5)
    for slots, answer, prompt in ((64, 4, 100), (64, 8, 500), (256, 8, 100), (256, 8, 500)):
        yield Cell(f"prompts/{slots}/{prompt}+{answer}", slots, None, answer, prompt, half_whole=True, window_s=60.0)
    for slots in (8, 64, 256):
        yield Cell(f"pictures/{slots}", slots, None, 100, 1000, picture_bytes=400_000, window_s=90.0)
        for documents, caches in ((8, True), (8, False)):
            name = f"caches/{'on' if caches else 'off'}/{slots}"
            yield Cell(name, slots, None, 100, 200, strange=Strange(caches=caches), documents=documents, window_s=90.0)


def _deadlines() -> Iterator[Cell]:
    for share in (0.3, 0.7, 0.95):
        for slots, step_s, answer in SIZES:
            plain = Cell("", slots, step_s, answer, load=CellLoad.OPEN, share=share, deadline_s=1.0, window_s=60.0)
            name = f"{share:.0%}/{_sized(slots, step_s, answer)}"
            yield replace(plain, name=f"deadlines/{name}")
            jumpy = Strange(speeds=stalls(10.0, 2.0, step_s, WINDOW_S_MAX))
            yield replace(plain, name=f"deadlines/stalls/{name}", strange=jumpy)
            slow = Strange(speeds=((15.0, 20.0), (25.0, 1.0)))
            yield replace(plain, name=f"deadlines/slow-spell/{name}", strange=slow)
        long = Cell("", 64, None, 100, 300, load=CellLoad.OPEN, share=share, long_share=0.08, window_s=60.0)
        yield replace(long, name=f"deadlines/long-prompts/{share:.0%}", deadline_s=1.0)
        yield replace(long, name=f"deadlines/tight/{share:.0%}", long_share=0.0, deadline_s=0.2)


def _pairs() -> Iterator[Cell]:
    """Two engines, the first of them odd."""
    good = (PLAIN,)
    for slots, step_s, answer in ((8, 0.02, 100), (64, 0.02, 100)):
        name = _sized(slots, step_s, answer)
        plain = Cell("", slots, step_s, answer, others=good, window_s=30.0)
        for page in ("frozen-idle", "frozen-overloaded", "all-zero", "missing"):
            yield replace(plain, name=f"pairs/{page}/{name}", strange=Strange(page=PAGES[page]))
        yield replace(plain, name=f"pairs/slower-4x/{name}", strange=Strange(speeds=((0.0, 4.0),)))
        stands = Strange(speeds=((15.0, 5.0 / step_s), (15.0 + step_s, 1.0)))
        half = replace(plain, load=CellLoad.OPEN, share=0.4, strange=stands, late_share_max=0.02)
        yield replace(half, name=f"pairs/stands-5s/{name}")


SMALL: Final = frozenset(
    {
        "grid/8x20ms/20",
        "grid/8x50ms/500",
        "grid/32x50ms/1",
        "grid/200x100ms/20",
        "whole/says-nothing/64x20ms/100",
        "whole/not-asked/64x20ms/100",
        "whole/never-streams/200x100ms/20",
        "pages/frozen-overloaded/64x20ms/100",
        "pages/missing/4x50ms/100",
        "pages/silent-queue/200x100ms/20",
        "flood/plain/8x20ms/20",
        "deadlines/slow-spell/30%/4x50ms/100",
        "pictures/8",
    }
)


def _all() -> Iterator[Cell]:
    for group in (_grid, _not_streamed, _pages, _floods, _odd, _deadlines, _pairs):
        for cell in group():
            yield replace(cell, small=cell.name in SMALL)


CELLS: Final[dict[str, Cell]] = {cell.name: cell for cell in _all()}
