"""How would a recorded workload fare here, under this routing or that?

`trace.py` reads a recording, `trace_source.py` makes jobs of it, `trace_run.py` runs one; `trace_tenants.py`
(fairness), `trace_plot.py`, and `trace_cli.py`, the command.
"""
