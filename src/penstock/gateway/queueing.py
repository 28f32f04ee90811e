"""Is queueing on, and by which setting? Shown at `/readyz`, in `/admin/state`, on the page and by `penstock status`."""

from __future__ import annotations

import msgspec

from penstock.config.model import Settings


class Queueing(msgspec.Struct, frozen=True):
    """Whether requests may queue here."""

    enabled: bool
    why: str


def queueing(settings: Settings) -> Queueing:
    """Returns this for the settings in force."""
    said_by = settings.origin("queue", "enabled")
    who = "by default" if said_by is None else f"as {said_by} says"
    if settings.queue.enabled:
        return Queueing(
            enabled=True,
            why=f"On, {who}: what no engine can start yet waits here, where it can still be ordered, moved or refused.",
        )
    return Queueing(
        enabled=False,
        why=f"Off, {who} (`queue.enabled: false`): nothing waits, and slots do not limit. Engines queue by themselves.",
    )
