"""Commands about a running gateway, a noun and a verb: `endpoint.py`, `tenant.py`, `decider.py`, `wall.py`."""
