"""Which of several gateways decides, as one record in a store says?

The rule is pure: `share/election.py`. `elector.py` runs it: asks a store, and says what changes. The stores are
`kubernetes_lease.py`, `valkey_hash.py` and `postgres_row.py`; `choose.py` makes the one that the settings name.
What a store needs is imported when it is made, so a gateway that shares nothing loads none of it.
"""
