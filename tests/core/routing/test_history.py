"""Our own history of who was sent what: when does a wrong promise mean that an engine holds less than we believe?"""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.request import Usage
from penstock.core.values.rows import SourceSnapshot
from penstock.core.values.settings import RoutingSettings
from tests.core.drive import request, scheduler, the_lease

KEYS = tuple(range(10))  # of 128 tokens each
BYTES = 5120


def history(made: CheckedScheduler, now: float) -> SourceSnapshot:
    return next(seen for seen in made.snapshot(now=now).sources if seen.source == "history")


def kv() -> CheckedScheduler:
    return scheduler(SchedulerSettings(routing="kv", router=RoutingSettings()), a=8)


def prompt(made: CheckedScheduler, name: str, now: float) -> int:
    return the_lease(made.arrived(request(name, body_bytes=BYTES, prefix=KEYS, prefix_chunk_bytes=512), now=now))


def test_a_sibling_of_what_is_just_being_computed_is_no_proof_of_a_small_cache() -> None:
    made = kv()
    first = prompt(made, "first", 0.0)
    for number in range(20):  # an engine computes the same again for those that come before the first is done
        made.finished(prompt(made, f"sibling{number}", 0.1), Usage(1280, 5, 0, cached_told=True), now=0.2)
    limit = made.inspect().router._history.limit_of(0)
    made.finished(first, Usage(1280, 5, 0, cached_told=True), now=1.0)
    assert limit == made.inspect().router._history.limit_of(0)
    assert (history(made, 1.0).wrong, history(made, 1.0).off) == (0, 0)
    made.finished(prompt(made, "later", 2.0), Usage(1280, 5, 0, cached_told=True), now=3.0)
    assert history(made, 3.0).wrong == 1, "by now it should have been there"


def test_a_prompt_of_fewer_tokens_than_its_bytes_suggest_is_no_proof_of_a_small_cache() -> None:
    made = kv()
    limit = made.inspect().router._history.limit_of(0)
    made.finished(prompt(made, "first", 0.0), Usage(1280, 5, 0, cached_told=True), now=0.5)
    for number in range(10):
        lease = prompt(made, f"again{number}", 1.0 + number)
        made.finished(lease, Usage(700, 5, 690, cached_told=True), now=1.5 + number)
    assert history(made, 20.0).wrong == 0
    assert made.inspect().router._history.limit_of(0) >= limit


def served(made: CheckedScheduler, which: int, at: float, cached: int) -> None:
    """One of many prompts of ten keys, answered."""
    keys = tuple(range(which * 10, which * 10 + 10))
    asked = request(f"r{at}", body_bytes=BYTES, prefix=keys, prefix_chunk_bytes=512)
    made.finished(the_lease(made.arrived(asked, now=at)), Usage(1280, 5, cached, cached_told=True), now=at + 0.1)


def test_of_a_small_cache_history_learns_how_small_and_is_not_switched_off_meanwhile() -> None:
    """Prompts that never come again let it believe in a large cache; then others come again and again."""
    made, random = kv(), Random(1)
    cache: OrderedDict[int, None] = OrderedDict()  # an engine that holds the last 15 prompts
    wrong = 0
    for at in range(1_000):
        which = at if at < 200 else 2 * random.randrange(40)
        served(made, which, float(at), 1270 if which in cache else 0)
        cache[which] = None
        cache.move_to_end(which)
        if len(cache) > 15:
            cache.popitem(last=False)
        told = history(made, at + 0.5)
        assert told.off == 0
        wrong += at == 500 and told.wrong
    assert wrong > 20, "it had to learn"
    assert made.inspect().router._history.limit_of(0) < 300, "of 2,000 keys in all; the engine holds 150"
    assert history(made, 1_000.0).wrong - wrong < 0.1 * 500


def test_where_nothing_is_ever_cached_history_is_switched_off_in_the_end() -> None:
    made = kv()
    for at in range(200):
        served(made, at % 2, float(at), 0)
        if history(made, at + 0.5).off:
            break
    assert history(made, at + 0.5).off == 1
    assert made.inspect().router._history.limit_of(0) == 64
    for later in range(3):
        made.arrived(request(f"l{later}", body_bytes=BYTES, prefix=KEYS, prefix_chunk_bytes=512), now=at + 1.0)
        assert made.inspect().entries[f"l{later}"].cached_tokens == 0, "it is not asked"
