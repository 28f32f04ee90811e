"""How do bytes get to an engine and back?

Start with `pool.py`, the transport of one endpoint. `call.py` is one request as its sender sees it;
`upstream_connection.py` writes a request and reads its answer, `answer_turns.py` shares the loop among many;
`values.py` has timeouts, bounds, errors.
"""
