"""How do many carry bytes while one decides? Edges tell one decider facts, and carry out its actions.

An edge is whatever has clients' connections: a worker process beside the decider, a gateway on another machine. Pure:
the same state machines run behind sockets (`gateway/workers`) and in virtual time. Read `messages.py` first, which says
what passes between them; `frames.py` makes bytes of it and reads them strictly; `edge.py` stands where a scheduler
would at an edge; `view.py` is what an edge knows without asking; `decider.py` stands between edges and the scheduler,
and `peer.py` is who sits there. Deciders come and go, edges hold the truth: `announcing.py` is how an edge says all of
it to the next decider, and `gathering.py` how that one takes it. `election.py` says which of several gateways is the
decider.
"""
