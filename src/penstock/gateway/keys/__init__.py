"""How are keys made, listed and withdrawn while the gateway runs?

`book.py` keeps them in the store and tells everybody who looks keys up; `key_verbs.py` is what operators may do.
"""
