"""How do bytes get to an engine and back?

Start with `pool.py`, the transport of one endpoint. `call.py` is one request as its sender sees it; `connection.py`
writes a request and reads its answer; `values.py` has timeouts, bounds and errors.
"""
