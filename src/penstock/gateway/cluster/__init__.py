"""How do several processes and several gateways serve as one? One process decides, all carry bytes.

Model: workers of this gateway and edges of other gateways are edges of one decider (`penstock/share`), each over one
link. `cluster.py` puts the parts together. The deciding side: `edge_table.py` has all edges, each a `member.py`;
`endpoint_feed.py` sends them the endpoints, `shared_answers.py` stored answers, `operator_orders.py` operators' orders;
`counts.py` adds up what they counted. `supervisor.py` starts the workers' processes. The carrying side: `worker.py`,
with the endpoints in `targets.py`. Between gateways: `role.py` leads, stands by or decides alone; `leader_link.py` is
the link to a decider elsewhere. `link.py` sends and reads frames, over a socket pair or what `listener.py` has accepted
and dialled after `greeting.py` proved that both ends know the secret. `forwarding.py` passes on questions that another
process answers.
"""
