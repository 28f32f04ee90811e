"""What can be simulated by name? `registry.py` lists the scenarios, `base.py` has what they share, `simulate_cli.py` is
the command.
"""
