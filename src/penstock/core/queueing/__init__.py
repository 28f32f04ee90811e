"""The queue: which requests wait, in which order, what they are charged, and which are refused.

Start with `entry.py`: a request on its way, in records that one room each writes. It waits in a leaf (`flow_queue.py`),
ordered by a key that never changes. Leaves hang in a tree per band (`band.py`); bands are strict. `fair_tree.py` keeps
the tags by which flows take turns, `charges.py` charges and settles, a policy of `fairness.py` only counts service,
`estimate.py` guesses sizes. `queues.py` keeps the bounds of all bands. Limits: `quotas.py` (limits of tenants),
`capped_flows.py` (flows passed over until one of their requests ends), `promised_shares.py` (`min_share` of bands). How
long it will take: `wait_forecast.py`, with the recent first tokens of `ttft_evidence.py`, `position.py` (a place in
line), `codel.py` (standing queues are shed).
"""
