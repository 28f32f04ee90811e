"""What are facts, actions and answers made of? Frozen values and closed lists; no algorithm.

Read `request.py` (what the scheduler knows of a request: sizes, a model, a band, never a body), `lifecycle.py` (the
table of states, which docs/states.md is drawn from), `catalogue.py` (every code that explains something, with its
sentence), `actions.py` (what the driver is asked to do), then `observation.py` (a reading of an engine's gauges),
`located.py` (who holds how much of a prompt), `retry.py` (what a failure means), `settings.py` and `rows.py` (what the
snapshot shows).
"""
