"""How does each fact change the state?

`state.py` is the record of all parts; `questions.py` reads it. Functions change it, each file using those before it:
`ends.py` (a request ends), `sending.py` (a lease is taken or returned), `waiting.py` (may a request wait, and for how
long), `judging.py` (what the end of a request shows of its endpoint), `returning.py` (its endpoint did not serve it),
`recalling.py` (it is taken back from an engine before its answer begins), `reconfigure.py` (settings change). The facts
themselves are the methods of `Scheduler`, in `core/scheduler.py`.
"""
