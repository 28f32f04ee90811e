"""What becomes of a request that came: wait, send, stream, settle?

Start with `app.py`, which knows whose path it is, `intake.py`, which lets requests in on engines' paths (`arrival.py`:
what is known of one by then; `refusals.py`: what it hears that goes no further), and `driver.py`, the one owner of the
scheduler. `journey.py` is one request on its way: it owns the lease and reports its end once. `relay.py` is the way
back; `direct.py` the journey of what needs no lease; `disagg/` of what needs two. `ties.py` finds what ties a request
to an endpoint, `target.py` is an endpoint as senders know it, `headers.py` says which headers pass, `heartbeat.py`
tells those who wait for a stream where they stand, `stored_answers.py` finds answers that engines keep,
`foreign.py` tells what is no engine's answer,
`model_profiles.py` what is said of a model's name, `slices.py` reads large bodies without holding up everybody else.
"""
