"""Every flag of production-stack's router has one row in one table, which parser, help and page share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from penstock.config.explain import section_at
from penstock.config.production_stack.flags import BY_NAME, FLAGS, ROUTING, Fate, page
from penstock.config.sections.policies import RoutingName

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "coming-from-production-stack.md"


def listed() -> dict[str, str]:
    lines = (HERE / "flags.txt").read_text().splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


def test_the_table_has_the_flags_of_their_parser_chart_and_proposals_and_no_other() -> None:
    assert set(BY_NAME) == set(listed())
    assert len(FLAGS) == len(BY_NAME)


def test_nothing_that_their_chart_renders_is_refused() -> None:
    chart = {name for name, source in listed().items() if source == "chart"}
    assert len(chart) == 23
    assert {BY_NAME[name].fate for name in chart} <= {Fate.SETTING, Fate.COMMAND, Fate.NOTHING}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_ignored_and_refused_flags_have_a_reason(flag: object) -> None:
    its = next(each for each in FLAGS if each is flag)
    if its.fate in (Fate.NOTHING, Fate.REFUSED):
        assert its.why
        assert its.becomes == ""
    elif its.fate is Fate.SETTING and its.name != "--feature-gates":
        first = its.becomes.split(",")[0].replace("[]", "").split(".")[0].split(":")[0]
        assert first == "labels" or first in section_at(()).model_fields


def test_each_routing_logic_is_a_policy_of_ours() -> None:
    for policy in ROUTING.values():
        TypeAdapter(RoutingName).validate_python(policy)


def test_the_page_has_the_table_word_for_word() -> None:
    assert page() in PAGE.read_text()
