"""How does the gateway live: what is made of the settings, started, told new ones, drained and stopped?

`bootstrap.py` puts the parts together, by what `settings_map.py` says each needs of the settings; `serve.py` is its
life, `fitness.py` says before that whether it would start here, `reload.py` tells all parts new settings in one step,
`certificate.py` is what connections are encrypted with, `queueing.py` says whether queueing is on, `early_signals.py`
keeps a signal that comes too soon, `large_blocks.py` gives memory back, `event_loop.py` is the loop, `cancelling.py`
ends a task, `cpus.py` says how many processes the machine gives us, which `workers/` are; among gateways on several
machines, `share/` is what makes them one, and `several.py` puts both in their places. A request's way is in `proxy/`;
the other rooms are what that asks: `openai/` (bodies and answers), `identity/` (callers), `endpoints/` (engines),
`kv_cache/` (who holds a prompt), `telemetry/`, `admin/` (operators), `builtin/` (the paths that we answer ourselves).
"""
