"""How does a proxy get its endpoint from us, if it carries the bytes itself (Envoy's ext_proc)?

An edge without bytes: a request whose head and body a proxy shows us takes the way of every other one (keys, tenants,
bands, the queue, a lease). Only at its dispatch it is not sent: the proxy gets the endpoint, sends the request there,
and shows us the answer. The protocol is 004 of the Gateway API inference extension. Reading order: `pick.py` (the
exchange), `picked_journey.py`, `stream.py` (one ext_proc stream), `picker.py` (what streams share), `peers.py` (whose
word counts), `server.py`, `filters.py` (wrong modes), `unseen.py`.
"""

import os

# gRPC's core writes to standard error by itself, a line for each failed handshake: errors only, unless asked for.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
