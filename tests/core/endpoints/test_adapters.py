"""The adapters in an engine's memory: the last used ones, as many as it holds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.endpoints.adapters import AdapterMemory
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.observation import Observation
from penstock.core.values.settings import RoutingSettings
from tests.core.drive import request, scheduler, sent

LISTED = ("x", "y", "z")
SETTINGS = SchedulerSettings(routing="predicted_ttft", wait_s_max=1_000.0)


def adapters(held: int | None = None) -> AdapterMemory:
    made = AdapterMemory()
    made.listed = frozenset(LISTED)
    made.read(held, ())
    return made


def held(made: AdapterMemory) -> list[str]:
    return [name for name in LISTED if made.holds(name)]


def test_the_one_not_used_for_longest_goes() -> None:
    made = adapters(2)
    for name in ("x", "y", "x", "z"):
        made.used(name)
    assert held(made) == ["x", "z"]
    assert not made.room


def test_one_is_held_until_the_engine_reports_more() -> None:
    made = adapters()
    made.used("x")
    made.used("y")
    assert held(made) == ["y"]
    made.read(3, ("z",))
    assert held(made) == ["y", "z"], "others' requests use it, too"
    assert made.room
    made.read(None, ())
    made.used("x")
    assert held(made) == ["x", "y", "z"]
    made.forget()
    assert held(made) == []


def test_a_model_that_is_no_adapter_takes_no_place() -> None:
    made = adapters(1)
    made.used("x")
    made.used("base")
    assert held(made) == ["x"]


class Shop:
    """Endpoints `a` and `b` of one base model with three adapters, each with room for one."""

    def __init__(self, slots: int, settings: SchedulerSettings = SETTINGS, *, holds: int = 1) -> None:
        self.made = scheduler(settings, a=slots, b=slots)
        self.now = 0.0
        self.at: dict[str, Dispatch] = {}
        self.asked = 0
        for name in "ab":
            self.made.endpoint_changed(name, models=("base", *LISTED), adapters=LISTED, now=0.0)
            self.made.observed(name, Observation(0.0, 0, 0, adapters_held=holds), now=0.0)

    def ask(self, model: str) -> str | None:
        """Where a request goes; None: it waits."""
        self.asked += 1
        self.now += 0.01
        name = f"r{self.asked}"
        for action in self.made.arrived(request(name, model=model, prompt_tokens=20, streamed=True), now=self.now):
            if isinstance(action, Dispatch):
                self.at[action.request_id] = action
        return self.at[name].endpoint if name in self.at else None

    def end(self, name: str) -> list[tuple[str, str]]:
        self.now += 0.01
        return sent(self.made.finished(self.at.pop(name).lease, now=self.now))


def test_an_adapter_stays_at_its_endpoint_and_another_one_goes_elsewhere() -> None:
    shop = Shop(8)
    homes = {model: [shop.ask(model) for _ in range(3)] for model in ("x", "y")}
    assert homes["x"] in (["a"] * 3, ["b"] * 3)
    assert homes["y"] == [{"a": "b", "b": "a"}[str(homes["x"][0])]] * 3


def test_the_base_model_goes_anywhere() -> None:
    shop = Shop(8)
    assert {shop.ask("base") for _ in range(4)} == {"a", "b"}


def test_an_adapter_spreads_when_its_endpoint_is_slow_and_full() -> None:
    """Its own endpoint has no slot for many seconds, and loading it elsewhere takes one."""
    shop = Shop(2)
    running = [str(shop.ask("x")) and f"r{number}" for number in (1, 2)]
    home = shop.at["r1"].endpoint
    for name in running:
        shop.made.first_token(shop.at[name].lease, now=shop.now)
    shop.ask("x")
    for tokens in range(2, 20):
        shop.now += 0.5
        for name in running:
            shop.made.progressed(shop.at[name].lease, tokens, now=shop.now)
        shop.made.moved("ab", now=shop.now)
        for action in shop.made.expire(now=shop.now):
            if isinstance(action, Dispatch):
                shop.at[action.request_id] = action
    assert shop.at["r3"].endpoint != home


def test_a_request_for_another_adapter_has_its_turn() -> None:
    """Many for `x` come, which both hold; the older one for `y` goes first, whatever is in memory."""
    shop = Shop(1)
    shop.ask("x")
    shop.ask("base")
    shop.ask("y")
    for _ in range(4):
        shop.ask("x")
    assert shop.end("r1") + shop.end("r2") != []
    assert "r3" in {entry.request.id for entry in shop.made.inspect().leases.values()}


@pytest.mark.parametrize("policy", ["predicted_ttft", "kv", "prefix"])
def test_every_policy_that_goes_by_prefixes_goes_by_adapters(policy: str) -> None:
    shop = Shop(8, replace(SETTINGS, routing=policy))
    assert len({shop.ask("x") for _ in range(4)}) == 1


def test_the_switch_turns_it_off() -> None:
    shop = Shop(8, replace(SETTINGS, router=RoutingSettings(adapter_affinity=False)))
    assert {shop.ask("x") for _ in range(4)} == {"a", "b"}


def test_a_restarted_engine_has_none_in_memory() -> None:
    shop = Shop(8)
    first = str(shop.ask("x"))
    endpoint = shop.made.inspect().pool[first]
    assert endpoint.adapters.holds("x")
    shop.made.observed(first, Observation(1.0, 1, 0, progress=9.0, started_s=5.0), now=1.0)
    shop.made.observed(first, Observation(2.0, 0, 0, progress=1.0, started_s=9.0), now=2.0)
    assert not endpoint.adapters.holds("x")
