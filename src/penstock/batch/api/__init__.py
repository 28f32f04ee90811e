"""How are files and batches reached over HTTP, and how does an item become a request?

`routes.py` is the table of paths, `calls.py` serves a call that waits for the store; `files.py`, `upload.py`,
`batches.py`. `dispatch.py` makes an item a request whose exchange has no connection. `wiring.py` puts it together,
`metrics.py` counts.
"""
