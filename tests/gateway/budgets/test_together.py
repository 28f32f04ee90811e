"""One budget over gateways that decide apart, with a real Valkey: never a trip in a request's way, and no more than a
second's use beyond what all may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from penstock.core.queueing.quotas import Quotas
from penstock.core.values.settings import Limits
from penstock.gateway.budgets import together
from penstock.gateway.budgets.together import Together
from penstock.gateway.budgets.valkey_budgets import BudgetsError, Use, ValkeyBudgets
from tests.gateway.elect import valkey
from tests.patience import WAIT_S

MINUTE_S = 60.0
APART_S = 3.0

SIZE = 60_000  # a minute's tokens: a thousand a second
TENANT = "team-a"
OPEN: list[ValkeyBudgets] = []


@pytest.fixture(scope="module")
def server() -> Iterator[valkey.Server]:
    with valkey.server() as running:
        yield running


@pytest.fixture(autouse=True)
async def banks() -> AsyncIterator[None]:
    """A connection that is left open would keep the loop from ending."""
    yield
    while OPEN:
        await OPEN.pop().close()


class Cluster:
    """The part of a gateway that a budget knows: its quotas, and what tells them."""

    def __init__(self, url: str, name: str, *, limits: Limits | None = None) -> None:
        self.now_s = 1000.0
        self.quotas = Quotas({TENANT: limits or Limits(tokens_per_minute=SIZE)})
        scheduler: Any = SimpleNamespace(
            budgets=lambda *, now: self.quotas.budgets(now),
            budget_shared=lambda tenant, period_s, left, *, now: self.quotas.shared(tenant, period_s, left, now),
            budget_apart=lambda tenant, period_s, part, *, now: self.quotas.apart(tenant, period_s, part, now),
        )
        self.bank = ValkeyBudgets(url, "test", id_=name)
        OPEN.append(self.bank)
        self.together = Together(scheduler, self.bank, now=lambda: self.now_s)

    def asks(self, requests: int, tokens: int = 100) -> int:
        """So many requests at once; the tokens of those that were let in."""
        let_in = [self.quotas.admit((TENANT,), tokens=tokens, now=self.now_s) is None for _ in range(requests)]
        return tokens * sum(let_in)

    @property
    def left(self) -> float:
        allowance = self.quotas.allowance((TENANT,), self.now_s)
        assert allowance is not None
        assert allowance.tokens is not None
        return allowance.tokens.remaining


async def clusters(server: valkey.Server, count: int) -> list[Cluster]:
    server.say("FLUSHALL")
    made = [Cluster(server.url, f"c{number}") for number in range(count)]
    for each in made:
        each.asks(1, tokens=1)
        await each.together.tell()
    return made


async def test_what_one_uses_the_others_have_no_more(server: valkey.Server) -> None:
    one, two = await clusters(server, 2)
    assert one.asks(200) == 20_000
    assert two.left == pytest.approx(SIZE, abs=10), "it has not heard of it yet"
    await one.together.tell()
    await two.together.tell()
    assert two.left == pytest.approx(SIZE - 20_000, abs=1_000), "but for what came meanwhile"


async def test_all_together_have_no_more_than_the_budget_and_a_second_of_use(server: valkey.Server) -> None:
    made = await clusters(server, 4)
    begun_s, used, most = asyncio.get_running_loop().time(), 0, 0
    for _ in range(12):
        turn = [each.asks(40) for each in made]
        used, most = used + sum(turn), max(most, sum(turn))
        for each in made:
            await each.together.tell()
    came = (asyncio.get_running_loop().time() - begun_s) * SIZE / MINUTE_S
    assert used >= SIZE
    assert used <= SIZE + came + most
    assert [each.asks(1) for each in made] == [0, 0, 0, 0], "all know that nothing is left"


async def test_a_debt_is_everybodys(server: valkey.Server) -> None:
    one, two = await clusters(server, 2)
    assert one.asks(1, tokens=SIZE - 1_000) == SIZE - 1_000
    one.quotas.settle((TENANT,), reserved=0, used=30_000, now=one.now_s)
    await one.together.tell()
    await two.together.tell()
    assert two.asks(1) == 0
    one.quotas.settle((TENANT,), reserved=60_000, used=0, now=one.now_s)
    await one.together.tell()
    await two.together.tell()
    assert two.asks(1) == 100, "what is given back is everybody's too"


async def test_days_and_minutes(server: valkey.Server) -> None:
    server.say("FLUSHALL")
    limits = Limits(tokens_per_minute=SIZE, tokens_per_day=10 * SIZE)
    one, two = (Cluster(server.url, name, limits=limits) for name in ("a", "b"))
    for each in (one, two, one, two):
        each.asks(10)
        await each.together.tell()
    await one.together.tell()
    for each in (one, two):
        left = {budget.period_s: budget.left for budget in each.quotas.budgets(each.now_s)}
        assert left[MINUTE_S] == pytest.approx(SIZE - 4_000, abs=1_000)
        assert left[86_400.0] == pytest.approx(10 * SIZE - 4_000, abs=100)


async def test_what_is_used_while_the_word_is_on_its_way_counts(server: valkey.Server) -> None:
    (one,) = await clusters(server, 1)
    told = one.bank.told

    async def slowly(uses: Any) -> Any:
        answer = await told(uses)
        one.asks(100)
        return answer

    one.bank.told = slowly  # type: ignore[method-assign]
    await one.together.tell()
    assert one.left == pytest.approx(SIZE - 10_000, abs=100)


async def test_a_word_that_was_answered_to_nobody_is_charged_once(server: valkey.Server) -> None:
    one, two = await clusters(server, 2)
    told = one.bank.told

    async def lost(uses: Any) -> Any:
        await told(uses)
        raise TimeoutError

    one.asks(100)
    one.bank.told = lost  # type: ignore[method-assign]
    for _ in range(5):
        await one.together.tell()
    one.bank.told = told  # type: ignore[method-assign]
    await one.together.tell()
    await two.together.tell()
    assert two.left == pytest.approx(SIZE - 10_000, abs=1_000)


async def test_while_the_store_is_away_each_has_the_part_that_it_used(server: valkey.Server) -> None:
    one, two = await clusters(server, 2)
    for _ in range(3):
        one.asks(90)
        two.asks(30)
        for each in (one, two, one):
            await each.together.tell()
    left = two.left
    server.stop()
    for each in (one, two):
        await each.together.tell()
        assert not each.together.apart, "a second or two is nothing"
        assert each.together.trouble is not None
        each.now_s += APART_S
        for _ in range(3):
            await each.together.tell()
        assert each.together.apart
    came = APART_S * SIZE / MINUTE_S
    parts = [one.asks(2_000, tokens=50), two.asks(2_000, tokens=50)]
    assert sum(parts) <= left + came + 1_000
    assert sum(parts) >= 0.9 * (left + came)
    assert 2.0 <= parts[0] / parts[1] <= 3.0
    for each in (one, two):
        each.now_s += 60
        assert 0.2 * SIZE <= each.asks(2_000, tokens=50) <= 0.8 * SIZE, "of what comes, too"

    server.start()  # empty
    for each in (one, two, one):
        await each.together.tell()
        assert not each.together.apart
    assert one.asks(1) == 0, "what was used apart is charged"


async def test_bytes_that_are_no_text_are_a_trouble_and_no_traceback(server: valkey.Server) -> None:
    [one] = await clusters(server, 1)
    with redis.Redis.from_url(server.url) as client:
        client.hset("test:budgets", f"{TENANT} 60", b"\xff 1")
    await one.together.tell()
    assert one.together.trouble is not None
    server.say("DEL", "test:budgets")
    await one.together.tell()
    assert one.together.trouble is None


async def test_a_tenant_that_was_idle_while_apart_has_its_whole_budget_again(server: valkey.Server) -> None:
    (one,) = await clusters(server, 1)
    one.quotas = Quotas({"idle": Limits(tokens_per_minute=SIZE)})
    await one.together.tell()
    server.stop()
    one.together._gateways = 4
    one.now_s += APART_S
    await one.together.tell()
    (budget,) = one.quotas.budgets(one.now_s)
    assert budget.left == SIZE / 4
    server.start()
    await one.together.tell()
    one.now_s += 60
    (budget,) = one.quotas.budgets(one.now_s)
    assert budget.left == SIZE


async def test_who_does_not_decide_says_nothing_and_keeps_it_for_when_it_does(server: valkey.Server) -> None:
    one, two = await clusters(server, 2)
    one.together._decides = lambda: False
    one.asks(100)
    await one.together.tell()
    await two.together.tell()
    assert two.left == pytest.approx(SIZE, abs=1_000)
    one.together._decides = lambda: True
    await one.together.tell()
    await two.together.tell()
    assert two.left == pytest.approx(SIZE - 10_000, abs=1_000)


async def test_it_goes_by_itself(server: valkey.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "EVERY_S", 0.01)
    one, two = await clusters(server, 2)
    one.together.start()
    two.together.start()
    one.asks(300)
    async with asyncio.timeout(WAIT_S):
        while two.left > SIZE - 25_000:
            await asyncio.sleep(0.01)
    await one.together.close()
    await two.together.close()


async def test_a_client_that_swallows_a_cancellation_does_not_keep_it_from_ending(
    server: valkey.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "EVERY_S", 0.01)
    (one,) = await clusters(server, 1)
    told, asked, swallowed = one.bank.told, asyncio.Event(), asyncio.Event()

    async def swallows(uses: list[Use]) -> tuple[int, list[float]]:
        if not swallowed.is_set():
            asked.set()
            try:
                await asyncio.sleep(WAIT_S)
            except asyncio.CancelledError:
                swallowed.set()
                raise BudgetsError("it was cancelled") from None
        return await told(uses)

    monkeypatch.setattr(together, "ANSWER_S", WAIT_S)
    monkeypatch.setattr(one.bank, "told", swallows)
    one.together.start()
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        monkeypatch.setattr(together, "ANSWER_S", 0.5)
        await one.together.close()
    assert swallowed.is_set()
