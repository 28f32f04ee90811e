"""The dialects of engines. One small file per engine; start with `base.py`."""
