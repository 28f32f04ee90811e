"""Which session is a request a turn of? By the name that its client gives, otherwise by its prompt.

**Model.** A prompt *ends* where its client waits for an answer. The next turn repeats the prompt, adds the answer, and
goes on; so one of its earlier ends is the whole prompt of the turn before. An edge hashes the last few ends of a
prompt, and its first (`gateway/openai/prompt_ends.py`). Here the end of each whole prompt is remembered with its
session: a request of the same caller (tenant, flow and model) with one of these ends continues that session, the latest
end first. Otherwise it begins a session, whose name is made from its prompt: equal prompts make equal names, in every
process. Two conversations that begin alike are one session here: they share what they have in the cache, too.

A sub-agent is a *part* of its parent's session. Parents may be parts themselves, so it is remembered who is a part of
whom, and the session is the root. All of that is kept by flow within a tenant: a name that is not the client's own
moves only its own requests.

**Bound.** `ENTRIES_MAX` in all, and the tenant that has the most makes room, its oldest first. So a tenant loses none
as long as another one has more: whoever makes up names pushes out his own.
"""

from __future__ import annotations

from typing import Final

from penstock.core.values.request import Request, Turn

ENTRIES_MAX: Final = 100_000  # 30 MB: one for each long unnamed prompt, as many as a busy gateway gets in hours
KEEP_S: Final = 43_200.0  # overnight a session is cold anyway
DEPTH_MAX: Final = 8  # of sub-agents' sub-agents
RECOUNT: Final = 400  # looks for the tenant that has the most, while as many entries are dropped as there may be

_Key = tuple[tuple[str, ...], str, int | str]  # flow, and model with an end, or a part's name
_Names = dict[_Key, tuple[str, float]]  # a session or a parent, and when it was noted


class SessionNames:
    """The sessions of recent prompts, and the parents of recent sub-agents."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._of: dict[str, _Names] = {}  # by tenant; the one noted last comes last
        self._count = 0
        self._most = ""  # the tenant that has the most entries, or had when it was looked for
        self._dropped = 0  # since that look

    def __len__(self) -> int:
        return self._count

    def find(self, request: Request, now: float) -> tuple[str, str] | None:
        """Returns a request's session and the sub-agent in it ("": the session itself); None: it is of none."""
        turn = request.turn
        if turn is None:
            return None
        if turn.session:
            return self._named(request, turn, now)
        if not turn.ends:
            return None
        flow, model = request.flow, request.model
        names, session = self._of.get(request.tenant), ""
        if names is not None:
            for end in reversed(turn.ends):
                known = names.get((flow, model, end))
                if known is not None:
                    session = known[0]
                    break
        if not session:
            session = turn.first_name
        self._note(request.tenant, (flow, model, turn.ends[-1]), session, now)
        return session, ""

    def _named(self, request: Request, turn: Turn, now: float) -> tuple[str, str]:
        """Returns the root of a named session."""
        session, part, flow = turn.session, turn.part, request.flow
        names = self._of.get(request.tenant)
        if names is not None:
            for _ in range(DEPTH_MAX):
                known = names.get((flow, "", session))
                if known is None or known[0] == turn.session:
                    break
                session = known[0]
        if part == session:
            return session, ""
        if part:
            self._note(request.tenant, (flow, "", part), turn.session, now)
        return session, part or (turn.session if session != turn.session else "")

    def _note(self, tenant: str, key: _Key, name: str, now: float) -> None:
        names = self._of.get(tenant)
        if names is None:
            names = self._of[tenant] = {}
        if names.pop(key, None) is None:
            self._count += 1
        names[key] = (name, now)
        oldest = next(iter(names))
        if now - names[oldest][1] > KEEP_S:
            self._drop(tenant, oldest)
        most = self._of.get(self._most)
        if most is None or len(names) > len(most):
            self._most = tenant
        if self._count > self._entries_max:
            self._dropped += 1
            if self._dropped * RECOUNT > self._entries_max:
                self._most, self._dropped = max(self._of, key=lambda each: len(self._of[each])), 0
            self._drop(self._most, next(iter(self._of[self._most])))

    def _drop(self, tenant: str, key: _Key) -> None:
        names = self._of[tenant]
        del names[key]
        self._count -= 1
        if not names:
            del self._of[tenant]
