"""The simulated world: is it a fair witness, and can a run be repeated?"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from bench.__main__ import main
from bench.capacity import requests_per_s
from bench.report import service_between
from bench.workload import Bursts, Lognormal, OnOff
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import BandSettings
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.world.report import jain, percentile, priced
from penstock.sim.world.workload import ArrivalSource, Constant, InFlight, Poisson, Stream, sources
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import Death, EngineSpec, SimulatedJourney, WorldSettings

CONFIG = EngineConfig(step_jitter=0.05)
SHORT = (Lognormal(300, 1000), Lognormal(50, 150))
CALM = Stream("calm", Poisson(2.0), *SHORT)
BUSY = Stream("busy", Poisson(8.0), *SHORT)


def world(
    *streams: Stream,
    slots: int = 8,
    seconds: float = 20.0,
    seed: int = 1,
    config: EngineConfig = CONFIG,
    watch: WorldObserver | None = None,
    **more: object,
) -> World:
    """A finished run with all invariants checked after every event."""
    sized = replace(config, max_num_seqs=slots)
    settings = WorldSettings(
        scheduler=SchedulerSettings(bands=(BandSettings("standard"),)),
        engines=tuple(EngineSpec(f"engine-{number}", sized, slots) for number in range(2)),
        seed=seed,
        duration_s=seconds,
        checked=True,
    )
    settings = replace(settings, **more)  # type: ignore[arg-type]
    made = World(settings, sources(streams, seed), watch=watch)
    made.run()
    return made


class RunningEachSecond(WorldObserver):
    """How many requests ran, and whether others waited."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def second(self, world: World) -> None:
        picture = world.scheduler.snapshot(now=world.now)
        self.seen.append((picture.running, picture.waiting > 0))


@pytest.mark.parametrize("tenants", [2, 3, 4])
def test_floods_that_begin_in_one_moment_keep_no_slots_free_from_each_other(tenants: int) -> None:
    """Their first requests look like those of light flows; slots reserved for these would be idle."""
    streams = [
        Stream(f"team-{n}", Bursts(40, 1000.0), Constant(13), Constant(200), weight=1.0 if n else 3.0)
        for n in range(tenants)
    ]
    watch = RunningEachSecond()
    world(*streams, slots=4, seconds=60.0, config=replace(CONFIG, step_s=0.04), watch=watch)
    assert {running for running, others_wait in watch.seen if others_wait} == {8}


def fate(journey: SimulatedJourney) -> tuple[object, ...]:
    return journey.job.id, journey.dispatched_s, journey.first_s, journey.ended_s, journey.outcome, journey.queue_s


# --- a run ------------------------------------------------------------------------------------------------------


def test_a_run_can_be_repeated_to_the_last_event() -> None:
    first, second = world(CALM, BUSY), world(CALM, BUSY)
    assert [fate(journey) for journey in first.done] == [fate(journey) for journey in second.done]
    assert (first.events, first.samples) == (second.events, second.samples)


def test_another_seed_is_another_run() -> None:
    assert [fate(j) for j in world(CALM).done] != [fate(j) for j in world(CALM, seed=2).done]


def test_every_request_is_reported_exactly_once() -> None:
    done = world(replace(BUSY, hang_up_share=0.5, hang_up_s=1.0), CALM).done
    names = [journey.job.id for journey in done]
    assert len(names) == len(set(names))
    assert {"completed", "cancelled", ""} == {journey.outcome for journey in done}


def test_an_idle_engine_answers_after_the_way_and_its_steps() -> None:
    one = Stream("one", Bursts(1, 1e9), Constant(100), Constant(10))
    done = world(one, seconds=2.0, config=EngineConfig(step_s=0.02)).done
    (journey,) = done
    assert journey.queue_s == 0.0
    assert journey.first_s == pytest.approx(0.0005 + 0.02 + 0.0005)
    assert journey.ended_s == pytest.approx(0.0005 + 10 * 0.02 + 0.0005)


def test_pass_through_sends_queued_requests_at_once() -> None:
    stream = replace(BUSY, arrivals=Poisson(40.0))
    bands = (BandSettings("standard"),)
    held = world(stream, slots=4, seconds=5.0)
    through = world(stream, slots=4, seconds=5.0, scheduler=SchedulerSettings(bands=bands, queue_enabled=False))
    assert max(len(node.journeys) for node in held.nodes.values()) <= 4
    assert max(len(node.journeys) for node in through.nodes.values()) > 8
    assert all(journey.queue_s == 0.0 for journey in through.done)


def test_a_hang_up_leaves_the_engine_too() -> None:
    impatient = replace(BUSY, hang_up_share=1.0, hang_up_s=0.5, end_s=10.0, output=Constant(2000))
    finished = world(impatient, seconds=20.0)
    assert {journey.outcome for journey in finished.done} == {"cancelled"}
    assert all(node.engine.in_engine == 0 for node in finished.nodes.values())
    assert finished.scheduler.snapshot(now=20.0).running == 0


def test_a_dead_engine_s_requests_are_sent_elsewhere_before_their_first_byte() -> None:
    slow = replace(CONFIG, prefill_s_per_token=0.002)  # first tokens take a while, so that some are caught without
    done = world(
        replace(CALM, end_s=20.0),
        seconds=40.0,
        deaths=(Death("engine-0", 5.0, 5.0),),
        config=slow,
    ).done
    lost = [journey for journey in done if journey.outcome == "failed"]
    assert all(journey.first_s is not None for journey in lost)
    again = [journey for journey in done if journey.requeues]
    assert again
    assert all(journey.outcome == "completed" for journey in again)


