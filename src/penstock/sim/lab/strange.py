"""What is odd about an engine: what it tells of itself, how it answers, and how its speed changes."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sim.lab.pages import TRUE, PageWays

Course = tuple[tuple[float, float], ...]  #: a value over time: from when on, and which; in order of time


def value_at(course: Course, now: float, before: float) -> float:
    """The value of a course at a time; `before` its first entry, that."""
    value = before
    for from_s, following in course:
        if from_s > now:
            break
        value = following
    return value


@dataclass(frozen=True)
class Strange:
    """One engine's oddities. The defaults are none: gauges tell the truth of the last step."""

    page: PageWays = TRUE  #: how its metrics page lies
    streams: bool = True  #: False: an answer comes whole when it is over, also where a stream was asked for
    tells_usage: bool = True  #: False: an answer does not say what it used
    caches: bool = True  #: False: equal prompts are computed anew
    speeds: Course = ()  #: how many times longer its steps take than its own
    doors: Course = ()  #: seconds that a request stands before it, unseen by any gauge, before the engine has it


PLAIN = Strange()


def stalls(every_s: float, for_s: float, step_s: float, until_s: float) -> Course:
    """A course of speeds: every so often one step takes that long."""
    course: list[tuple[float, float]] = []
    at_s = every_s
    while at_s < until_s:
        course += [(at_s, for_s / step_s), (at_s + step_s, 1.0)]
        at_s += every_s
    return tuple(course)
