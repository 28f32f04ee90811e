"""Of the requests that ended, which are remembered?

Memory is bounded, so somebody's stories have to go. With one queue for all, one tenant's flood, refused within seconds,
would push out everybody else's, and those are what people ask about then. So the room is divided as slots are, by
max-min fairness: among the owners of limits, then among the tenants of each (callers without a key are tenants of one
owner), then among the ways in which a tenant's requests ended, so that its refusals do not push out its own answers. A
part that is not needed goes to the others; each keeps its newest. Stories older than `FAIR_S` go before all others:
otherwise tenants that were here once would take a busy one's room for ever.

It is divided again after some 1,000 ends (`recorder.py`) and not at each one, because that costs a request less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.queueing.entry import Entry

if TYPE_CHECKING:
    from penstock.core.explain.recorder import Trail

FAIR_S: Final = 3_600.0  # people ask about the last hour

Path = tuple[str, ...]  # the owner of limits, the tenant, and the way in which the request ended


def kept(ended: Sequence[Entry], trails: Mapping[int, Trail], room: int, now: float) -> list[Entry]:
    """Returns `room` of the requests that `ended`, which are more, in their order: the oldest first."""
    too_many, old = len(ended) - room, 0
    while old < too_many and now - (trails[ended[old].seq].ended_s or 0.0) > FAIR_S:
        old += 1
    younger = ended[old:]
    places = newest_of_each([(it.account, it.tenant, f"{it.state} {trails[it.seq].reason}") for it in younger], room)
    return [it for place, it in enumerate(younger) if place in places]


def newest_of_each(paths: Sequence[Path], room: int) -> set[int]:
    """Returns the positions of `room` of the `paths`, which are in order of age, divided fairly at each level."""
    return set(_divided(list(range(len(paths))), paths, room, 0))


def _divided(places: list[int], paths: Sequence[Path], room: int, level: int) -> list[int]:
    if len(places) <= room:
        return places
    if level == len(paths[places[0]]):
        return places[len(places) - room :]
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(paths[place][level], []).append(place)
    found: list[int] = []
    parts_left = len(groups)
    for group in sorted(groups.values(), key=len):  # the smallest first: what it does not need is left to the others
        part = min(len(group), room // parts_left)
        found += _divided(group, paths, part, level + 1)
        room -= part
        parts_left -= 1
    return found
