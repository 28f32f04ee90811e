"""Sessions of coding agents before a gate: what would other projects' gates do with them, and is our world true?

`rivals.py` has gates and placements of others; `published.py` compares the world with measurements on real engines,
`chat.py` has chat of single turns beside them.
"""
