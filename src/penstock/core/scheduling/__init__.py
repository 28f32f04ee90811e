"""What does each fact do to what is there?

`state.py` holds: what a scheduler is made of. Functions change it, each file using those before it: `ends.py` (how a
request ends), `sending.py` (a lease is taken and given back), `waiting.py` (may it wait, and for how long),
`judging.py` (what its end says of its endpoint), `returning.py` (its endpoint did not serve it), `recalling.py` (it is
taken back before anything of an answer came). The facts call them: `requests.py`, `endpoints.py`, `operators.py`,
`takeover.py` (another scheduler decided before), `expiry.py` (time); `reconfigure.py` is what becomes of those who are
here when settings change. `questions.py` answers and changes nothing; `inspection.py` is how checkers and tests may
look in.
"""
