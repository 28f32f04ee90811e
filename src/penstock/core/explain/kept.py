"""Of the requests that ended, which are remembered?

Memory is bounded, so somebody's stories have to go. With one queue for all, one tenant's flood, refused within seconds,
would push out everybody else's, and those are what people ask about then. So the room is divided as slots are, by
max-min fairness: among the owners of limits, then among the tenants of each (callers without a key are tenants of one
owner), then among the ways in which a tenant's requests ended, so that its refusals do not push out its own answers. A
part that is not needed goes to the others; each keeps its newest. Stories older than `FAIR_S` go before all others:
otherwise tenants that were here once would take a busy one's room for ever.

It is divided again after every `SLACK` ends and not at each one: that costs a request less than one queue would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

KEPT: Final = 1_000  # requests at least, if there were so many; about 1 KB each
SLACK: Final = 1_000  # beyond these, until the room is divided: 1 to 2 ms of a plain build, so 1 to 2 µs per request
FAIR_S: Final = 3_600.0  # people ask about the last hour

Path = tuple[str, ...]  # the owner of limits, the tenant, and the way in which the request ended


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
    kept: list[int] = []
    parts_left = len(groups)
    for group in sorted(groups.values(), key=len):  # the smallest first: what it does not need is left to the others
        part = min(len(group), room // parts_left)
        kept += _divided(group, paths, part, level + 1)
        room -= part
        parts_left -= 1
    return kept
