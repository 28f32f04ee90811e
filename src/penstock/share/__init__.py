"""How do many carry bytes while one decides? Edges report facts to one decider and carry out its actions.

An edge is a process with clients' connections: a worker beside the decider, or one on another machine. Everything here
is pure: the same state machines run behind sockets (`gateway/cluster`) and in virtual time. `messages.py` is the
protocol, `frames.py` its bytes. `edge.py` takes the place of a scheduler at an edge, with the endpoints in `view.py`.
`decider.py` stands between the edges, each a `Peer`, and the scheduler. Deciders come and go, edges hold the truth:
`announcing.py` reports all of it to the next decider, `gathering.py` checks it. `election.py` is the rule by which a
leader is elected; `gateway/elect` runs it.
"""
