"""How do gateways on several machines serve as one? One of them decides, all carry bytes, any may be elected.

`sharing.py` puts the parts together, `roles.py` turns from one role to another, `standing.py` says which. `greeting.py`
is how two prove to each other that they belong together, `dial.py` how they meet over TCP. `door.py` takes edges of
other gateways where this one decides, `outward.py` is an edge's link to a decider elsewhere, `elsewhere.py` lets the
decider answer what is asked of the whole, and `verbs.py` is what operators may do about it; `words.py` sees to it that
what they said holds when another one decides. `static.py` is the simplest election, the others are in `gateway/elect`.
What passes on a link, and what becomes of it, is in `penstock/share`.
"""
