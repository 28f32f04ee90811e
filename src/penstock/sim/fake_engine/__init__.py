"""How does the engine model look over HTTP, with vLLM's names?

Start with `server.py` and `service.py` (the model's steps and the clock). `calls.py` reads a call, `exchange.py` makes
one client's answer in the words of `answers.py` and `text.py`; `http.py`, `metrics.py`, `log.py` (and the faults),
`adapters.py`, `kv_events.py`, and `transfer.py` with `rooms.py` for KV that another engine computed.
"""
