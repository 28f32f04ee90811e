"""What does an operator see and do at run time?

`routes.py` is the table of paths, `auth.py` who may (`own_token.py`: the token of a gateway that was given none). To
see: `watch.py` takes one picture a second for `history.py`, `events.py` and the page (`page/`, served by `pages.py`);
`headline.py` is the state in a sentence, `why.py` the numbers behind a cause, `story.py` a whole wait, `phrases.py` how
numbers and names read; `failing/` is the room of failures. To do: `verbs.py` (endpoints), `requests.py`, `tenants.py`
(`tenant_orders.py`: what operators set for tenants, and how long it holds), `reload_verb.py`.
"""
