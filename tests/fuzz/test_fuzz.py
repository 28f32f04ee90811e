"""A small run of `make fuzz`: every input that is kept, and some hundred that are made of these."""

from __future__ import annotations

import pytest

from penstock.build import compiled
from tests.fuzz.mutate import mutated, smallest
from tests.fuzz.outcomes import Plain, corpus, outcomes
from tests.fuzz.targets import READINGS, TARGETS, Target

MADE = 400  # for each target: a second or two in all


def breaks(target: Target, data: bytes) -> bool:
    try:
        target(data)
    except Exception:  # any at all is what is looked for
        return True
    return False


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_reader(name: str) -> None:
    target, kept = TARGETS[name], corpus(name)
    assert kept
    for data in (*kept, *(mutated(kept, name, seed) for seed in range(MADE))):
        if breaks(target, data):
            data = smallest(data, lambda shorter: breaks(target, shorter))
            target(data)  # keep it: tests/fuzz/corpus/NAME/
            pytest.fail(f"{name} broke, and did not when it was tried again: {data!r}")


@pytest.mark.parametrize("name", READINGS)
def test_wherever_bytes_are_cut_the_same_is_read(name: str) -> None:
    """At each byte of each kept input: two pieces, and a piece for each byte."""
    for data in corpus(name):
        whole = data[1:]
        seen = READINGS[name]([whole])
        assert READINGS[name]([whole[at : at + 1] for at in range(len(whole))]) == seen
        for at in range(1, len(whole)):
            assert (at, READINGS[name]([whole[:at], whole[at:]])) == (at, seen)


@pytest.mark.skipif(not compiled(), reason="compares the compiled readers with their sources")
def test_compiled_readers_do_as_their_sources_do() -> None:
    with Plain() as plain:
        for name in TARGETS:
            assert (name, outcomes(name, 0, MADE)) == (name, plain.outcomes(name, 0, MADE))


def test_the_smallest_input_that_breaks_is_found() -> None:
    def fails(data: bytes) -> bool:
        return b"a" in data and data.count(b"b") > 1

    assert smallest(b"xxxxaxxxxbxxxbbx" * 3, fails) in (b"abb", b"bab", b"bba")


def test_the_same_seed_makes_the_same_input() -> None:
    kept = corpus("body")
    assert mutated(kept, "body", 7) == mutated(kept, "body", 7) != mutated(kept, "body", 8)
