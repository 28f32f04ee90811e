"""Which endpoints exist, which engines are they, and how loaded?

Start with `registry.py`, where endpoints are added, changed and removed; `factory.py` makes their parts, `trust.py`
their TLS contexts, and `discovery/` finds them. `observer.py` asks each endpoint in two loops: is it up (`probe.py`),
what is it (`identify.py`), how loaded is it (`load_reader.py`)? `catalog.py` is the union of the served models;
requests without a model wait in `unnamed.py` until one is known.
"""
