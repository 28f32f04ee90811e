"""How are files and batches reached over HTTP, and how does an item become a request?

`routes.py` is the table of paths; `calls.py` serves a call that waits for the store; `files.py`, `upload.py` and
`batches.py` are the calls. `dispatch.py` makes an item a request with an exchange without a connection. `wiring.py`
puts the parts together, `metrics.py` counts.
"""
