"""Processes that run tests die: all other tests run, each once."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tests.by_file import ByFile

TESTS = [f"{file}.py::test_{number}" for file in "abcdef" for number in range(4)]


class Process:
    """Stands where xdist's process does."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """Two processes, as `--numprocesses 2` starts them."""

    def __init__(self) -> None:
        config: Any = MagicMock()
        config.getvalue.return_value = ["2*popen"]
        config.option.loadscopereorder = False
        self.files = ByFile(config, MagicMock())
        self.ran: Counter[str] = Counter()
        self.processes = [self.begins("1"), self.begins("2")]
        for one in self.processes:
            self.has_collected(one)

    def begins(self, name: str) -> Any:
        one: Any = Process(name)
        self.files.add_node(one)
        return one

    def has_collected(self, one: Any) -> None:
        self.files.add_node_collection(one, TESTS)
        if self.files.collection_is_completed:
            self.files.schedule()

    def runs(self, one: Any, count: int) -> None:
        for _ in range(count):
            number = one.given.pop(0)
            self.ran[TESTS[number]] += 1
            self.files.mark_test_complete(one, number)

    def goes_on(self, *processes: Any) -> None:
        while any(one.given for one in processes):
            for one in processes:
                self.runs(one, min(len(one.given), 1))


def test_two_that_die_at_about_the_same_time_cost_their_own_test_each() -> None:
    run = Run()
    first, second = run.processes
    run.runs(first, 1)
    dead = {run.files.remove_node(first)}
    third = run.begins("3")  # which takes seconds to collect
    dead.add(run.files.remove_node(second))
    fourth = run.begins("4")
    run.has_collected(fourth)
    run.has_collected(third)
    run.goes_on(third, fourth)
    assert dead == {"a.py::test_1", "b.py::test_0"}
    assert run.ran == Counter({test: 1 for test in TESTS if test not in dead})
    assert run.files.tests_finished


def test_one_that_dies_with_the_last_tests_leaves_them_to_the_other() -> None:
    run = Run()
    first, second = run.processes
    while run.files.workqueue:
        run.runs(first, 1)
        run.runs(second, 1)
    run.goes_on(second)
    dead = run.files.remove_node(first)
    third = run.begins("3")
    run.has_collected(third)
    run.goes_on(second, third)
    assert run.ran == Counter({test: 1 for test in TESTS if test != dead})


def test_one_that_has_nothing_to_do_may_end() -> None:
    run = Run()
    run.goes_on(*run.processes)
    assert [run.files.remove_node(one) for one in run.processes] == [None, None]
    assert run.ran == Counter(dict.fromkeys(TESTS, 1))
