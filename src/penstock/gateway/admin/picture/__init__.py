"""What the live page draws beside the snapshot: how does each tenant do, and which cause is shown?

Read `facts.py`, `steady.py`, `times.py`, `drawn.py` and `memory.py`; `picture.py` has all of it together, `looks.py`
the paths.
"""
