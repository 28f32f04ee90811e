"""How did a stream end: what do its last events say?

`[DONE]` is no proof of success (DESIGN §4.11): engines send it after an error event, too, and after an abort. The
last few events tell, so only the stream's tail is kept and looked at, once, at the end. The patterns are safe
against what a model says: inside of JSON its quotes and line breaks are escaped.
"""

from __future__ import annotations

import re

TAIL_BYTES = 4096  # the last token, usage and [DONE] are some 600 bytes; this leaves room for many choices

_ERROR = re.compile(rb'^(?:data: ?\{"(?:error"|object": ?"error")|event: ?(?:error|response\.failed)\s)', re.MULTILINE)
_ABORTED = re.compile(rb'"finish_reason": ?"abort"')
_FINISHED = re.compile(rb'"finish_reason": ?"')
_DONE = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
_WITH_FINISH_REASON = frozenset({"/v1/chat/completions", "/v1/completions"})


def ended_well(path: str, tail: bytes) -> bool:
    """Whether a stream of server-sent events, whole as HTTP goes, is an answer and not a failure."""
    if _ERROR.search(tail) or _ABORTED.search(tail):
        return False
    if path == "/generate_stream":  # TGI: its last event holds the whole text, which may be longer than the tail
        return b'"generated_text":null' not in tail[tail.rfind(b"\ndata:") + 1 :].replace(b": ", b":")
    return path not in _WITH_FINISH_REASON or _DONE.search(tail) is None or _FINISHED.search(tail) is not None
