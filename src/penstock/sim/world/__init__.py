"""The real scheduler with modelled engines in virtual time.

`world.py` has the clock and the events, `world_values.py` a run's setup, `workload.py` the requests, `translate.py` the
scheduler's view, `report.py` figures; `passthrough.py` bypasses the gateway.
"""
