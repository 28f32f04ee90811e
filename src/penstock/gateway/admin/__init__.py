"""What does an operator see and do at run time?

`routes.py` is the table of paths, `auth.py` who may (`own_token.py`: the token of a gateway that was given none). To
see: `watch.py` takes one picture a second for `history.py`, `events.py` (with `episode.py`) and the page (`page/`,
served by `pages.py`); `headline.py` says the state in a sentence, `reasons.py` why something waits, `story.py` a whole
wait; `failing/` is the room of what went wrong. To do: `verbs.py` (endpoints), `requests.py`, `tenants.py`
(`tenant_orders.py`: what operators said of tenants, and how long it holds), `reload_verb.py`.
"""
