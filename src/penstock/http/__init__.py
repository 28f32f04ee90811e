"""Our HTTP/1.1, both sides: bytes to requests and answers, with a bound on everything.

`server/` serves clients, `client/` calls engines; `head.py` writes heads, `inflate.py` unpacks gzip in steps. Neither
side depends on Penstock.
"""
