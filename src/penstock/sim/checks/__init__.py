"""Does the scheduler do the right thing?

`invariants.py` checks what must hold after every fact; `oracle.py` is the pump once more, written naively;
`tree_check.py` sums the queue tree again; `bound.py` checks the stated bound of fairness;
`release.py` checks the shares after a hold.
"""
