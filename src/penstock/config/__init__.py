"""What did the operator decide, and can it be trusted? Every error is told at once, with its place and without secrets.

Start with `load.py`. `source.py` reads the YAML; `layers.py` puts file, environment and command line together;
`model.py` with `sections/` has all settings; `values.py` and `address.py` say how a value is written; `checks.py` asks
whether values fit together, `effect.py` which of them do nothing. `problems.py` and `explain.py` tell people what is
wrong, `other_words.py` what another program's word is here. `docs.py` and `schema.py` write the reference;
`reloading.py` is the table of what follows a reload. `production_stack/` reads another router's flags.
"""
