"""Within a flow's turn, requests whose prompts are cached where there is room go first, within the bound."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.located import Source
from penstock.core.values.request import Request
from penstock.core.values.settings import Limits, Prices, RoutingSettings
from tests.core.drive import request, scheduler

SETTINGS = SchedulerSettings(routing="predicted_ttft", wait_s_max=10_000.0)
TOKENS_PER_KEY = 128


def key(text: str) -> int:
    """The key of a chunk of a prompt with this text."""
    return int.from_bytes(text.encode())


def asked(name: str, document: str, *, keys: int = 16, system: int = 0, **more: object) -> Request:
    """A prompt about a document of so many `keys`, after a `system` prompt that all have."""
    prefix = (*(key(f"system{n}") for n in range(system)), *(key(f"{document}-{n}") for n in range(keys)))
    own = key(f"{name}?")
    tokens = TOKENS_PER_KEY * (len(prefix) + 1)
    size = 512 * (len(prefix) + 1)
    return request(name, prefix=(*prefix, own), prompt_tokens=tokens, body_bytes=size, **more)  # type: ignore[arg-type]


class Line:
    """One engine with one slot, taken; what waits for it is served one after the other."""

    def __init__(self, settings: SchedulerSettings = SETTINGS, **slots: int) -> None:
        self.made = scheduler(settings, **(slots or {"a": 1}))
        self.now = 0.0
        self.running: list[Dispatch] = []
        self.served: list[str] = []
        for number in range(sum(slots.values()) or 1):
            self.ask(request(f"first{number}"))
        self.served.clear()

    def note(self, actions: list[object]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.running.append(action)
                self.served.append(action.request_id)

    def ask(self, *requests: Request) -> None:
        for each in requests:
            self.now += 0.001
            self.note(self.made.arrived(each, now=self.now))  # type: ignore[arg-type]

    def serve(self, count: int) -> str:
        """So many answers end, and what was sent instead is told by its document."""
        for _ in range(count):
            self.now += 0.1
            self.note(self.made.finished(self.running.pop(0).lease, now=self.now))  # type: ignore[arg-type]
        return "".join(name[0] for name in self.served)


def three_by_three(**more: object) -> list[Request]:
    return [asked(f"{document}{turn}", f"{document}", **more) for turn in range(3) for document in range(3)]  # type: ignore[arg-type]


@pytest.mark.parametrize("system", [0, 16, 40], ids=["nothing in common", "half in common", "most in common"])
def test_questions_about_one_document_go_together(system: int) -> None:
    line = Line()
    line.ask(*three_by_three(system=system))
    assert line.serve(9) == "000111222"


def test_documents_of_different_lengths_go_together() -> None:
    line = Line()
    line.ask(*(asked(f"{d}{turn}", f"{d}", keys=keys) for turn in range(3) for d, keys in enumerate((40, 6, 16))))
    assert line.serve(9) == "000111222"


def test_without_a_group_the_order_is_that_of_arrival() -> None:
    line = Line(replace(SETTINGS, router=RoutingSettings(prefix_group=0)))
    line.ask(*three_by_three())
    assert line.serve(9) == "012012012"


def test_a_tenant_at_its_limit_does_not_go_first() -> None:
    """Without flows it waits among the others, and its document is cached."""
    line = Line(replace(SETTINGS, fairness="fcfs", tenants={"limited": Limits(running=0)}))
    line.ask(asked("0a", "0"), asked("1a", "1"), asked("0b", "0", tenant="limited"))
    assert line.serve(2) == "01"


def test_a_policy_without_prefixes_keeps_the_order_of_arrival() -> None:
    line = Line(replace(SETTINGS, routing="least_loaded"))
    line.ask(*three_by_three())
    assert line.serve(9) == "012012012"


@pytest.mark.parametrize("most", [32, 4])
def test_a_request_is_passed_no_more_often_than_stated(most: int) -> None:
    line = Line(replace(SETTINGS, router=RoutingSettings(prefix_group=most)))
    line.ask(asked("0a", "0"))
    line.serve(1)
    line.ask(asked("1a", "1"))
    for number in range(3 * most):  # however many come: each finds its document cached
        line.ask(asked(f"0{number}", "0"))
        line.serve(1)
    assert line.served.index("1a") == most + 1


def test_only_so_many_are_looked_at() -> None:
    line = Line()
    line.ask(asked("0a", "0"))
    line.serve(1)
    line.ask(*(asked(f"{number + 10}", f"other{number}") for number in range(40)), asked("0b", "0"))
    line.serve(1)
    assert line.served == ["0a", "10"]


def test_a_short_prompt_is_not_passed_because_it_displaces_nothing() -> None:
    line = Line()
    line.ask(asked("0a", "0"))
    line.serve(1)
    line.ask(request("hello"), asked("1", "1", keys=1), asked("0b", "0"))
    line.serve(3)
    assert line.served == ["0a", "hello", "1", "0b"]


def test_a_request_of_a_sooner_deadline_or_higher_priority_is_not_passed() -> None:
    for sooner in ({"deadline_s": 50.0}, {"priority": -1}):
        line = Line()
        line.ask(asked("0a", "0"))
        line.serve(1)
        line.ask(asked("1", "1", **sooner), asked("0b", "0"))
        line.serve(2)
        assert line.served == ["0a", "1", "0b"], sooner


def test_flows_take_their_turns_as_before() -> None:
    line = Line(replace(SETTINGS, prices=Prices(prompt=1.0, cached_prompt=1.0, completion=2.0)))
    for turn in range(3):
        for document in range(2):
            line.ask(asked(f"{document}a{turn}", f"{document}", tenant="a"))
            line.ask(asked(f"{document}b{turn}", f"{document}", tenant="b"))
    line.serve(12)
    tenants = [name[1] for name in line.served]
    assert all(abs(tenants[:k].count("a") - tenants[:k].count("b")) <= 1 for k in range(13))
    assert [name[0] for name in line.served if name[1] == "a"] == list("000111")


def test_of_two_engines_each_gets_the_documents_that_it_holds() -> None:
    line = Line(a=1, b=1)
    line.ask(*(asked(f"{d}{turn}", f"{d}") for turn in range(4) for d in range(4)))
    homes: dict[str, set[str]] = {}
    for _ in range(16):
        line.now += 0.1
        line.note(line.made.finished(line.running.pop(0).lease, now=line.now))  # type: ignore[arg-type]
        homes.setdefault(line.running[-1].request_id[0], set()).add(line.running[-1].endpoint)
    assert [len(names) for names in homes.values()] == [1, 1, 1, 1]


def test_an_empty_cache_is_not_warm() -> None:
    line = Line()
    line.ask(asked("0a", "0"))
    line.serve(1)
    line.ask(asked("1", "1"), asked("0b", "0"))
    line.made.endpoint_down("a", now=line.now)
    line.made.endpoint_up("a", now=line.now)
    line.serve(2)
    assert line.served == ["0a", "1", "0b"]


@pytest.mark.parametrize(("held", "order"), [(2_048, ["1", "0"]), (128, ["0", "1"])])
def test_a_look_up_counts_before_our_own_history(held: int, order: list[str]) -> None:
    line = Line()
    line.ask(asked("0", "0"), asked("1", "1"))
    for name, tokens in (("0", 0), ("1", held)):
        line.made.cached(name, {"a": tokens}, Source.LMCACHE, now=line.now)
    line.serve(2)
    assert line.served == order
