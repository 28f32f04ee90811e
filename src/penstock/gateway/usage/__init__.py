"""Who used what? Requests, tokens, seconds of lease and waits, per hour, tenant, key, user, model and endpoint.

`use_counts.py` counts ends of requests in the process that serves them; `usage_book.py` adds the counts to the store,
twice a second; `report.py` answers operators, at their own prices, `own.py` callers; `sheet.py` makes a table of an
answer. `day_budgets.py` takes what was spent before a restart from budgets for a day.
"""
