"""Is what the scheduler does right?

`invariants.py` holds after every fact, `oracle.py` is the pump once more, naively, `tree_check.py` sums the queue tree
again, `bound.py` is the stated bound of fairness.
"""
