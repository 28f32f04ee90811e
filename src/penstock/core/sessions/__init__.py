"""Which agents' sessions hold the engines' KV memory, and which wait for it?

`recognition.py` finds a request's session; `memory_ledger.py` is the account of memory by endpoint and tenant;
`gate.py` decides who waits, who comes in, and who makes room. `shown.py` has what operators and scalers are told of it.
"""
