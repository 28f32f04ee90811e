"""What happens to a request: queue, send, stream, settle?

Start with `app.py`, which knows whose path it is, `intake.py`, which admits requests on engines' paths (`arrival.py`:
what is known of one by then; `refusals.py`: the answer to one that goes no further), and `driver.py`, the one owner of
the scheduler. `journey.py` is one request on its way: it owns the lease and reports its end once. `relay.py` is the way
back of the answer, `mending.py` reads a refusal. `direct.py` is the journey of a request that needs no lease; `disagg/`
of one that needs two. `ties.py` finds the session, prefix and earlier answer that tie a request to an endpoint,
`target.py` is an endpoint as senders know it, `headers.py` lists the headers that pass,
`heartbeat.py` tells waiting clients their position, `stored_answers.py` finds answers that engines keep,
`model_profiles.py` holds the settings of models by name, `background.py` follows a response that the engine goes on
with after its first answer.
"""
