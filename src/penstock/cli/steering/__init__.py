"""Commands about a running gateway, a noun and a verb.

`endpoint.py`, `tenant.py`, `sessions.py`, `decider.py`, `wall.py`.
"""