def test_gateway_knows_nothing_of_traffic_that_passes_it_by() -> None:
    finished = world(replace(CALM, bypass=True, end_s=15.0), BUSY)
    bypassed = [journey for journey in finished.done if journey.job.stream.bypass]
    assert all(journey.outcome == "completed" and journey.lease == 0 for journey in bypassed if journey.job.at_s < 10)


def test_journeys_go_to_the_sink_and_are_not_kept() -> None:
    told: list[str] = []
    settings = WorldSettings(SchedulerSettings(), (EngineSpec("e", CONFIG, 8),), 1, 10.0)
    lean = World(settings, sources((CALM,), 1), sink=lambda journey: told.append(journey.job.id))
    lean.run()
    assert told
    assert not lean.done


def test_service_counts_each_token_once() -> None:
    finished = world(replace(CALM, end_s=10.0), seconds=30.0)
    assert all(journey.outcome == "completed" for journey in finished.done)
    expected = sum(priced(j.job.prompt_tokens, j.job.output_tokens) for j in finished.done)
    service = service_between([(0.0, {}), *finished.samples], 0.0, 30.0)
    assert service["calm", ""] == expected


@pytest.mark.parametrize(("prompt", "output"), [(1155, 211), (300, 600), (100, 50)])
def test_the_formula_for_capacity_is_near_a_full_engines(prompt: int, output: int) -> None:
    stream = Stream("all", InFlight(200), Constant(prompt), Constant(output))
    settings = WorldSettings(SchedulerSettings(queue_enabled=False), (EngineSpec("e", CONFIG, 64),), 1, 120.0)
    full = World(settings, sources((stream,), 1))
    full.run()
    served = sum(journey.ended_s is not None and journey.ended_s > 40 for journey in full.done) / 80
    assert served == pytest.approx(requests_per_s(CONFIG, prompt, output), rel=0.07)


# --- workload ---------------------------------------------------------------------------------------------------


def test_leaving_one_stream_out_changes_nothing_about_the_others() -> None:
    def jobs(source: ArrivalSource) -> list[object]:
        made = source.open_jobs()
        return [
            (job.at_s, job.prompt_tokens, job.output_tokens, job.body_bytes)
            for job, _ in zip(made, range(50), strict=False)
        ]

    both = sources((BUSY, CALM), 7)
    alone = sources((BUSY, CALM), 7, without=frozenset({"busy"}))
    assert [source.stream.tenant for source in alone] == ["calm"]
    assert jobs(both[1]) == jobs(alone[0])


def test_lognormal_lengths_have_the_mean_and_the_p99_that_were_asked_for() -> None:
    lengths, random = Lognormal(1155, 4142), Random(1)
    drawn = [lengths.draw(random) for _ in range(40_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1155, rel=0.03)
    assert percentile(drawn, 0.99) == pytest.approx(4142, rel=0.05)


def test_on_off_is_silent_when_off() -> None:
    times = OnOff(10.0, on_s=5.0, off_s=20.0).times(100.0, Random(1))
    first = [next(times) for _ in range(500)]
    assert all((at_s - 100.0) % 25.0 < 5.0 for at_s in first)
    assert first == sorted(first)


def test_a_closed_loop_keeps_as_many_in_flight() -> None:
    finished = world(Stream("loop", InFlight(12), *SHORT), seconds=10.0)
    assert len(finished.journeys) == 12


def test_jain_is_one_for_equals_and_a_share_for_a_winner() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


# --- the command ------------------------------------------------------------------------------------------------


def test_an_unknown_scenario_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "flod"]) == 2
    assert "did you mean flood" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--seeds", "1,x"], ["--duration", "1"], ["--duration", "nan"]])
def test_wrong_flags_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "weights", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "--list", "--json"]) == 0
    assert {"flood", "stale_gauges", "overload", "estimates_wrong"} < set(json.loads(capsys.readouterr().out))


def test_json_gives_one_object_per_seed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["scenarios", "scarce_memory", "--seeds", "1,2", "--duration", "60", "--json"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["seed"] for result in results] == [1, 2]
    assert all(result["measures"] and result["lines"] for result in results)


# --- two phases -------------------------------------------------------------------------------------------------


def test_prompts_are_computed_at_one_engine_and_answered_at_another_on_virtual_time() -> None:
    roles = ("prefill", "decode", "decode")
    engines = tuple(
        EngineSpec(f"{role}-{number}", replace(CONFIG, max_num_seqs=8), 8, role) for number, role in enumerate(roles)
    )
    deaths = (Death("decode-1", 6.0, 4.0), Death("prefill-0", 12.0, 3.0))
    made = world(CALM, BUSY, engines=engines, deaths=deaths)
    ended = [journey for journey in made.done if journey.outcome]
    assert len(ended) > 100
    assert {journey.outcome for journey in ended} <= {"completed", "failed"}
    assert all(journey.reason == "stream_broken" for journey in ended if journey.outcome == "failed")
    divided = [journey for journey in ended if journey.transferred]
    assert len(divided) > len(ended) / 2
    assert len(ended) > len(divided), "while no prefill engine was there, decode engines did it all"
