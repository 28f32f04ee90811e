"""What happens when the real scheduler meets modelled engines in virtual time?

`world.py` is the clock and the events, `world_values.py` how a run is set up, `workload.py` who asks for what,
`translate.py` between the world's words and the scheduler's, `report.py` what the numbers say;
`passthrough.py` is how requests go past the gateway.
"""
