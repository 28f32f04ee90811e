"""Where does a queued request stand, and for how long still? Asked by clients that wait, and by heartbeats.

A request that is held for its session has the place of that session. No forecast holds for a request of a band that
gets nothing while higher ones wait, nor for a wait that somebody has to end (`UNTIMED`).
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.position import QueuePosition, ranked
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.lifecycle import State


def places(state: SchedulerState, request_ids: Iterable[str], now: float) -> dict[str, QueuePosition]:
    """Returns the positions of those requests that are queued. Many at once are cheap."""
    found = [state.entries.get(request_id) for request_id in request_ids]
    waiting: list[Entry] = [entry for entry in found if entry is not None and entry.state is State.WAITING]
    held = {entry.id: _held(state, entry, now) for entry in waiting if entry.held}
    waiting = [entry for entry in waiting if not entry.held] if held else waiting
    return held | {
        entry.id: QueuePosition(
            position,
            None
            if _starved(state, entry)
            else state.told_wait_s(entry, now, ahead=state.forecast.ahead(position - 1, ahead)),
            now - entry.waits_since_s,
        )
        for entry, position, ahead in ranked(waiting, state.queues.bands)
    }


def _held(state: SchedulerState, entry: Entry, now: float) -> QueuePosition:
    """Returns the place of a held request: that of its session."""
    session = state.gate.session_of(entry.id)
    position = 0 if session is None else state.gate.position(session)
    return QueuePosition(position, state.told_wait_s(entry, now), now - entry.waits_since_s)


def _starved(state: SchedulerState, entry: Entry) -> bool:
    """Whether higher bands wait for the model, and nothing is promised to the request's own: no forecast holds."""
    queues = state.queues
    return queues.bands[entry.band].settings.min_share <= 0.0 and queues.waits_above(entry.band, entry.model)
