"""What does an inference engine do with the requests it is given, step by step?

`model.py` is the model; `blocks.py` is its KV memory; `values.py` is what the model is told and tells; `profiles.py`
says how fast and large an engine is; `capacity.py` says what it can do; `strange.py` says what may be odd about it,
`pages.py` what its metrics page shows then.
"""
