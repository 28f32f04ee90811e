"""How are requests counted, traced and logged?

`metrics.py` are the series, counted for as little as an addition (`series.py`), read from a snapshot (`levels.py`) or
from what worker processes say of themselves (`edges.py`); `tenants.py` are those with a tenant. `failures.py` is what
ended badly and whose it was. `exposition.py` writes the page in slices. `tracing.py` and `access_log.py` are told by
journeys, where `reporting.py` says so. As another project has them: `production_stack.py` its router's series,
`routing_log.py` its line per request.
"""
