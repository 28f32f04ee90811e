"""Engines' dialects: what is asked of an engine, and how are its answers read? No I/O.

Read `base.py` (an engine as data), one engine (`lmdeploy.py`), `page.py` (its metrics page) and `recognise.py` (which
engine is it; the list of all). `kv_blocks.py`, `kv_events.py` and `lmcache.py` read caches, `orca.py` load in answers.
"""
