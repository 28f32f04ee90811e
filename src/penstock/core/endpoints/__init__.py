"""What do we believe of one engine: how loaded is it, how fast, how many requests does it run, may it be used?

Start with `endpoint.py`, which holds all of it, and `pool.py`, which holds the endpoints. The facts are `lease.py`
(one slot, for one request) and `ledger.py` (our own leases decide, readings correct them). The ledger adds what was
sent since a reading (`net_in_flight.py`), which requests that a reading shows are others' (`others_load.py`), prompt
tokens still to compute (`prefill_backlog.py`), time per output token (`tpot.py`) and slots in which the engine works
for nobody (`abandoned_slots.py`). How many requests an engine takes where nobody says: `adaptive_slots.py`, from two
witnesses, our own answers (`running_evidence.py`) and the gauges, as far as they are believed (`gauge_belief.py`).
Whether it may be used: `health.py` (probes and failures), `proof.py` (is it an engine at all) and `liveness.py` (does
it answer in time). `roles.py`: who computes prompts and who answers, in disaggregated prefill.
"""
