"""The documentation's own promises: what is cited is there, and pages of one kind have one form."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from penstock.config.sections.policies import OWN

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CITING = sorted(
    chain(
        PAGES,
        ROOT.glob("*.md"),
        *((ROOT / folder).rglob("*.py") for folder in ("src", "bench", "tests", "benchmarks", "scripts")),
    )
)
_CITED = re.compile(r"docs/([a-z0-9/_-]+\.md)(?:#([a-z0-9_-]+))?")
_DECISION = re.compile(r"docs/decisions/(\d{4})(?!-)")
_FILE_CITED = re.compile(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+\.(?:py|md))`")
_LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
# Section marks and numbered points of papers that are not in the repository.
_ELSEWHERE = re.compile(r"§|\bS[1-5]\.\d|\bDESIGN\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def headings(page: Path) -> frozenset[str]:
    """The anchors of a page, as the site makes them of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return frozenset(map(anchor_of, re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)))


def anchor_of(title: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower())


def test_no_reference_leads_out_of_the_repository() -> None:
    own = Path(__file__)
    found = [
        f"{name_of(path)}:{number}: cite a heading of docs/design.md instead of {line.strip()!r}"
        for path in CITING
        if path != own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _ELSEWHERE.search(line)
    ]
    assert found == []


def test_a_page_or_heading_that_is_cited_is_there() -> None:
    missing = []
    for path in CITING:
        for page, heading in _CITED.findall(path.read_text()):
            if not (DOCS / page).exists():
                missing.append(f"{name_of(path)} cites docs/{page}, which is not there")
            elif heading and heading not in headings(DOCS / page):
                missing.append(f"{name_of(path)} cites docs/{page}#{heading}; it has {sorted(headings(DOCS / page))}")
    assert missing == []


def test_a_decision_that_is_cited_by_its_number_is_there() -> None:
    cited = {(name_of(path), number) for path in CITING for number in _DECISION.findall(path.read_text())}
    assert cited
    assert [each for each in sorted(cited) if each[1] not in DECISIONS] == []


def test_a_file_that_a_source_names_is_there() -> None:
    """Named by the end of its path. The test asks for no folders, so one name of two files is enough."""
    there = [f"/{path.relative_to(ROOT)}" for path in (*(ROOT / "src").rglob("*.py"), *CITING)]
    missing = [
        f"{name_of(source)} names {file}, which is not there"
        for source in sorted((ROOT / "src").rglob("*.py"))
        for file in _FILE_CITED.findall(source.read_text())
        if not any(path.endswith(f"/{file}") for path in there)
    ]
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=name_of)
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for target, heading in _LINK.findall(page.read_text()):
        other = (page.parent / target) if target else page
        assert other.exists(), f"{name_of(page)} links to {target}, which is not there"
        if heading and other.suffix == ".md":
            assert heading in headings(other), f"{name_of(page)} links to {target}#{heading}, which is not there"


def test_a_citation_is_seen() -> None:
    """A test that looks at nothing passes too."""
    citing = [path for path in CITING if path.suffix == ".py" and "docs/design.md#" in path.read_text()]
    assert len(citing) > 20
    assert "group-dispatch" in headings(DOCS / "design.md")
    assert "s4" in headings(DOCS / "design.md")


# -- decisions ---------------------------------------------------------------------------------------------------------

SHORT = DOCS / "decisions/short.md"  # a section per decision of a few lines
DECISION_FILES = [SHORT, *sorted((DOCS / "decisions").glob("[0-9]*.md"))]
#: The texts of all by number, each with its place, which the index links to.
DECISIONS = {page.name[:4]: (page.name, page.read_text()) for page in DECISION_FILES[1:]} | {
    title[:4]: (f"short.md#{anchor_of(title)}", f"# {title}{text}")
    for title, text in re.findall(r"^## (\d{4}: .*)$((?:\n(?!## ).*)*)", SHORT.read_text(), flags=re.MULTILINE)
}
_STATE = re.compile(r"State: accepted · Date: \d{4}-\d\d-\d\d( · \S.*)?")
PARTS = ("Context", "Decision", "Figures", "Consequence", "Not taken")
NEEDED = ("Context", "Decision", "Consequence")


