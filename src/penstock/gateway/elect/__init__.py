"""Electing the leader of several gateways by one record in a store.

The rule is pure: `share/election.py`. `elector.py` runs it: asks a store, and reports what changes. The stores are
`kubernetes_lease.py`, `valkey_hash.py` and `postgres_row.py`; `static.py` needs none. `choose.py` makes the election
that the settings name. A store's library is imported when it is used, so a gateway without a group loads none.
"""
