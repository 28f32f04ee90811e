"""What can be odd about an engine? What it tells of itself, how it answers, and how its speed changes."""

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
    """One engine's oddities. By default there are none: gauges tell the truth about the last step."""

    page: PageWays = TRUE  #: how its metrics page lies
    streams: bool = True  #: False: an answer comes whole at its end, even if a stream was asked for
    tells_usage: bool = True  #: False: an answer does not say what it used
    caches: bool = True  #: False: equal prompts are computed again
    speeds: Course = ()  #: how many times longer its steps take than usual
    doors: Course = ()  #: seconds that a request waits at its door, unseen by any gauge, before the engine has it


PLAIN = Strange()


def stalls(every_s: float, for_s: float, step_s: float, until_s: float) -> Course:
    """Returns a course of speeds: every `every_s` seconds one step of `step_s` takes `for_s`, up to `until_s`."""
    course: list[tuple[float, float]] = []
    at_s = every_s
    while at_s < until_s:
        course += [(at_s, for_s / step_s), (at_s + step_s, 1.0)]
        at_s += every_s
    return tuple(course)
