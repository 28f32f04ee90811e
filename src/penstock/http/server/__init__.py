"""How do clients reach us, whatever they do?

Start with `server.py` (listen, count, drain, stop). `listener.py` takes new connections in beside thousands that are
busy; `connection.py` says what a connection does next; `reader.py` turns bytes into one request at a time within
`limits.py`; `proxy_header.py` is what a load balancer says first of whose connection it is.
`exchange.py` is one request and its answer, as the gateway sees it, and `socket_exchange.py` carries it.
`timer.py`: one timer per connection; `turns.py`: which connection is read next when many send large bodies.
"""
