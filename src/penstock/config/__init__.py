"""What did the operator decide, and can it be trusted? Every error at once, with its place, and no secret in it.

Start with `load.py`: `source.py` reads the YAML, `layers.py` puts file, environment and command line together,
`model.py` with `sections/` is what may be said, `values.py` and `address.py` how values are written, `checks.py`
whether they fit together, `effect.py` which of them do nothing. `problems.py` and `explain.py` tell people what is
wrong. `docs.py` and `schema.py` write the reference; `reloading.py` is the table of what follows a reload.
"""
