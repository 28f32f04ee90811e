"""Oddities of engines: untrue pages, unusual answers, changing speed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sim.engine.pages import TRUE, PageWays

Course = tuple[tuple[float, float], ...]  #: a value over time: pairs of (from when on, value), in order of time


def value_at(course: Course, now: float, before: float) -> float:
    """Returns the value of a course at `now`; `before` if that is earlier than its first entry."""
    value = before
    for from_s, following in course:
        if from_s > now:
            break
        value = following
    return value


@dataclass(frozen=True)
class Strange:
    """One engine's oddities; none by default."""

    page: PageWays = TRUE  #: how its metrics page lies
    streams: bool = True  #: False: an answer comes whole at its end, even if a stream was asked for
    tells_usage: bool = True  #: False: answers have no usage
    caches: bool = True  #: False: equal prompts are computed again
    speeds: Course = ()  #: how many times longer its steps take than usual
    doors: Course = ()  #: seconds that a request waits in front of the engine, invisible in gauges


PLAIN = Strange()
