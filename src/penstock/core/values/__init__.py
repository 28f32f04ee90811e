"""The values of facts, actions and answers. Frozen values and closed lists; no algorithm.

Read `request.py` (a request to the scheduler: sizes, a model, a band, never a body), `lifecycle.py` (the table of
states, the source of docs/states.md), `catalogue.py` (every code that explains something, with its sentence),
`actions.py` (the driver's tasks), then `observation.py` (a reading of an engine's gauges), `located.py` (cached tokens
by endpoint), `retry.py` (the meaning of a failure), `takeover.py` (what a new decider learns), `settings.py` and
`rows.py` (rows of the snapshot).
"""
