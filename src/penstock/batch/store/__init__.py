"""The store of files, batches and issued keys.

`port.py` is the promise; `sql_store.py` keeps it for `sqlite.py` and `postgres.py` alike, with the statements in
`sql/`, which `database.py` runs; `thread.py` lets the event loop await a store. `copies.py` backs the SQLite file up.
"""
