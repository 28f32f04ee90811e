"""An inference engine, step by step.

`model.py` is the model, `blocks.py` its KV memory, `values.py` its input and output; `profiles.py` has speeds and
sizes, `strange.py` oddities, `pages.py` untrue metrics pages.
"""
