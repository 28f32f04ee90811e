"""Which endpoints exist, which engines are they, and how loaded?

Start with `registry.py`, which adds, changes and removes endpoints; `factory.py` makes their parts, and `discovery/`
finds them. `observer.py` polls each endpoint in two loops: its health (`probe.py`), kind
(`identify.py`) and load (`load_reader.py`). `catalog.py` is the union of the served models, with the names that
stand for several of them (`splits.py`); requests that come before the models are known wait in `early.py`. Pools bring
rules for requests, too (`pool_rules.py`).
"""