@pytest.mark.parametrize("number", DECISIONS)
def test_a_decision_has_the_form_of_all(number: str) -> None:
    lines = DECISIONS[number][1].splitlines()
    assert re.fullmatch(rf"# {number}: \S.*", lines[0]), f"{number} begins with `# {number}: title`"
    assert _STATE.fullmatch(lines[2]), f"{number}: line 3 is `State: accepted · Date: YYYY-MM-DD`"
    parts = [found.group(1) for line in lines if (found := re.match(r"\*\*([^*]+?)\.\*\*", line))]
    assert set(parts) <= set(PARTS), f"{number}: paragraphs may open with {PARTS} in bold; others in italics"
    assert [part for part in parts if part in NEEDED] == list(NEEDED), f"{number} has {NEEDED}, in this order, once"
    assert not [line for line in lines if re.match(r"\*\*(?![^*]+?\.\*\*)", line)], f"{number}: `**Part.** Text`"
    assert not [line for line in lines if line.startswith("##")], f"{number} has no further headings"


def test_the_index_names_each_decision_once_by_its_title() -> None:
    index = (DOCS / "decisions/README.md").read_text()
    named = dict(re.findall(r"^- \[(\d.+)\]\(([^)]+)\)", index, flags=re.MULTILINE))
    titles = {text.splitlines()[0].removeprefix("# "): place for place, text in DECISIONS.values()}
    assert titles == named, "a decision stands in docs/decisions/README.md under its topic: `- [NNNN: title](page)`"
    superseded = re.findall(r"^\| (\d{4}): \S.* \| \[(\d{4})\]\(\2-[a-z0-9-]+\.md\) \|$", index, flags=re.MULTILINE)
    assert len(superseded) > 20
    assert {number for number, _ in superseded}.isdisjoint(DECISIONS), "it has no page"


# -- the site ----------------------------------------------------------------------------------------------------------


def test_each_page_is_in_the_navigation_and_decisions_come_last() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([A-Za-z0-9_/-]+\.md)$", navigation, flags=re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in PAGES if page not in (*DECISION_FILES, *POLICY_FILES)}
    assert set(listed) == pages, "each page of docs/ is in `nav` of mkdocs.yml; policies and decisions in their index"
    assert listed[-1] == "decisions/README.md"


_FILE = re.compile(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)`")
_BASES = ("", "src/penstock", "src/penstock/core", "src/penstock/gateway", "tests")


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=name_of)
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # history: it names what was there
    missing = [
        file for file in _FILE.findall(page.read_text()) if not any((ROOT / base / file).exists() for base in _BASES)
    ]
    assert missing == [], f"{name_of(page)} names files that are not there"


# -- policies ----------------------------------------------------------------------------------------------------------

PLAIN = DOCS / "policies/plain.md"  # a section per policy with little to say
POLICY_FILES = [page for page in sorted((DOCS / "policies").glob("*.md")) if page.name != "README.md"]
POLICY_PAGES = {page.stem: page.read_text() for page in POLICY_FILES if page != PLAIN}
POLICY_TEXTS = POLICY_PAGES | {
    f"{decision.lower()}-{name}": text.replace("\n### ", "\n## ")
    for decision, name, text in re.findall(
        r"^## (\w+): `(\w+)`\n(.*?)(?=^## |\Z)", PLAIN.read_text(), flags=re.MULTILINE | re.DOTALL
    )
}
POLICY_PARTS = ["What it decides", "Formula", "Bound", "Settings", "When to use it", "Source"]


@pytest.mark.parametrize("name", POLICY_TEXTS)
def test_what_is_said_of_a_policy_has_the_form_of_all(name: str) -> None:
    text = POLICY_TEXTS[name]
    parts = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert parts == POLICY_PARTS, f"{name}: its headings are {POLICY_PARTS}"
    empty = re.findall(r"^## (.+)\n+(?=## |\Z)", text, flags=re.MULTILINE)
    assert empty == [], f"{name} says nothing of {empty}"


def test_each_policy_of_ours_is_written_about_and_linked() -> None:
    named = {f"{decision}-{name}" for decision, names in OWN.items() for name in names}
    index = (DOCS / "policies/README.md").read_text()
    assert named <= POLICY_TEXTS.keys()
    places = (f"]({name}.md)" if name in POLICY_PAGES else f"](plain.md#{name})" for name in POLICY_TEXTS)
    assert [place for place in places if place not in index] == []
