"""Identifying the client of a request, and its rights.

`callers.py` identifies clients, `caller.py` is the result and what a connection keeps of it, `rights.py` bounds a key,
`former_keys.py` knows whose revoked keys were, `own_limits.py` finds the limits of keys and models, `name_quota.py`
bounds invented names, `unnamed.py` tells callers without a tenant apart, `objectives.py` finds the bands of
InferenceObjectives, `origins.py` checks web pages and hosts, `cors.py` answers browsers, `clients.py` finds a client's
address behind proxies. `tokens/` verifies the tokens of an identity provider.
"""
