"""The glossary explains each word once, and only words that the code or the docs use."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/glossary.md"


def words() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| [^|]{8,} \|$", PAGE.read_text(), re.MULTILINE)
    return [word for row in rows if row != "word" for word in row.split(", ")]


def test_each_word_is_explained_once_and_used_elsewhere() -> None:
    found = words()
    assert len(found) > 60
    assert [word for word in found if found.count(word) > 1] == []
    folders = (ROOT / "src", ROOT / "docs", ROOT / "bench")
    pages = [path for folder in folders for ending in ("*.py", "*.md") for path in folder.rglob(ending) if path != PAGE]
    text = "\n".join(path.read_text() for path in pages)
    patterns = {word: r"[\s_-]*".join(map(re.escape, word.split())) for word in found}
    assert [word for word, pattern in patterns.items() if not re.search(pattern, text, re.IGNORECASE)] == []
