"""How does the engine model look over HTTP, with vLLM's names?

Start with `server.py` (paths) and `service.py` (the model's steps and the clock). `calls.py` reads a call,
`exchange.py` makes one client's answer in the words of `answers.py` and `text.py`; `http.py` is its HTTP, `metrics.py`
its page, `log.py` what it saw and its faults, `adapters.py` its LoRA adapters, `kv_events.py` its events;
`transfer.py` and `rooms.py` are for KV that another engine computed.
"""
