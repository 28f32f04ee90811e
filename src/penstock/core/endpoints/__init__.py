"""The model of one engine: its load, speed, concurrency and health.

Start with `endpoint.py`, which holds all of it, and `pool.py`, which holds the endpoints. `lease.py` is one slot of one
request; `ledger.py` counts our own leases, which decide, and `page.py` adds the engine's page. How many requests an
engine is sent: `concurrency.py`, by the evidence of `judges.py`. How fast it is: `speed.py`, and the prompts before it:
`prefill_backlog.py`. Whether it may be used: `health.py` (probes and failures), `proof.py` (evidence of an engine) and
`liveness.py` (progress of our requests). `adapters.py`: the LoRA adapters in its memory. `roles.py`: which endpoints
compute prompts and which answer, in disaggregated prefill.
"""
