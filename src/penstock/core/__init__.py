"""Every decision Penstock makes: pure, synchronous, deterministic; time is an argument.

Facts go in, actions come out: `scheduler.py`. Its rooms, each of which imports only those before it: `util`, `values`
(facts and actions), `endpoints` (estimates of one engine), `queueing` (order), `sessions` (agents' KV memory),
`routing` (the endpoint), `dispatch` (the moment), `explain` (causes of waiting), `scheduling` (each fact's effects).
"""
