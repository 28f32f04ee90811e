"""The engine model over HTTP, with vLLM's API.

Start with `server.py` (paths) and `service.py` (the model's steps and the clock). `calls.py` parses a call,
`exchange.py` writes its answer with `answers.py` and `text.py`; `http.py` is its HTTP, `metrics.py` its page, `log.py`
its log and faults, `adapters.py` its LoRA adapters, `kv_events.py` its events; `transfer.py` and `rooms.py` handle KV
computed by another engine.
"""
