"""Which requests fail, of which tenants, and what helps?

`lately.py` sums up the last minute of the failures that `gateway/telemetry` counts, in words; `incidents.py` makes
few events of them and of queues; `advice.py` is the line below the headline. `strangers.py` finds another gateway's
load on our engines; `slow.py` the queues inside them and late first tokens.
"""
