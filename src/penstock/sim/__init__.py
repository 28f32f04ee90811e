"""Engines and worlds in virtual time, without a GPU.

`engine/` models an engine; `fake_engine/` serves the model over HTTP; `world/` runs the real scheduler in virtual time;
`traces/` runs a recorded workload there; `command.py` is shared by commands that simulate.
"""
