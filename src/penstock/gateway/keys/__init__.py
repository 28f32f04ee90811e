"""Issuing, listing and revoking keys at runtime.

`book.py` stores them and publishes changes; `key_verbs.py` has the operators' verbs.
"""
