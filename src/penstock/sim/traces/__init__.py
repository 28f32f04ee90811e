"""Recorded workloads under a choice of routing policies.

`trace.py` reads a recording, `trace_source.py` makes jobs of it, `trace_run.py` runs it; `trace_tenants.py` measures
fairness, `trace_plot.py` draws, `trace_cli.py` is the command.
"""
