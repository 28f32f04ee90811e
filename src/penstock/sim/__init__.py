"""What would happen? Engines, worlds and strange things, without a GPU and mostly without a clock.

`engine/` models an engine; `fake_engine/` serves the model over HTTP; `world/` runs the real scheduler in virtual time;
`checks/` holds the scheduler to its invariants; `scenarios/` and `traces/` are what can be simulated; `lab/` is the
matrix of strange engines.
"""
