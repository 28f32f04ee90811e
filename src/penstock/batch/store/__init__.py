"""The store of files, batches and issued keys.

`port.py` is the promise; `sql_store.py` keeps it for `sqlite.py` and `postgres.py` alike, with the statements in
`sql/`, which `database.py` runs. `opening.py` knows which store a gateway has, `thread.py` lets the loop await it;
`copies.py` backs the SQLite file up.
"""
