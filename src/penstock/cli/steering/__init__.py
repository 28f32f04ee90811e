"""How does an operator change one thing of a running gateway from a shell? A noun, then a verb.

`endpoint.py`, `tenant.py`, `key.py` and `decider.py` are each the verbs for one noun.
"""
