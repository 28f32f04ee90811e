"""Many processes that carry bytes, and one that decides.

`link.py` is the line between two of them, `processes.py` is the gateways: their edges, and the deciders that they run.
`many_world.py` is the world around them, with the same clients, engines and journeys as any other, and one that decides
from the start. In `elected_world.py` they elect who does, by the record in `store.py`; there they die, lose each other,
and decide alone.
"""
