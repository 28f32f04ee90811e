"""Who sent a request, and what may it have?

`callers.py` finds out, `caller.py` is the answer, `name_quota.py` bounds the names that callers invent, `origins.py`
says which web pages and hosts are served.
"""
