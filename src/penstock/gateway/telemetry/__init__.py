"""How are requests counted, traced and logged?

`metrics.py` are the series, counted for as little as an addition (`series.py`), read from a snapshot (`levels.py`) or
from worker processes (`edges.py`); `tenants.py` are those with a tenant, `failures.py` counts failures by tenant and
endpoint. `exposition.py` writes the page in slices. `reporting.py` sends each request's spans (`tracing.py`) and lines
(`access_log.py`). As another project has them: `production_stack.py` its router's series, `routing_log.py` its line.
"""
