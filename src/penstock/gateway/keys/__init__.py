"""Issuing, listing and revoking keys at runtime.

`key_book.py` stores them and publishes changes; `key_verbs.py` has the operators' verbs.
"""
