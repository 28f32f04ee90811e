"""Which endpoints are there that the settings do not list? Each source reports the complete set, on each change.

`base.py` keeps each source going, `sources.py` makes them from the settings. The sources are `file.py`, `dns.py` and
`kubernetes.py` with its `kubernetes_access.py`, `kubernetes_cache.py` and `kubernetes_objects.py`.
"""
