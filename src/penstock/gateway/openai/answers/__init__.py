"""Reading an engine's answers: tokens, errors, usage.

Start with `answer.py` (one answer as it passes), then `opening.py` (a stream up to its first token) with `events.py`
(one event), `stream_end.py` (how it ended), `usage.py`, `packed.py` (gzip and deflate),
and `renamed.py` (the model's name, if the engine has another one).
"""
