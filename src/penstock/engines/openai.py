"""The dialect of any other engine with OpenAI's API. It lists models and reports nothing else.

It has no signals: our own ledger decides, beginning with the slots of the settings.
"""

from __future__ import annotations

from penstock.engines.base import Engine

OPENAI = Engine(name="openai", title="OpenAI-compatible", bare_paths=True, no_model=("The model `{}` does not exist",))
