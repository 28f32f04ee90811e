"""Why does a request wait, and which tenant got how much?

`wait_causes.py` adds up the causes of each line, `shares.py` the service of each tenant; `recorder.py` notes each
request, `kept.py` decides which of those that ended are remembered, `explanation.py` makes the answer. `snapshot.py` is
the picture that metrics, page and tests share. `endpoints_wanted.py`: how many endpoints would it take?
"""
