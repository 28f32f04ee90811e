"""What does an inference engine do with the requests it is given, step by step?

`model.py` is the model, `blocks.py` its KV memory, `values.py` what it is told and tells, `profiles.py` how fast and
large it is, `capacity.py` what it can do.
"""
