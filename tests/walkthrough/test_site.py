"""The docs as a site: a browser fetches nothing from elsewhere for it, and its search finds guides before decisions."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|object)\b[^>]*?(?:src|href|data)=[\"']?([^\"' >]+)"
)
IN_STYLE = re.compile(r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)")
TITLE_WEIGHT = 1_000  # of a word in a title, in the theme's search; in a text it weighs 1
ELSEWHERE = re.compile(r"(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs is not here: `make docs` installs it")
    built = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(built)], check=True)
    return built


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    fetched = [(page, url) for page in pages for url in FETCHED.findall(page.read_text())]
    fetched += [(style, url) for style in styles for url in IN_STYLE.findall(style.read_text())]
    assert len(pages) > 40
    assert len(fetched) > 2 * len(pages), "each page has its script and its style"
    assert [(page.name, url) for page, url in fetched if ELSEWHERE.match(url)] == []


def test_diagrams_are_drawn_with_the_sites_own_script(site: Path) -> None:
    """The theme fetches Mermaid from elsewhere, unless a page brings it."""
    drawn = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    assert len(drawn) >= 3
    for page in drawn:
        assert re.search(r"<script[^>]+src=[\"']?[^\"' >]*mermaid[^\"' >]*\.js", page.read_text()), page.name


def test_decisions_come_last_in_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts = {entry["location"].partition("#")[0]: entry.get("boost", 1.0) for entry in index}
    decisions = {page: boost for page, boost in boosts.items() if page.startswith("decisions/0")}
    assert len(decisions) > 50
    assert max(decisions.values()) * TITLE_WEIGHT < 1.0, "a word in a decision's title counts less than one in any text"
    assert boosts["applications.html"] > boosts["configuration.html"] == 1.0 > boosts["results.html"] > 1 / TITLE_WEIGHT
