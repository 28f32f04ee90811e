"""Who counts as asking for little: not who asks for nearly all there is, however that came about."""

from __future__ import annotations

import heapq

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.request import Usage
from tests.core.drive import request, scheduler, until

SLOTS = 8
CLIENTS = 3 * SLOTS  # of the flood: each asks again when it was answered
HEAVY_S, LIGHT_S = 4.0, 0.2  # an answer takes
HEAVY_TOKENS, LIGHT_TOKENS = 200, 10
FIRST_S, END_S = 10.0, 180.0
AT_ONCE_S = 0.01


@pytest.mark.parametrize("light_flows", [1, 3])
def test_a_flood_of_clients_that_ask_again_is_never_taken_for_a_light_one(light_flows: int) -> None:
    """After some windows it asks for no more than it gets, which is nearly all there is."""
    made = scheduler(SchedulerSettings(wait_s_max=1e6), a=SLOTS)
    asked_s: dict[str, float] = {}
    waits: list[tuple[float, float]] = []  # of the light ones: when each came, and for how long it waited
    events: list[tuple[float, int, int]] = []  # what ends: when, its lease, and how many tokens it was
    sent: list[str] = []
    number = 0

    def take(actions: list[object], now: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                is_light = action.request_id.startswith("light")
                sent.append(action.request_id)
                if is_light:
                    came_s = asked_s.pop(action.request_id)
                    waits.append((came_s, now - came_s))
                took_s, tokens = (LIGHT_S, LIGHT_TOKENS) if is_light else (HEAVY_S, HEAVY_TOKENS)
                heapq.heappush(events, (now + took_s * (1.0 + len(sent) % 7 / 20), action.lease, tokens))

    def ask(tenant: str, tokens: int, now: float) -> None:
        nonlocal number
        number += 1
        name = f"{tenant}-{number}"
        asked_s[name] = now
        take(list(made.arrived(request(name, tenant=tenant, output_tokens=tokens), now=now)), now)

    for _ in range(CLIENTS):
        ask("heavy", HEAVY_TOKENS, 0.0)
    next_s, turn = 0.5, 0
    while next_s < END_S:
        while events and events[0][0] <= next_s:
            now, lease, tokens = heapq.heappop(events)
            take(list(until(made, now)), now)
            take(list(made.finished(lease, Usage(10, tokens), now=now)), now)
            if tokens == HEAVY_TOKENS:
                ask("heavy", HEAVY_TOKENS, now)
        take(list(until(made, next_s)), next_s)
        turn += 1
        ask(f"light{turn % light_flows}", LIGHT_TOKENS, next_s)
        next_s += 0.5
    late = [wait_s <= AT_ONCE_S for came_s, wait_s in waits if came_s >= END_S / 2]
    early = [wait_s <= AT_ONCE_S for came_s, wait_s in waits if FIRST_S <= came_s < END_S / 2]
    assert len(late) > 100
    assert sum(early) / len(early) > 0.95
    assert sum(late) / len(late) > 0.95
