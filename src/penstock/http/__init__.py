"""Our HTTP/1.1, both sides: how do bytes become requests and answers, and what may the other side not do to us?

`server/` is where clients come in, `client/` is how engines are reached; `head.py` writes heads, `inflate.py` unpacks
gzip in steps. Neither side knows what Penstock is: both could serve another program as they are.
"""
