"""The ledger in memory: bounded, exact over processes, and never added twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.batch.store.port import Store, StoreError
from penstock.batch.store.sqlite import SqliteStore
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import UsageAsked, UsageRow
from penstock.config.load import ConfigError, Settings, from_mapping
from penstock.core.values.catalogue import Reason
from penstock.gateway.usage.usage_book import UsageBook
from penstock.gateway.usage.use_counts import UseCounts

T = 1_800_000_000.0
ALL = UsageAsked(0, 10**6, frozenset({"tenant"}))


def a_ledger() -> UseCounts:
    return UseCounts(lambda: T)


def refuse(ledger: UseCounts, times: int = 1, *, tenant: str = "a", key: str = "k") -> None:
    for _ in range(times):
        ledger.refused(tenant, key, "u", Reason.BAD_REQUEST)


def test_rows_past_the_bound_are_one_row_and_are_counted() -> None:
    ledger = a_ledger()
    for number in range(10_000):
        refuse(ledger, key=f"k{number}")
    refuse(ledger, 7, key="one-too-many")
    refuse(ledger, 3, key="k5")
    rows = {row.key: row.requests for row in ledger.take()}
    assert len(rows) == 10_001
    assert (rows["other"], rows["k5"], ledger.folded) == (7, 4, 7)
    assert ledger.take() == []


def test_rows_pass_from_process_to_process_once() -> None:
    worker, first = a_ledger(), a_ledger()
    refuse(worker, 2)
    refuse(first)
    for _ in range(2):
        for labels, values in worker.told():
            first.add(labels, values)
    assert [(row.hour, row.tenant, row.requests) for row in first.take()] == [(500_000, "a", 3)]


class Flaky(SqliteStore):
    """A store that fails, before or after it has added."""

    fails = ""

    def __init__(self) -> None:
        super().__init__(None)

    def add_usage(self, writer: str, number: int, rows: Sequence[UsageRow], now: float) -> None:
        if self.fails == "before":
            raise StoreError("it is away")
        super().add_usage(writer, number, rows, now)
        if self.fails == "after":
            raise StoreError("its answer was lost")


def flaky() -> tuple[Flaky, UseCounts, StoreThread, UsageBook]:
    store, ledger = Flaky(), a_ledger()

    def opening() -> Store:
        return store

    thread = StoreThread(opening)
    return store, ledger, thread, UsageBook(thread, ledger, Settings, lambda: T)


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_what_the_store_did_not_confirm_is_added_once(fails: str) -> None:
    store, ledger, thread, book = flaky()
    refuse(ledger, 2)
    store.fails = fails
    for _ in range(3):
        with pytest.raises(StoreError):
            await book.asked(ALL)
        refuse(ledger)
    store.fails = ""
    await book.asked(ALL)
    assert [row.requests for row in await book.asked(ALL)] == [5]
    await thread.close()


async def test_the_end_of_a_gateway_adds_what_is_left_also_after_an_interrupted_addition() -> None:
    store, ledger, thread, book = flaky()
    refuse(ledger, 2)
    store.fails = "after"
    with pytest.raises(StoreError):
        await book.asked(ALL)
    store.fails = ""
    refuse(ledger)
    book.start()
    await book.close()
    assert [row.requests for row in await thread.do(lambda its: its.usage(ALL))] == [3]
    await thread.close()


async def test_rows_are_kept_as_long_as_the_settings_say() -> None:
    store, ledger, at_s = SqliteStore(None), a_ledger(), [T]

    def opening() -> Store:
        return store

    thread = StoreThread(opening)
    book = UsageBook(thread, ledger, lambda: from_mapping({"usage": {"keep": "2h"}}), lambda: at_s[0])
    refuse(ledger)
    book.start()
    await book.close()
    assert [row.requests for row in await book.asked(ALL)] == [1]
    at_s[0] += 3 * 3600
    book.start()
    await book.close()
    assert await book.asked(ALL) == []
    await thread.close()


async def test_without_a_store_or_with_nothing_kept_nothing_is_counted() -> None:
    ledger = a_ledger()
    for settings, on in (
        ({}, True),
        ({"store": False}, False),
        ({"usage": {"keep": 0}}, False),
    ):
        ledger.follow(from_mapping(settings))
        assert ledger.on is on


@pytest.mark.parametrize(
    ("usage", "says"),
    [
        ({"keep": "-1h"}, "usage.keep"),
        ({"keep": "forever"}, "usage.keep"),
        ({"prices": {"m": {"prompt": -1}}}, "usage.prices.m.prompt"),
        ({"prices": {"m": {"completion": "cheap"}}}, "usage.prices.m.completion"),
        ({"prices": {"m": {"output": 1}}}, "usage.prices.m.output"),
    ],
)
def test_wrong_settings_are_named(usage: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping({"usage": usage})
    assert [problem.path for problem in error.value.problems] == [says]
