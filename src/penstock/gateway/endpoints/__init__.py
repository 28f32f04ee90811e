"""Which endpoints are there, what are they, and how loaded do they say they are?

Start with `registry.py`, the one place where an endpoint comes, changes or goes; `discovery/` finds them.
`observer.py` asks each in two loops: is it there (`probe.py`), what is it (`identify.py`), how loaded
(`load_reader.py`), all by `probe_client.py`. `catalog.py` is the union of what they serve.
"""
