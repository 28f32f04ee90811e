"""Every decision Penstock makes: pure, synchronous, deterministic; time is an argument.

Facts go in, actions come out: `scheduler.py`. Its rooms, each of which imports only those before it: `util`, `values`
(what facts and actions are made of), `endpoints` (one engine as we believe it), `queueing` (who is next), `routing`
(where), `dispatch` (whether now), `explain` (why not), `scheduling` (what each fact does).
"""
