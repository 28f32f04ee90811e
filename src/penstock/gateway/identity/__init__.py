"""Who sent a request, and what may it have?

`callers.py` finds out, `caller.py` is the answer, `rights.py` bounds what a key may do, `name_quota.py` bounds the
names that callers invent, `origins.py` says which web pages and hosts are served, `cors.py` what browsers are told of
it, `clients.py` whose address a request has that came through others. `tokens/` verifies the tokens of an
identity provider.
"""
