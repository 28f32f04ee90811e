"""How do bytes get to an engine and back?

Start with `pool.py`, the transport; `call.py` is what a sender gives, sees and gets to know, `connection.py` writes
one request and reads its answer, `values.py` has times, bounds and what can go wrong.
"""
