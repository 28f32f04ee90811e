"""Verifying an identity provider's tokens (JWT). Needs the extra `jwt`.

`accepted.py` follows the settings, `verifier.py` holds tokens against keys and remembers those that were good,
`issuer_keys.py` has the keys of the issuer. Without the setting the library is not imported.
"""
