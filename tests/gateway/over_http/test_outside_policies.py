"""Policies of other packages: found by entry point, used by name, told clearly when they are no good."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import conformance
from penstock.cli import main as cli
from penstock.config.load import ConfigError, from_mapping
from penstock.config.sections import policies
from penstock.conformance.__main__ import main as suite
from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.queueing.flow_queue import ORDERINGS
from penstock.core.routing.policies.registry import POLICIES as ROUTING
from tests.gateway.conftest import World

pytestmark = pytest.mark.virtual_time

CODE = """
from penstock.policies import Fairness, Routing, least_loaded

class ByPrompt(Fairness):
    def cost(self, *, prompt_tokens, cached_tokens, completion_tokens):
        return float(prompt_tokens)

def newest_first(entry, now):
    return -float(entry.seq)

def oldest_first(entry, now):
    return float(entry.seq)

class Last(Routing):
    def choose(self, endpoints, context):
        return max(endpoints, key=lambda endpoint: endpoint.name)

class ByName(Routing):
    scored_by = "letter"

    def score(self, endpoints, context):
        return [-ord(endpoint.name[0]) for endpoint in endpoints]

class TooFew(Routing):
    def score(self, endpoints, context):
        return [1.0]

class Raises(Routing):
    def choose(self, endpoints, context):
        raise RuntimeError("no idea")

class Elsewhere(Routing):
    def choose(self, endpoints, context):
        return None

class Negative(Fairness):
    def cost(self, *, prompt_tokens, cached_tokens, completion_tokens):
        return -1.0

class Sometimes(Fairness):
    def cost(self, *, prompt_tokens, cached_tokens, completion_tokens):
        return 1.0 if completion_tokens < 3 else float("nan")

