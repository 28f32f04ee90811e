"""How does an engine speak that serves OpenAI's API and is none of the others? It lists models, and tells nothing else.

It has no signals: our own ledger decides, beginning with the slots of the settings.
"""

from __future__ import annotations

from penstock.engines.base import Engine

OPENAI = Engine(name="openai", title="OpenAI-compatible", bare_paths=True, no_model=("The model `{}` does not exist",))
