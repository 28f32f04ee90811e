"""What do we believe of one engine: how loaded is it, how fast, how many requests does it run, may it be used?

Start with `endpoint.py`, which holds all of it, and `pool.py`, which holds the endpoints. `lease.py` is one slot, for
one request; `ledger.py` counts our own leases, which decide, and `page.py` what the engine's page adds to them. How
many requests an engine is sent: `concurrency.py`. How fast it is: `speed.py`, and the prompts before it:
`prefill_backlog.py`. Whether it may be used: `health.py` (probes and failures), `proof.py` (is it an engine at all) and
`liveness.py` (does it do what it owes). `roles.py`: which endpoints compute prompts and which answer, in disaggregated
prefill.
"""
