"""Is something sent now: which request, and to which endpoints may it go?

Start with `pump.py`: bands, turns, room, in that order. Its conditions: `candidates.py` (endpoints with room for this
request, by the conditions of `admission.py`), `under_share.py` (flows under their share) with `reserved_slots.py`
(slots reserved for them), `backfill.py` (who was passed over because it did not fit, and what is reserved for it),
`prefill_stagger.py` (where a long prompt disturbs least), `operator_pauses.py` (what operators stopped),
`disaggregation.py` (the second lease of a request that is divided), `fit.py` (which endpoints a request is too long
for).
"""
