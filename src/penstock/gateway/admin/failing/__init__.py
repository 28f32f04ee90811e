"""What fails, whose is it, and what helps?

`lately.py` sums up the last minute of the failures that `gateway/telemetry` counts, in words; `incidents.py` makes few
events of them and of queues; `advice.py` is what to do. `strangers.py` finds another gateway's load on our engines.
"""
