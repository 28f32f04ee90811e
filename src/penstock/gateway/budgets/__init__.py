"""How do separate groups of gateways share one token budget per tenant?

`together.py` reports the use here once a second, reads the common remainders, and continues with a part while the store
is unreachable. `valkey_budgets.py` stores the budgets: buckets that refill by the store's clock. No request waits.
"""
