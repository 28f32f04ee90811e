"""How long may a batch take? `completion_window` in any length: `24h`, `90s`, `15m`, `7d`, also `1d12h`."""

from __future__ import annotations

import re

WINDOW_S_MIN = 1.0
WINDOW_S_MAX = 366 * 86_400.0
_PART = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def window_s(text: object) -> float | None:
    """Returns the window in seconds; None if `text` is no window, or of a length that makes no sense."""
    if not isinstance(text, str) or len(text) > 64 or not re.fullmatch(rf"(?:{_PART.pattern})+", text, re.ASCII):
        return None
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    return seconds if WINDOW_S_MIN <= seconds <= WINDOW_S_MAX else None
