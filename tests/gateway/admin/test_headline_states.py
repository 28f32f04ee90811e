"""The headline, its numbers, the rows and the advice are of one instant: in no state does one contradict another.

The states are random ones of the real scheduler (`states.py`). Each check is a claim that a reader would take from a
sentence, compared with the rows beside it.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from penstock.core.values.catalogue import SERVING, Cause, EndpointState
from tests.gateway.admin.states import Shown, World

ROOM = (Cause.CLASS_SHARE, Cause.TURN, Cause.AFFINITY)  # they say that room is there, and not for this request
RESUME = re.compile(r"`penstock (tenant |endpoint )?resume( [a-z0-9]+)?`")


def contradictions(shown: Shown) -> list[str]:
    """What a reader would call a lie, in words."""
    snapshot, said = shown.snapshot, " ".join(shown.said)
    found: list[str] = []

    def claim(name: str, *, holds: bool) -> None:
        if not holds:
            found.append(name)

    rows = {row.name: row for row in snapshot.endpoints}
    up = [row for row in rows.values() if row.state in SERVING]
    for number, of in re.findall(r"(\d+) of (\d+) engines (?:is|are) up", said):
        claim("engines that are up", holds=(int(number), int(of)) == (len(up), len(rows)))
    for number in re.findall(r"Holding (\d+)", said):
        claim("the number that waits", holds=int(number) == snapshot.waiting == sum(b.waiting for b in snapshot.bands))
    claim("nothing waits", holds=("nothing waits" not in said.lower()) or not snapshot.waiting)

    first = next((model for model in snapshot.models if model.waiting), None)
    if first is not None and "Holding" in said:
        serving = [row for row in rows.values() if first.name in (row.models or ())]
        there = [row for row in serving if row.state in SERVING]
        slots, taken = sum(row.slots for row in there), sum(min(row.leases, row.slots) for row in there)
        sentence = next(part for part in shown.said if part.startswith("Holding"))
        if "no live endpoint" in sentence:
            claim("no live endpoint", holds=not there)
        for a, b in re.findall(r"taken[^,:;]*, ([\d,]+) of ([\d,]+)", sentence):
            claim("the slots taken", holds=(int(a), int(b)) == (taken, slots))
        if "all slots are taken" in sentence:
            claim("all slots", holds=taken == slots > 0)
        if Cause.SLOTS_FULL.sentence in sentence:
            claim("slots are left", holds=taken < slots)
            why = ("; band ", " not ours", " reserved for ", " at 1 of ", " at 2 of ", " at 3 of ")
            claim("a reason why slots are left", holds=any(word in sentence for word in why))
            busy = next(band.name for band in snapshot.bands if band.waiting)  # whose causes the rows have
            if first.head is not None and first.head.band == busy and " reserved for " not in sentence:
                claim("a full row", holds=any(row.closed is Cause.SLOTS_FULL for row in there))
        if Cause.KV_FULL.sentence in sentence and (used := re.search(r"(\d+)(?:–(\d+))? % used", sentence)):
            known = [row for row in there if row.closed is Cause.KV_FULL and row.kv_usage_believed is not None]
            shown_used = [round((row.kv_usage_believed or 0.0) * 100) for row in known]
            claim("memory", holds=(int(used[1]), int(used[2] or used[1])) == (min(shown_used), max(shown_used)))
        if taken == slots > 0:
            claim("reserved slots", holds="reserved" not in sentence)
            for cause in ROOM:
                claim(f"room where there is none: {cause}", holds=cause.sentence not in sentence)
        if Cause.TENANT_PAUSED.sentence in sentence:
            claim("a paused tenant", holds=bool(snapshot.paused_tenants))
        at = re.search(r"(\d+) of (\d+) engines?\b(?! \()", sentence)
        if at is not None and " on " not in at[0]:
            claim("at so many engines", holds=int(at[1]) <= int(at[2]) and int(at[2]) in (len(serving), len(there)))
    for row in rows.values():
        if row.closed is Cause.NO_BACKEND:
            claim("a row without an engine", holds=row.state not in SERVING)
        if row.closed is Cause.SLOTS_FULL:
            claim("a row's slots", holds=max(row.load, row.leases) >= row.slots * 0.75)

    causes = Counter(model.cause for model in snapshot.models if model.waiting)
    if shown.tone == "ok":
        claim("all is well", holds=len(up) == len(rows) and not snapshot.waiting and not snapshot.paused)
    claim("the verdict", holds=(shown.verdict == "Is something wrong? No.") == (shown.tone == "ok"))
    if "more work than room" in shown.verdict and "inside the engines" not in said:
        meant = {Cause.TENANT_CAP, Cause.TENANT_PAUSED, Cause.AFFINITY, Cause.NO_BACKEND, Cause.PAUSED, Cause.WARMING}
        claim("more work than room", holds=not causes or not causes.keys() <= meant)
    found += harm(shown)
    return found


def harm(shown: Shown) -> list[str]:
    """Advice that somebody who follows it would regret, or that cannot be followed."""
    snapshot, advice, found = shown.snapshot, shown.advice, []
    rows = {row.name: row for row in snapshot.endpoints}
    for kind, name in RESUME.findall(advice):
        if kind == "endpoint " and rows[name.strip()].state not in (EndpointState.DRAINING, EndpointState.UNPROVEN):
            found.append("resume an endpoint that is not stopped")
        if kind == "" and not (snapshot.paused or snapshot.drained or "endpoint resume" in advice):
            found.append("resume where nothing is stopped")
        if kind == "tenant " and not snapshot.paused_tenants:
            found.append("resume a tenant that is not paused")
    for name in re.findall(r"Restart (\w+)|See whether (\w+) runs|log of (\w+) says", advice):
        if (row := rows.get("".join(name))) is not None and row.state is EndpointState.UP:
            found.append("restart an engine that works")
    if advice.startswith(Cause.NO_BACKEND.advice):
        serves = [
            row for row in rows.values() if any(m.waiting and m.name in (row.models or ()) for m in snapshot.models)
        ]
        waiting = [model for model in snapshot.models if model.waiting]
        if all(any(row.state in SERVING and m.name in (row.models or ()) for row in serves) for m in waiting):
            found.append("start an engine although there are some")
        first = next(m for m in waiting if m.cause is not None)
        if any(row.state is EndpointState.LOADING and first.name in (row.models or ()) for row in serves):
            found.append("start an engine while one loads")
    for state, failure in (("takes connections", "key"), ("takes connections", "too many"), ("See whether", "key")):
        if state in advice and failure in advice:
            found.append("a state with the failure of another one")
    if "The others carry its load" in advice or "The others are not enough" in advice:
        missing = next(row for row in rows.values() if row.name in advice)
        others = [
            row
            for row in rows.values()
            if row.state in SERVING
            and (None in (row.models, missing.models) or set(row.models or ()) & set(missing.models or ()))
        ]
        if not others:
            found.append("others carry the load, and there are none")
    return found


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_is_shown_contradicts_the_rest(seed: int) -> None:
    check(range(seed * 3, seed * 3 + 3), states_min=80)


def test_an_endpoint_that_is_judged_with_the_next_turn_is_not_missing() -> None:
    """It said "no live endpoint" beside one that was up: touched by another band, it was neither open nor closed."""
    check(range(1_014, 1_017), states_min=80)


@pytest.mark.slow
def test_ten_thousand_states_contradict_nothing() -> None:
    check(range(1_000, 1_300), states_min=10_000)


def check(seeds: range, *, states_min: int) -> None:
    looked_at, kinds = 0, Counter[str]()
    for seed in seeds:
        for shown in World(seed).go(steps=120):
            looked_at += 1
            wrong = contradictions(shown)
            assert not wrong, (seed, wrong, shown.said, shown.tone, shown.verdict, shown.advice)
            kinds.update(model.cause for model in shown.snapshot.models if model.waiting and model.cause is not None)
    assert looked_at >= states_min
    assert len(kinds) >= 5, kinds
