"""Is something sent now: which request, and to which endpoints may it go?

Start with `pump.py`: bands, turns, room, in that order. Its conditions: `candidates.py` (endpoints with room for this
request, by the conditions of `admission.py`), `under_share.py` (flows under their share) with `reserved_slots.py`
(slots reserved for them), `backfill.py` (requests passed over because they did not fit, and room reserved for them),
`warm_first.py` (requests that go first in their flow because their prompts are cached),
`prefill_stagger.py` (spreading long prompts), `preemption_budget.py` (slot time that preemption may lose),
`operator_pauses.py` (operators' pauses and drains), `disaggregation.py` (the second lease of a divided request),
`fit.py` (endpoints that a request can never fit).
"""
