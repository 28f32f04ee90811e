"""The HTTP server, robust against any client.

Start with `server.py` (listen, count, drain, stop). `listener.py` accepts new connections beside thousands that are
busy, and `unix_socket.py` owns the file of a unix socket; `connection.py` is the state machine of a connection;
`reader.py` turns bytes into single requests within `limits.py`, and knows the head of the request before;
`proxy_header.py` reads a load balancer's PROXY header. `exchange.py` is one request and its answer, as the gateway sees
it, and `socket_exchange.py` carries it. `timer.py`: one timer per connection; `upload_turns.py`: which connection is
read next when many send large bodies.
"""
