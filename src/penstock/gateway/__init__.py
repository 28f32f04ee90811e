"""How does the gateway live: built from the settings, started, reloaded, drained and stopped?

`bootstrap.py` puts the parts together, by what `settings_map.py` says each needs of the settings; `serve.py` is its
life, `fitness.py` checks whether it would start here, `reload.py` gives all parts new settings in one step.
`certificate.py` encrypts connections, `queueing.py` says whether queueing is on, `early_signals.py` holds signals back
until they are handled, and `process.py` is the loop, the CPUs and the memory of the process. `cluster/` makes several
processes and several gateways serve as one; `workers.py` is a worker's command. A request's way is in `proxy/`; the
other rooms are what that asks: `openai/` (bodies and answers), `identity/` (callers), `endpoints/` (engines),
`kv_cache/` (cached prompts), `telemetry/`, `admin/` (operators), `builtin/` (the gateway's own paths).
"""
