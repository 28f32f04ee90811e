"""The picture of the whole is the code's: drawn from its tables, nothing left out, every file that it names there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.config.sections.policies import OWN
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import State
from penstock.engines.recognise import ENGINES
from tests.tidy import diagram

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/diagram.md").read_text()


def test_the_page_matches_the_code() -> None:
    assert diagram.page() == PAGE


def test_the_files_that_it_names_are_there() -> None:
    assert diagram.missing_files(ROOT / "src/penstock") == []


LISTS: dict[str, Iterable[object]] = {
    "reasons": Reason,
    "causes": Cause,
    "failures": [failure for failure in Failure if failure is not Failure.BROKEN],  # that one is `stream_broken`
    "states": State,
    "engines": ENGINES,
    **OWN,
}


@pytest.mark.parametrize("name", LISTS)
def test_no_word_of_a_closed_list_is_left_out(name: str) -> None:
    assert [word for word in LISTS[name] if str(word) not in PAGE] == []


def test_every_failure_is_taken_back_or_not() -> None:
    taken_back = PAGE.partition("retry -->|")[2].partition('"|')[0]
    assert {failure for failure in Failure if str(failure) in taken_back} == set(Failure) - {Failure.BROKEN}


def test_every_arrow_joins_boxes_that_are_drawn() -> None:
    flow = PAGE.partition("flowchart TD")[2].partition("```")[0].splitlines()
    drawn = {line.strip().partition("[")[0].partition("(")[0] for line in flow if "[" in line or "(" in line}
    drawn |= {line.split()[1] for line in flow if line.strip().startswith("subgraph")}
    for line in flow:
        if "-->" in line or "-.->" in line:
            plain = "".join(part for at, part in enumerate(line.split("|")) if at % 2 == 0)
            for name in plain.replace("-.->", "-->").split("-->"):
                assert name.strip() in drawn, line
