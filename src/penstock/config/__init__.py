"""The settings: reading, merging, checking and documenting them. All errors are reported at once, with their origin and
without secrets.

Start with `load.py`. `source.py` reads the YAML; `layers.py` merges file, environment and command line; `model.py` and
`sections/` define the settings, `values.py` and `address.py` their types, `paths.py` the table of paths. `checks.py`
refuses contradictions, `path_checks.py` those of paths; `effect.py` warns of settings without effect. `problems.py` and
`explain.py` word the errors; `other_words.py` knows the names other programs use, `former_words.py` former ones of
ours. `schema.py` writes the JSON Schema; `reloading.py` is the table of reload effects. `production_stack/` reads
another router's flags.
"""
