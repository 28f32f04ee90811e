"""What does each fact do to what is there?

`state.py` is what a scheduler is made of. On it stand, each using those before it: `ends.py` (how a request ends),
`sending.py` (a lease is taken and given back), `waiting.py` (who may wait, and time), `requests.py`, `endpoints.py`
and `operators.py` (the facts); `reconfigure.py` is what becomes of those who are here when settings change.
"""
