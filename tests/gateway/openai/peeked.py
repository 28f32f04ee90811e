"""What was read of a body, for comparisons."""

from __future__ import annotations

from penstock.gateway.openai.body import Peek


def told(found: Peek) -> dict[str, object]:
    """Returns all fields except the prompt's, which are read in another form."""
    return {name: getattr(found, name) for name in dir(found) if not name.startswith("_") and name != "text"}
