"""What do operators see and do at run time?

`routes.py` is the table of paths, `auth.py` checks tokens (`own_token.py`: the token of a gateway without a set one).
To see: `watch.py` takes one picture a second for `history.py`, `event_log.py` and the page (`page/`, served by
`pages.py`); `headline.py` is the state in a sentence, `why.py` the numbers behind a cause, `story.py` a whole wait,
`phrases.py` how numbers and names read; `failing/` is the room of failures. To do: `verbs.py` (endpoints),
`requests.py`, `tenant_verbs.py` (`tenant_orders.py`: operators' limits and pauses for tenants), `reload_verb.py`.
"""
