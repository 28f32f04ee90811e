"""The endpoints of sessions: a bounded memory that forgets sessions not moved for a long time."""

from __future__ import annotations

from penstock.core.util.bounded_map import BoundedMap

SESSIONS_MAX = 100_000  # about 25 MB; a forgotten one is at its hashed home


class SessionTable:
    """Session, per model → endpoint."""

    def __init__(self) -> None:
        self._homes: BoundedMap[tuple[str, str], str] = BoundedMap(SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._homes)

    def get(self, model: str, session: str) -> str | None:
        """Returns the name of the session's endpoint, if remembered."""
        return self._homes.get((model, session))

    def moved(self, model: str, session: str, endpoint: str) -> None:
        """Note that the session lives at `endpoint` now."""
        self._homes.set((model, session), endpoint)
