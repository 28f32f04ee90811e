"""Reading an engine's answers: tokens, errors, usage.

Start with `answer.py` (one answer as it passes), then `opening.py` (a stream up to its first token) with `events.py`
(one event), `stream_end.py` (how it ended), `usage.py`, and `packed.py` (gzip and deflate).
"""
