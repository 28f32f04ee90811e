"""What do an engine's answers say: is this a token, did the answer end well, what did it cost?

Read first `answer.py` (one answer as it passes), then `opening.py` (a stream up to its first token) with `events.py`
(what an event means), `stream_end.py` (did it end well) and `usage.py`.
"""
