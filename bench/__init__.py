"""The project's own bench: how good are the scheduler's decisions, in virtual time? Not part of the package.

`scenarios/` are named situations with goals, `lab/` is a matrix of strange engines, `slots.py` are fresh starts before
engines of unknown size, `many/` is the world of several gateways, `traces/` are routers of other projects to compare
with, `agents/` their gates for sessions of coding agents, and `policies.py` policies; `report.py`, `capacity.py` and
`workload.py` are shared. `python -m bench` (`__main__.py`) runs them.
"""
