"""One gateway's election as a process of its own, which writes down each moment at which it may decide.

`python -m tests.gateway.elect.holder NAME SPAN SETTINGS`: all spans of the rule are SPAN times as long, so that what
takes a gateway three seconds takes a test one. A line of what it writes is two moments of the machine's one monotonic
clock, between which it might decide, and the epoch. Times between two lines that follow each other are looked at, too:
a process that was stopped looks before it does anything else.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from penstock.config.sections.elect import KubernetesElection, PostgresElection, ValkeyElection
from penstock.gateway.elect import elector as elector_file
from penstock.gateway.elect.choose import elector
from penstock.share import election

KINDS: dict[str, Any] = {"kubernetes": KubernetesElection, "valkey": ValkeyElection, "postgres": PostgresElection}
LOOK_S = 0.004


def hasten(span: float) -> None:
    """Make every span of the rule `span` times as long."""
    for name in ("TTL_S", "RENEW_S", "STOP_S", "LOOK_S", "REST_S"):
        setattr(election, name, getattr(election, name) * span)
    setattr(elector_file, "ATTEMPT_S", elector_file.ATTEMPT_S * span)  # noqa: B010 - it is final


def elect(settings: dict[str, Any]) -> Any:
    """`share.elect`, as the settings have it."""
    made = {kind: section.model_validate(settings[kind]) for kind, section in KINDS.items() if kind in settings}
    return SimpleNamespace(**{**dict.fromkeys(KINDS), **made})


async def hold(name: str, settings: dict[str, Any]) -> None:
    taking_part = elector(elect(settings), address=name, env={})
    task = asyncio.ensure_future(taking_part.run(lambda standing: print(f"# {name} {standing}", flush=True)))
    while not task.done():
        before_s, epoch = time.monotonic(), taking_part.leads()
        if epoch is not None:
            print(before_s, time.monotonic(), epoch, flush=True)
        await asyncio.sleep(LOOK_S)
    await task


if __name__ == "__main__":
    hasten(float(sys.argv[2]))
    asyncio.run(hold(sys.argv[1], json.loads(sys.argv[3])))
