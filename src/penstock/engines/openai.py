"""How anything speaks that serves OpenAI's API and is none of the others: models, and nothing else.

No signals: our own ledger decides, slots are found by what is set.
"""

from __future__ import annotations

from penstock.engines.base import Engine

OPENAI = Engine(name="openai", title="OpenAI-compatible", no_model=("The model `{}` does not exist",))
