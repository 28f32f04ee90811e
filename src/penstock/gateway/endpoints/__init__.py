"""Which endpoints are there, what are they, and how loaded do they say they are?

Start with `registry.py`, the one place where an endpoint comes, changes or goes; `factory.py` makes its parts,
`trust.py` says which certificates its connections trust and show, and `discovery/` finds endpoints.
`observer.py` asks each endpoint in two loops: is it there (`probe.py`), what is it (`identify.py`), how loaded is it
(`load_reader.py`)? `catalog.py` is the union of the models that they serve; requests that name none wait in
`unnamed.py` until it is known.
"""
