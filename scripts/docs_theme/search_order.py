"""What the site's search finds first: guides and reference; decisions, which say the same words, come last."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A decision counts for less; its text is left as it is."""
    if page.file.src_uri.startswith("decisions/0"):
        page.meta["search"] = {"boost": 0.2}
    return markdown
