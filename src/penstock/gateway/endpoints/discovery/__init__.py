"""Which endpoints are there that the settings do not list? Each source reports the complete set, on each change.

`base.py` keeps each source going, `sources.py` makes them from the settings. The sources are `file.py`, `dns.py`,
`kubernetes.py` and `kubernetes_pool.py` (with `kubernetes_pool_objects.py`); these two share `kubernetes_access.py`,
`kubernetes_follower.py`, `kubernetes_cache.py` and `kubernetes_objects.py`.
"""
