"""Counting a request's service when flows take turns. One file per policy behind one interface.

`base.py` is the interface, `registry.py` the names in the settings; the tree that they serve is
`queueing/fair_tree.py`.
"""
