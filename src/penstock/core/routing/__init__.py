"""Where does a request go, of the endpoints that are open to it?

Start with `router.py`: it asks one policy (`policies/`), and tells it where the prompt is cached and the session
lives. That comes from `prefix_index.py` (blocks of prompts by endpoint: our own history, or what engines say),
`session_table.py`, `last_sent.py` (where a like prompt went last, however long ago) and `hot_prefixes.py` (asked for
so much that more should hold it). `hit_prediction.py` holds predictions against what engines report.
`affinity_wait.py`: how long is a better endpoint waited for? `other_packages.py` makes good what policies of other
packages get wrong.
"""
