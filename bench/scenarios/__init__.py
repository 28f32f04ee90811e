"""What can be simulated by name? `registry.py` lists the scenarios, `base.py` has what they share.

`bound.py` checks the stated bound of fairness, `scaling.py` is a world whose engines come and go, and
`scenarios_cli.py` is the command.
"""
