"""Is that an engine's answer, or that of something else which happens to be at the address? (docs/decisions/0066)

File servers, login pages and ingresses without a route answer too: with a web page, a redirect, or that there is no
such path. Engines answer so, too, where a caller asks for a path that this one does not have; so the answer speaks
against an engine only where it has answered well on this path before, or nothing says yet that it is one.
"""

from __future__ import annotations

import msgspec

_NO_SUCH_PATH = frozenset({301, 302, 303, 307, 308, 404, 405, 410, 501})
_FORBIDDEN = frozenset({401, 403})  # of buckets; an engine's are about keys


def is_page(status: int, content_type: bytes) -> bool:
    """Whether a good answer is a web page, which no engine makes."""
    return status < 300 and content_type[:9].lower() == b"text/html"


def is_suspect(status: int, *, proven: bool) -> bool:
    """Whether an answer of this status may be none of an engine; its body will tell."""
    return status in _NO_SUCH_PATH or (not proven and status in _FORBIDDEN)


def is_api_error(body: bytes | bytearray) -> bool:
    """Whether an error's body is one of an API that we know, and not what a web server says of its own."""
    try:
        page = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(page, dict) and (bool(page.get("error")) or page.get("object") == "error")
