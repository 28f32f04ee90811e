"""How does each engine speak? One small file per engine; start with `base.py`, which says what such a file tells."""
