"""How do gateways that decide apart, in several clusters, keep one budget of tokens for each tenant?

`together.py` tells once a second what was used here, takes in what is left for all, and goes on with a part while it
can't. `valkey_budgets.py` is where the budgets stand: buckets that refill by the store's clock. No request waits.
"""
