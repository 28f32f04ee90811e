"""What the site's search finds first: guides; then reference; then tables of figures; decisions, which say the same
words, come last.

A word in a title counts a thousand times one in a text, so what is to come after all texts counts for less than that.
"""

from __future__ import annotations

from typing import Any

BOOSTS = {"Start": 4.0, "Guides": 4.0, "Numbers": 0.05}  # by the section of the navigation
DECISION = 0.0005


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page counts for more or less; its text is left as it is."""
    sections = [section.title for section in page.ancestors]
    boost = (
        DECISION
        if page.file.src_uri.startswith(("decisions/0", "decisions/short"))
        else BOOSTS.get(sections[-1] if sections else "")
    )
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    return markdown
