"""Engines' events, as they send them, and the sessions that they concern: from bytes to the account of memory."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.request import Contents, Request, Turn, Usage
from penstock.core.values.settings import EndpointSpec, SessionSettings
from penstock.engines.kv_blocks import EndpointBlocks, prompt_keys
from penstock.engines.kv_events import decode
from penstock.gateway.kv_cache.choice import tells

SIZE = 16
PROMPT = list(range(1, 10 * SIZE + 2))  # ten whole blocks
HASHES = list(range(101, 111))


class Line:
    """One scheduler before two engines of 1,000 tokens; what the first one publishes is passed on as in the gateway."""

    def __init__(self) -> None:
        settings = SchedulerSettings(sessions=SessionSettings(memory=True, corrected=False))
        self.scheduler: Scheduler = CheckedScheduler(settings, random=Random(1))
        for name in ("a", "b"):
            spec = EndpointSpec(name, slots=4, models=frozenset({"m"}), kv_tokens=1000)
            self.scheduler.endpoint_added(spec, now=0.0)
        self._blocks = EndpointBlocks()
        self._tell = tells(self)  # type: ignore[arg-type]

    def now(self) -> float:
        return 1.0

    def tell(self, actions: list[Action]) -> None:
        assert not actions

    def publish(self, *events: object, rank: int = 0) -> None:
        batch = decode(msgspec.msgpack.encode([1.5, list(events), rank]))
        assert batch is not None
        self._tell("a", self._blocks.apply(rank, batch.events))

    def forget(self, rank: int) -> None:
        self._tell("a", self._blocks.forget(rank))

    def turn(self) -> None:
        """One turn of the session, from its beginning to its end, at the first engine."""
        request = Request(
            "r", "m", 0,
            tenant="t", flow=("t",), turn=Turn("s"), only=("a",), locate_s=1.0,
            contents=Contents(0, token_ids=len(PROMPT)), output_tokens_max=1,
        )  # fmt: skip
        actions = self.scheduler.arrived(request, now=1.0)
        actions += self.scheduler.located("r", prompt_keys(PROMPT, SIZE), SIZE, now=1.0)
        (sent,) = [action for action in actions if isinstance(action, Dispatch)]
        self.scheduler.finished(sent.lease, Usage(len(PROMPT), 5), now=1.0)

    @property
    def home(self) -> str | None:
        (session,) = self.scheduler.inspect().gate.ledger.sessions.values()
        return session.home


def stored(**more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": HASHES, "parent_block_hash": None, "token_ids": PROMPT[: 10 * SIZE],
        "block_size": SIZE, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": None, "group_idx": 0,
        "kv_cache_spec_kind": "full_attention", **more,
    }  # fmt: skip


def removed(hashes: list[int], medium: str | None = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium, "group_idx": 0}


def as_array(event: dict[str, Any]) -> list[Any]:
    return list(event.values())


@pytest.fixture
def line() -> Line:
    line = Line()
    line.publish(stored())
    line.turn()
    assert line.home == "a"
    return line


@pytest.mark.parametrize("form", [dict, as_array])
def test_a_session_is_resident_as_long_as_half_of_its_blocks_are_there(line: Line, form: Any) -> None:
    line.publish(*(form(removed([block])) for block in reversed(HASHES[6:])))
    assert line.home == "a", "engines give up a prompt's end first"
    line.publish(form(removed([HASHES[5]])))
    assert line.home is None


@pytest.mark.parametrize("event", [{"type": "AllBlocksCleared"}, ["AllBlocksCleared"]], ids=["map", "array"])
def test_a_cleared_cache_holds_no_session(line: Line, event: object) -> None:
    line.publish(event)
    assert line.home is None


def test_blocks_that_the_hosts_memory_holds_are_there(line: Line) -> None:
    line.publish(stored(medium="CPU", token_ids=[]), removed(HASHES))
    assert line.home == "a"
    line.publish(removed(HASHES, "CPU"))
    assert line.home is None


def test_blocks_of_a_tier_that_does_not_count_say_nothing(line: Line) -> None:
    line.publish(removed(HASHES, "DISK"), removed([7, 8, 9]))
    assert line.home == "a"


def test_what_another_rank_holds_is_there(line: Line) -> None:
    line.publish(stored(), rank=1)
    line.publish(removed(HASHES), rank=1)
    assert line.home == "a"
    line.publish(removed(HASHES))
    assert line.home is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_blocks_of_which_nobody_tells_any_more_may_be_there(line: Line, ranks: int) -> None:
    if ranks == 2:
        line.publish(stored(token_ids=[5] * 10 * SIZE), rank=1)
    line.forget(0)
    assert line.home == "a"
