"""A small run of `make fuzz`: every input that is kept, and some hundred that are made of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.mutate import mutated, smallest
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
MADE = 400  # for each target: a second or two in all


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def breaks(target: Target, data: bytes) -> bool:
    try:
        target(data)
    except Exception:  # any at all is what is looked for
        return True
    return False


@pytest.mark.interpreted  # it has a head of its own read into
@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_reader(name: str) -> None:
    target, kept = TARGETS[name], corpus(name)
    assert kept
    for data in (*kept, *(mutated(kept, name, seed) for seed in range(MADE))):
        if breaks(target, data):
            data = smallest(data, lambda shorter: breaks(target, shorter))
            target(data)  # keep it: tests/fuzz/corpus/NAME/
            pytest.fail(f"{name} broke, and did not when it was tried again: {data!r}")


def test_the_smallest_input_that_breaks_is_found() -> None:
    def fails(data: bytes) -> bool:
        return b"a" in data and data.count(b"b") > 1

    assert smallest(b"xxxxaxxxxbxxxbbx" * 3, fails) in (b"abb", b"bab", b"bba")


def test_the_same_seed_makes_the_same_input() -> None:
    kept = corpus("body")
    assert mutated(kept, "body", 7) == mutated(kept, "body", 7) != mutated(kept, "body", 8)
