"""Who holds the prefix of a prompt, as engines and caches say themselves?

Start with `locator.py`, which asks and tells the scheduler. `kv_source.py` follows an endpoint's KV events,
`kv_stream.py` one connection of it; `tokenizer.py` asks an engine for a prompt's tokens (`tokenize_request.py` says
how); `lmcache.py` asks LMCache.
"""
