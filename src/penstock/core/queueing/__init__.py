"""Who is next? Which requests wait, in which order, who pays how much for them, and who may not wait at all?

Start with `entry.py`: a request on its way, in records that one room each writes. It waits in a leaf (`flow_queue.py`),
ordered by a key that never changes (`ordering.py`). Leaves hang in a tree per band (`band.py`); bands are strict.
`fair_tree.py` keeps the tags by which flows take turns, `charges.py` charges and settles, a policy in `fairness/` says
only how service counts, `estimate.py` guesses sizes. `queues.py` keeps the bounds of all bands together. Who may have
less than it could: `quotas.py` (limits of tenants), `capped_flows.py` (flows passed over until one of their requests
ends), `promised_shares.py` (`min_share` of bands). How long it will take: `wait_forecast.py`, for which
`ttft_evidence.py` keeps what recent answers showed, `position.py` (a place in line), `codel.py` (queues that stand are
shed).
"""