no_policy = 7
def makes_nothing(*told): return object()
def refuses(*told): raise ValueError("not today")
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package on the path, with entry points; gone again afterwards, and nothing of it known."""
    known: list[tuple[dict[str, Any], set[str]]] = [
        (registry, set(registry)) for registry in (FAIRNESS, ORDERINGS, ROUTING)
    ]
    modules = set(sys.modules)

    def put(points: dict[str, dict[str, str]], *, package: str = "strange", code: str = CODE) -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / f"{package}_policies.py").write_text(code)
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        groups = [
            "\n".join([f"[penstock.{decision}]", *(f"{n} = {package}_policies:{o}" for n, o in names.items())])
            for decision, names in points.items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
        monkeypatch.syspath_prepend(str(folder))
        policies.offered.cache_clear()

    yield put
    monkeypatch.undo()
    policies.offered.cache_clear()
    policies.TROUBLES.clear()
    for registry, names in known:
        for name in set(registry) - names:
            del registry[name]
    for name in set(sys.modules) - modules:
        if name.endswith("_policies"):
            del sys.modules[name]


def _waiting(world: World, count: int) -> bool:
    return world.picture().waiting == count


def problems(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        from_mapping(settings)
    return [problem.line() for problem in refused.value.problems]


async def test_a_package_routes_orders_and_divides_by_the_names_it_gives(world: World, install: Install) -> None:
    install(
        {"routing": {"last": "Last"}, "ordering": {"newest": "newest_first"}, "fairness": {"by_prompt": "ByPrompt"}}
    )
    for _ in range(2):
        await world.engine(max_num_seqs=1, step_s=0.005)
    names = ["a", "z"]
    endpoints = [{"url": engine.url, "name": n, "slots": 1} for n, engine in zip(names, world.engines, strict=True)]
    await world.gateway(
        endpoints=endpoints,
        routing={"policy": "last"},
        ordering="newest",
        fairness={"policy": "by_prompt"},
        bands=[{"name": "standard"}, {"name": "batch", "ordering": "fcfs", "fairness": "fcfs"}],
    )
    answer = await world.chat()
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, "z")
    holds = [await world.streaming(tokens=300) for _ in range(2)]
    for hold in holds:
        await hold.begun()
    tasks = []
    for at in range(4):
        tasks.append(world.soon(world.chat_with({"x-request-id": f"w{at}"})))
        await world.until(partial(_waiting, world, at + 1))
    holds[0].hang_up()
    for task in tasks:
        assert (await task).status == 200
    holds[1].hang_up()
    order = [entry.headers["x-request-id"] for entry in world.seen()]
    assert [name for name in order if name.startswith("w")] == ["w3", "w2", "w1", "w0"]
    assert (await world.ask("GET", "/admin/state")).json()["policy_trouble"] == []


async def test_a_scoring_policy_picks_the_least_score_and_reports_scores(world: World, install: Install) -> None:
    install({"routing": {"by_name": "ByName"}})
    for _ in range(2):
        await world.engine()
    endpoints = [{"url": engine.url, "name": n} for n, engine in zip("az", world.engines, strict=True)]
    await world.gateway(endpoints=endpoints, routing={"policy": "by_name"})
    answers = [await world.chat() for _ in range(3)]
    assert [answer.header("x-penstock-endpoint") for answer in answers] == ["z"] * 3
    told = await world.ask("GET", f"/admin/requests/{answers[-1].header('x-request-id')}")
    sent = told.json()["explanation"]["sent"]
    assert sent["scored_by"] == "letter"
    assert [(one["endpoint"], one["score"]) for one in sent["candidates"]] == [("z", -122.0), ("a", -97.0)]


async def test_a_policy_that_raises_delays_no_request_and_is_reported(world: World, install: Install) -> None:
    install({"routing": {"raises": "Raises"}, "fairness": {"sometimes": "Sometimes"}})
    for _ in range(2):
        await world.engine()
    await world.gateway(routing={"policy": "raises"}, fairness={"policy": "sometimes"})
    answers = await asyncio.gather(*[world.chat(str(at)) for at in range(6)])
    assert [answer.status for answer in answers] == [200] * 6
    state = (await world.ask("GET", "/admin/state")).json()
    told = {row["policy"]: row for row in state["policy_trouble"]}
    assert told["raises"]["decision"] == "routing"
    assert "no idea" in told["raises"]["last"]
    assert told["raises"]["count"] >= 1
    assert "nan" in told["sometimes"]["last"]


def test_an_invalid_policy_is_reported_at_its_path(install: Install) -> None:
    routing = {"seven": "no_policy", "nothing": "makes_nothing", "refuses": "refuses", "gone": "NotThere"}
    install(
        {"routing": routing, "fairness": {"negative": "Negative", "seven": "no_policy"}, "ordering": {"x": "no_policy"}}
    )
    where = "(strange_policies:{}, of the package `strange`)"
    expected = {
        "seven": f"`seven` {where.format('no_policy')} is not a routing policy: it is not callable (see docs/policies)",
        "nothing": "is not a routing policy: its result has no method `score` or `choose`",
        "refuses": "it raised ValueError('not today')",
        "gone": f"`gone` {where.format('NotThere')} can't be imported: AttributeError",
    }
    for name, words in expected.items():
        (line,) = problems(routing={"policy": name})
        assert line.startswith("routing.policy: ")
        assert words in line
    (line,) = problems(fairness={"policy": "negative"})
    assert "is not a fairness policy: `cost` returned -1.0, not a number of at least 0" in line
    (line,) = problems(bands=[{"name": "standard", "ordering": "x"}])
    assert line.startswith("bands[0].ordering: `x` (strange_policies:no_policy")


def test_an_import_error_of_a_package_is_reported_with_its_reason(install: Install) -> None:
    install({"routing": {"broken": "X"}}, package="broken", code="import not_there_at_all")
    (line,) = problems(routing={"policy": "broken"})
    assert "of the package `broken`) can't be imported: ModuleNotFoundError: No module named 'not_there_at_all'" in line


def test_clashing_names_are_errors_only_if_used(install: Install) -> None:
    install({"routing": {"mine": "Last", "least_loaded": "Last"}}, package="one")
    install({"routing": {"mine": "Last"}}, package="two")
    (line,) = problems(routing={"policy": "mine"})
    assert "the package `one`" in line
    assert "the package `two`" in line
    assert line.endswith("; remove one")
    (line,) = problems(routing={"policy": "least_loaded"})
    assert line == ("routing.policy: `least_loaded` is built in, and the package `one` offers another under this name")
    from_mapping({"routing": {"policy": "kv"}})


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(install: Install) -> None:
    install({"ordering": {"newest": "newest_first"}})
    (line,) = problems(ordering="newst")
    assert line == "ordering: `newst`: expected fcfs, deadline, shortest_first or newest (did you mean `newest`?)"


def test_one_that_looks_at_prefixes_may_go_by_kv_events(install: Install) -> None:
    code = CODE + "\nclass Cached(Last):\n    uses_prefix = True\n"
    install({"routing": {"last": "Last", "cached": "Cached"}}, code=code)
    from_mapping({"routing": {"policy": "cached", "locality": "kv_events", "affinity_wait": "1s"}})
    (line,) = problems(routing={"policy": "last", "locality": "kv_events"})
    assert line.startswith("routing.locality: `last` does not use cached prefixes")


def test_check_and_serve_say_so(install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install({"routing": {"seven": "no_policy"}})
    path = tmp_path / "penstock.yaml"
    path.write_text("endpoints: [{url: http://127.0.0.1:9}]\nrouting: {policy: seven}\n")
    assert cli.main(["check", str(path)]) != 0
    assert "routing.policy: `seven`" in "".join(capsys.readouterr())
    assert cli.main(["serve", "-c", str(path)]) == 2
    assert "penstock: routing.policy: `seven`" in capsys.readouterr().err


def test_a_stranger_runs_the_suite_on_his_own(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install({"routing": {"last": "Last"}, "fairness": {"by_prompt": "ByPrompt"}})
    assert suite(["routing", "last"]) == 0
    assert "ok    Every slot of unequal endpoints is used" in capsys.readouterr().out
    assert suite(["fairness", "by_prompt"]) == 0
    assert suite(["ordering", "strange_policies:oldest_first"]) == 0
    assert capsys.readouterr().out.count("WRONG") == 0
    assert suite(["ordering", "strange_policies:newest_first"]) == 1
    assert "WRONG Requests that are alike go in order of arrival." in capsys.readouterr().out
    assert suite(["routing", "strange_policies:Elsewhere"]) == 1
    assert "chose None, which is none of those it was given" in capsys.readouterr().out
    assert suite(["routing", "strange_policies:ByName"]) == 0
    assert suite(["routing", "strange_policies:TooFew"]) == 1
    assert "scored 2 endpoints by [1.0]" in capsys.readouterr().out
    assert suite(["fairness", "strange_policies:Sometimes"]) == 1
    assert suite(["routing", "strange_policies:no_policy"]) == 2
    assert suite(["routing", "nowhere"]) == 2
    assert "is no entry point of `penstock.routing`" in capsys.readouterr().err


def test_in_a_test_of_his_the_suite_is_a_function() -> None:
    assert conformance.failures("ordering", lambda entry, now: float(entry.seq)) == []
    wrong = conformance.failures("ordering", lambda entry, now: -float(entry.seq))
    assert wrong
    assert wrong[0].startswith("Requests that are alike go in order of arrival.")
    assert len(conformance.claims("routing")) >= 5
