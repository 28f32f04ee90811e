"""The named scenarios. `registry.py` lists the scenarios, `base.py` has their common parts.

`bound.py` checks the stated bound of fairness, `scaling.py` is a world with changing engines, and `scenarios_cli.py` is
the command.
"""
