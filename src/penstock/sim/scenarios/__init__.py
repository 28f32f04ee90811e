"""What can be simulated by name? `registry.py` lists the scenarios, `base.py` is what they share, `simulate_cli.py`
the command.
"""
