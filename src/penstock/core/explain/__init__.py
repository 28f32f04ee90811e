"""Why does a request wait, and who got what?

`wait_causes.py` adds up what each line waits for, `shares.py` who got how much, `recorder.py` notes on the way what it
takes to answer, `explanation.py` is the answer. `snapshot.py` is the picture that metrics, page and tests share.
`endpoints_wanted.py`: how many endpoints would it take?
"""
