"""Every decision Penstock makes: pure, synchronous, deterministic; time is an argument.

Read in this order: `request`, `outcome`, `actions`, `lifecycle` (the words); `flow`, `fairness`, `band` (which
request goes next); `endpoint`, `admission`, `health`, `routing` (where, and whether now); `retry` (what a failure
means); `scheduler` (facts in, actions out).
"""
