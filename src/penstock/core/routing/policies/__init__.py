"""The routing policies. One file per policy behind one interface.

`base.py` is the interface, `registry.py` the names in the settings; docs/policies/README.md describes when to use
which.
"""
