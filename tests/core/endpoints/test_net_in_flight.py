"""What came and went since a moment, against a plain list of it."""

from __future__ import annotations

from random import Random

from penstock.core.endpoints.net_in_flight import EVENTS_MAX, NetInFlight


def test_it_counts_what_a_list_of_all_events_would() -> None:
    random, since = Random(1), NetInFlight()
    events: list[tuple[float, int, int]] = []
    now = begun_s = 0.0
    for _ in range(2_000):
        now += random.choice((0.0, 0.5, 1.0))
        event = (now, random.choice((-1, 1)), random.randrange(-500, 500))
        assert since.note(*event)
        events.append(event)
        if random.random() < 0.02:
            begun_s = random.uniform(begun_s, now)
            since.begin(begun_s)
        counted = [event for event in events if event[0] >= begun_s]
        assert since.leases == sum(leases for _, leases, _ in counted)
        assert since.tokens == sum(tokens for _, _, tokens in counted)
        at_s = random.uniform(begun_s, now)
        assert since.before(at_s) == sum(leases for when, leases, _ in counted if when < at_s)


def test_too_many_are_not_remembered_and_that_is_told() -> None:
    since = NetInFlight()
    told = [since.note(float(at), 1, 10) for at in range(2 * EVENTS_MAX)]
    assert told[:EVENTS_MAX] == [True] * EVENTS_MAX
    assert not told[EVENTS_MAX]
    assert len(since) <= EVENTS_MAX
    assert (since.leases, since.tokens) == (len(since), 10 * len(since))
    since.begin(2.0 * EVENTS_MAX)
    assert (since.leases, since.tokens, len(since)) == (0, 0, 0)
