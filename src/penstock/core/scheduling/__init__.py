"""How does each fact change the state?

`state.py` is the record of all parts; `questions.py` reads it (`places.py`: the place of a queued request). Functions
change it, each file using those before it: `waiting.py` (a request is queued, and how it ends), `gating.py` (before
that it is held, until its session comes in), `sending.py` (a lease is taken or returned), `returning.py` (a failure:
its evidence about the endpoint, and the next step of the request), `preempting.py` (a higher band takes a slot),
`pumping.py` (all that can be sent is sent), `taking_over.py` (another scheduler decided before), `reconfigure.py`
(settings change). The facts themselves are the methods of `Scheduler`, in `core/scheduler.py`.
"""
