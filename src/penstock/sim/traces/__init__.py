"""Recorded workloads under a choice of routing policies.

`trace.py` reads a recording, `trace_source.py` makes jobs of it, `trace_run.py` runs it; `trace_tenants.py` measures
fairness, `trace_plot.py` draws, `trace_cli.py` is the command. Sessions of coding agents, which go on when an answer
has come: `sessions.py` reads them, `session_source.py` plays them, `session_run.py` measures, `session_cli.py` is their
part of the command.
"""
