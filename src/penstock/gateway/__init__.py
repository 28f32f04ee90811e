"""How does the gateway live: built from the settings, started, reloaded, drained and stopped?

`bootstrap.py` puts the parts together, with the settings that `settings_map.py` selects for each; `serve.py` is its
life, `fitness.py` checks whether it would start here, `reload.py` gives all parts new settings in one step.
`certificate.py` encrypts connections, `queueing.py` reports whether queueing is on, `early_signals.py` holds signals
back until they are handled, and `process.py` is the loop, the CPUs and the memory of the process. `cluster/` makes
several processes and several gateways serve as one; `workers.py` is a worker's command. A request's way is in
`proxy/`, which uses the other rooms: `openai/` (bodies and answers), `identity/` (callers), `endpoints/` (engines),
`kv_cache/` (cached prompts), `telemetry/`, `admin/` (operators), `builtin/` (the gateway's own paths).
"""
