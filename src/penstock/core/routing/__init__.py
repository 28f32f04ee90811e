"""Routing: the choice among the endpoints open to a request.

Start with `router.py`: it asks one policy (`policies/`), with the locations of the cached prompt and the session. These
come from `prefix_index.py` (blocks of prompts by endpoint: our own history, or engines' events), `session_table.py`,
`last_sent.py` (the last endpoint of a similar prompt) and `hot_prefixes.py` (prefixes in such demand that more
endpoints should hold them). `hit_prediction.py` compares predictions with engines' reports. `affinity_wait.py`: how
long is a better endpoint waited for? `other_packages.py` handles faults of other packages' policies.
"""
