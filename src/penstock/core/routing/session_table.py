"""Where does each session live: a bounded memory, the sessions not heard of for the longest time forgotten first."""

from __future__ import annotations

from collections import OrderedDict

SESSIONS_MAX = 100_000  # about 25 MB; one that is forgotten is at home where its hash says


class SessionTable:
    """Session, per model → endpoint."""

    def __init__(self) -> None:
        self._homes: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def get(self, model: str, session: str) -> str | None:
        return self._homes.get((model, session))

    def moved(self, model: str, session: str, endpoint: str) -> None:
        """A session is at home there now."""
        homes, key = self._homes, (model, session)
        homes[key] = endpoint
        homes.move_to_end(key)
        if len(homes) > SESSIONS_MAX:
            homes.popitem(last=False)
