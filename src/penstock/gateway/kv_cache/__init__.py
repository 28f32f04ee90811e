"""Locating cached prefixes by reports of engines and caches.

`choice.py` says whether anybody is asked. Start with `locator.py`, which asks them and informs the scheduler.
`kv_source.py` follows an endpoint's KV events, `kv_stream.py` one connection of it; `tokenizer.py` asks an engine for a
prompt's tokens (with the query of `tokenize_request.py`); `lmcache.py` asks LMCache.
"""
