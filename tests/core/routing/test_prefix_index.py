"""The prefix index, and who is believed about it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.core.routing.hit_prediction import HitPredictions
from penstock.core.routing.prefix_index import PrefixIndex
from penstock.core.values.located import Located, Source
from tests.core.drive import request

CHECKS_MIN = 10
OFF_S = 60.0
KEYS_MIN = 64
PREFIX_KEYS_MAX = 81


def test_a_match_counts_leading_blocks_per_endpoint() -> None:
    index = PrefixIndex()
    index.store(0, (1, 2, 3))
    index.store(1, (1, 2))
    index.store(2, (1, 3))
    index.store(3, (2, 3))
    assert index.match((1, 2, 3, 4)) == {0: 3, 1: 2, 2: 1}
    assert index.match(()) == {}
    assert index.match((9, 1)) == {}
    index.remove(0, (2, 99))
    assert index.match((1, 2, 3)) == {0: 1, 1: 2, 2: 1}
    index.clear(1)
    assert index.match((1, 2, 3)) == {0: 1, 2: 1}


def test_it_agrees_with_sets_whatever_is_stored_removed_and_cleared() -> None:
    random, index = Random(1), PrefixIndex(10_000)
    sets: dict[int, set[int]] = {endpoint: set() for endpoint in range(70)}
    for _ in range(3_000):
        endpoint, keys = random.randrange(70), [random.randrange(40) for _ in range(random.randrange(6))]
        match random.randrange(8):
            case 0:
                index.clear(endpoint)
                sets[endpoint].clear()
            case 1:
                index.forget(endpoint)
                sets[endpoint].clear()
            case 2 | 3:
                index.remove(endpoint, keys)
                sets[endpoint].difference_update(keys)
            case _:
                index.store(endpoint, keys)
                sets[endpoint].update(keys)
        asked = [random.randrange(40) for _ in range(5)]
        expected: dict[int, int] = {}
        for held_by, held in sets.items():
            count = next((at for at, key in enumerate(asked) if key not in held), len(asked))
            if count:
                expected[held_by] = count
        assert index.match(asked) == expected
    assert len(index) == len(set().union(*sets.values()))


def test_each_endpoint_keeps_what_it_used_lately_within_its_bound() -> None:
    index = PrefixIndex(300)
    index.store(1, range(-50, 0))
    for key in range(10_000):
        index.store(0, (key, 7))
        assert index.held(0) <= 300
    assert index.match((7,)) == {0: 1}, "in use all the time"
    assert index.match((9_999 - 100 + 2,)) == {0: 1}, "a generation at least is kept whole"
    assert index.match((100,)) == {}
    assert index.held(1) == 50, "each for itself"
    assert len(index) <= 350


def test_how_much_came_since_a_key_was_used_is_known_by_generations() -> None:
    index = PrefixIndex(300)
    index.store(0, range(80))
    assert index.since(0, 0) == index.since(0, 79) == 80
    index.store(0, range(80, 130))  # the hundredth makes the generation an old one
    assert (index.since(0, 129), index.since(0, 0)) == (30, 130)
    index.store(0, (0,))
    assert index.since(0, 0) == 31, "it was used just now"
    index.limit(0, 90)
    assert (index.since(0, 0), index.since(0, 5)) == (31, 130), "what is over the limit is being dropped"
    assert index.since(0, 999) == index.held(0) == 130
    assert index.since(5, 0) == 0


def test_a_lower_limit_drops_what_is_over_it_and_is_never_too_low() -> None:
    index = PrefixIndex(300)
    index.store(0, range(290))
    index.limit(0, 0)
    index.store(0, range(1_000, 1_200))
    assert index.held(0) <= KEYS_MIN
    assert index.limit_of(0) == KEYS_MIN
    assert index.limit_of(1) == 300
    index.limit(1, 10**9)
    assert index.limit_of(1) == 300


def test_endpoints_that_come_and_go_for_ever_leave_nothing_behind() -> None:
    index = PrefixIndex()
    for endpoint in range(1_000):
        index.store(endpoint, (1, endpoint))
        assert index.match((1, endpoint))[endpoint] == 2
        if endpoint >= 10:
            index.forget(endpoint - 10)
    assert max(index.bits.values()) < 1 << 11
    index.clear(5_000)
    assert index.knows(5_000), "that it holds nothing was told"
    assert not index.knows(5_001)


def test_an_endpoint_that_holds_nothing_is_still_the_same_one() -> None:
    """Each restart of an engine took another bit for it, for ever, so that bits became long numbers."""
    index = PrefixIndex()
    for again in range(1_000):
        index.clear(7)
        index.store(7, ())
        index.limit(7, 100)
        index.store(7, range(again, again + 20))
        assert index.limit_of(7) == 100, "what was learned before it was sent anything"
    index.clear(7)
    assert list(index._endpoint_of) == [0]
    assert index.bit(7) == 1


def test_a_source_that_promises_too_much_is_not_believed_for_a_while_about_that_endpoint() -> None:
    sources = HitPredictions()

    def check(predicted: int, cached: int, *, endpoint: int = 0) -> None:
        sources.check(Source.LMCACHE, endpoint, predicted=predicted, cached=cached, prompt_tokens=1_000, now=100.0)

    for _ in range(50):
        check(300, 900)
        check(300, 300)
        check(300, 150)
        check(0, 900)
    assert sources.trusted(Source.LMCACHE, 0, 100.0), "too little is no fault, nor is a bit too much"
    for _ in range(CHECKS_MIN):
        check(900, 0)
    assert not sources.trusted(Source.LMCACHE, 0, 100.0 + OFF_S - 1)
    assert sources.trusted(Source.LMCACHE, 1, 100.0)
    assert sources.trusted(Source.HISTORY, 0, 100.0)
    assert sources.trusted(Source.LMCACHE, 0, 100.0 + OFF_S), "it gets another try"
    (told,) = (seen for seen in sources.snapshot(100.0) if seen.source == "lmcache")
    assert (told.predicted_tokens, told.hit_tokens) == (150 * 300 + 900 * CHECKS_MIN, 50 * (300 + 300 + 150))
    assert (told.checks, told.off) == (150 + CHECKS_MIN, 1)
    sources.forget(0)
    assert sources.trusted(Source.LMCACHE, 0, 100.0)


def test_keys_that_stand_for_more_and_more_are_counted_as_what_they_stand_for() -> None:
    located = Located({})
    located.measured(request("a", body_bytes=8_000, prefix_grows=True), 1_000)
    assert [located.tokens_at(keys) for keys in (1, 32, 33, PREFIX_KEYS_MAX)] == [64, 2_048, 34 * 64, 500 * 64]
    assert [located.keys_in(tokens) for tokens in (0, 64, 2_048, 34 * 64, 10**9)] == [0, 1, 32, 33, PREFIX_KEYS_MAX]
    located.measured(request("b", body_bytes=8_000, prefix_chunk_bytes=128, prefix_grows=True), 1_000)
    assert [located.tokens_at(keys) for keys in (1, 32, 33)] == [16, 512, 34 * 16]
    assert [located.keys_in(tokens) for tokens in (16, 512, 34 * 16)] == [1, 32, 33]
    located.measured(request("c", body_bytes=8_000, prefix_chunk_bytes=80), 1_000)
    assert located.tokens_at(33) == 330
    assert located.keys_in(330) == 33


def test_what_is_known_of_a_prompt_is_looked_at_again_when_something_was_stored_or_removed() -> None:
    index = PrefixIndex()
    versions = [index.version]
    changes: list[Callable[[], None]] = [
        lambda: index.store(0, (1, 2)),
        lambda: index.remove(0, (2,)),
        lambda: index.clear(0),
        lambda: index.forget(0),
    ]
    for change in changes:
        change()
        versions.append(index.version)
    assert versions == sorted(set(versions))
