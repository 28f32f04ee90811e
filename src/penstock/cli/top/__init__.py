"""How does `penstock top` show the gateway, and which keys are there?

`live.py` draws once a second and at each key; `wishes.py` holds order and filters, set by keys; `keyboard.py` reads
keys and restores the terminal. `views.py` has the tables, also those of `penstock status`.
"""
