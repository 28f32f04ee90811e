"""By what is an endpoint chosen? One file per policy behind one interface.

`base.py` is the interface, `registry.py` the names in the settings; docs/policies/README.md says when to use which.
"""
