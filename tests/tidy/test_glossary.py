"""The glossary is the table of the words: every public class of the core is in it, and no word that the code lacks."""

from __future__ import annotations

import re

from tests.tidy.glossary import CORE, PAGE, ROOT, SOURCE, class_rows, classes, rows

PATH = re.compile(r"`([a-z0-9_/]+\.py)`")


def test_every_public_class_of_the_core_is_in_the_glossary_and_no_other() -> None:
    here, listed = classes(), {name: where for name, (_, where) in class_rows(PAGE.read_text()).items()}
    missing, gone = sorted(set(here) - set(listed)), sorted(set(listed) - set(here))
    moved = sorted(name for name in set(here) & set(listed) if here[name] != listed[name])
    assert not missing + gone + moved, (
        f"docs/glossary.md: no row for {missing}; no class {gone}; elsewhere now {moved}. Run "
        "`python -m tests.tidy.glossary`: it adds rows (from the docstrings), drops and moves others. "
        "Then read the new rows: each says in plain words what the thing is."
    )


def test_every_row_says_something() -> None:
    found = rows(PAGE.read_text())
    assert len(found) > 150
    empty = [row[0] for row in found if len(row) != 3 or len(row[1]) < 8]
    assert empty == [], f"rows of docs/glossary.md have three columns, and a meaning: {empty}"


def test_a_word_is_used_where_the_glossary_says() -> None:
    words = [row for row in rows(PAGE.read_text()) if not row[0].startswith("`")]
    assert len(words) > 60
    unused = []
    for word, _, where in words:
        (file,) = PATH.findall(where) or [""]
        path = (ROOT if file.startswith("bench/") else SOURCE) / file
        pattern = r"(?<![A-Za-z])" + r"[\s_-]*".join(map(re.escape, word.split()))
        if not path.is_file() or not re.search(pattern, f"{file}\n{path.read_text()}", re.IGNORECASE):
            unused.append(f"{word}: {where}")
    assert unused == [], f"docs/glossary.md: words that the file beside them does not use (moved? renamed?): {unused}"


def test_no_word_is_explained_twice() -> None:
    words = [row[0].lower() for row in rows(PAGE.read_text())]
    assert [word for word in words if words.count(word) > 1] == []


def test_the_walk_sees_what_it_should() -> None:
    assert CORE.is_dir()
    assert classes()["Lease"] == "endpoints/lease.py"
    assert "_Held" not in classes()
