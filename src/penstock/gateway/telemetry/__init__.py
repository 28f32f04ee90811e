"""How are requests counted, traced and logged?

`request_events.py` has what happened to requests, as values, until it is counted. `metrics.py` are the series, counted
for as little as an addition (`series.py`), read from a snapshot (`levels.py`) or from worker processes
(`edge_series.py`); `tenant_series.py` are those with a tenant, `failures.py` counts failures by tenant and endpoint.
`exposition.py` writes the page in slices. `reporting.py` sends each request's spans (`tracing.py`) and lines
(`access_log.py`), which `line_log.py` writes in batches. Other projects' names: `production_stack.py`, `llm_d.py`
(series), `routing_log.py` (a line).
"""
