"""The page that Prometheus reads: every series is there from the start, and counts what happened."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.values.catalogue import Outcome, Reason
from penstock.core.values.observation import Observation
from penstock.gateway.telemetry.llm_d import LlmD
from penstock.gateway.telemetry.series import Histogram
from tests.gateway.conftest import CHAT, World, chat, fault

# name: (type, labels), docs/design.md#metrics
SERIES = {
    "penstock_requests_total": ("counter", {"model", "band", "outcome", "reason"}),
    "penstock_queued_requests": ("gauge", {"model", "band"}),
    "penstock_queued_bytes": ("gauge", set()),
    "penstock_queued_tokens": ("gauge", {"model", "band"}),
    "penstock_oldest_wait_seconds": ("gauge", {"band"}),
    "penstock_queue_wait_seconds_count": ("histogram", {"band", "outcome"}),
    "penstock_dispatches_total": ("counter", {"endpoint"}),
    "penstock_rejections_total": ("counter", {"reason"}),
    "penstock_requeues_total": ("counter", {"reason"}),
    "penstock_deadline_tries_total": ("counter", {"model"}),
    "penstock_queue_cancellations_total": ("counter", set()),
    "penstock_leases": ("gauge", {"endpoint"}),
    "penstock_slots": ("gauge", {"endpoint"}),
    "penstock_endpoint_up": ("gauge", {"endpoint"}),
    "penstock_endpoint_waiting": ("gauge", {"endpoint"}),
    "penstock_endpoint_running": ("gauge", {"endpoint"}),
    "penstock_endpoint_kv_usage_ratio": ("gauge", {"endpoint"}),
    "penstock_endpoint_refusals": ("gauge", {"endpoint"}),
    "penstock_observation_age_seconds": ("gauge", {"endpoint"}),
    "penstock_endpoint_sessions": ("gauge", {"endpoint"}),
    "penstock_endpoint_sessions_idle": ("gauge", {"endpoint"}),
    "penstock_endpoint_session_tokens": ("gauge", {"endpoint"}),
    "penstock_endpoint_session_usable_tokens": ("gauge", {"endpoint"}),
    "penstock_sessions_waiting": ("gauge", set()),
    "penstock_session_pauses_total": ("counter", set()),
    "penstock_session_moves_total": ("counter", set()),
    "penstock_session_forced_total": ("counter", set()),
    "penstock_ttft_seconds_count": ("histogram", {"model", "band"}),
    "penstock_request_seconds_count": ("histogram", {"model", "band"}),
    "penstock_time_per_output_token_seconds_count": ("histogram", {"model", "band"}),
    "penstock_tokens_total": ("counter", {"model", "kind"}),
    "penstock_tenant_service_tokens_total": ("counter", {"tenant"}),
    "penstock_tenant_requests_total": ("counter", {"tenant", "outcome", "reason"}),
    "penstock_tenant_queue_wait_seconds_count": ("histogram", {"tenant"}),
    "penstock_tenant_ttft_seconds_count": ("histogram", {"tenant"}),
    "penstock_overhead_seconds_count": ("histogram", set()),
    "penstock_event_loop_lag_seconds": ("gauge", set()),
    "penstock_config_info": ("gauge", {"hash"}),
}
ALIASES = {
    "vllm_router:queued_requests": "gauge",
    "vllm_router:queue_wait_seconds_count": "histogram",
    "vllm_router:admissions_total": "counter",
    "vllm_router:rejections_total": "counter",
    "vllm_router:reservations": "gauge",
    "vllm_router:queue_cancellations_total": "counter",
}
NOT_ZERO = {
    "penstock_slots",
    "penstock_endpoint_up",
    "penstock_endpoint_state",
    "penstock_config_info",
    "penstock_observation_age_seconds",
    "penstock_usage_store_up",
}


async def families(world: World) -> list[Metric]:
    answer = await world.ask("GET", "/metrics")
    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("text/plain; version=")
    return list(text_string_to_metric_families(answer.body.decode()))


async def test_every_series_is_there_before_any_engine_answered(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9", "name": "gone", "slots": 3}])
    page = await families(world)
    found = {sample.name: family.type for family in page for sample in family.samples}
    labels = {sample.name: sample.labels.keys() for family in page for sample in family.samples}
    for name, (kind, expected) in SERIES.items():
        assert found[name] == kind, name
        assert set(labels[name]) == expected, name
    assert not [name for name in found if name.startswith("vllm_router")]
    for family in page:
        for sample in family.samples:
            if sample.name not in NOT_ZERO and "lag" not in sample.name:
                assert sample.value == 0, sample
    assert await world.metric("penstock_slots", endpoint="gone") == 3
    assert math.isnan(await world.metric("penstock_observation_age_seconds", endpoint="gone"))


async def test_what_an_engine_that_was_read_does_not_tell_is_no_number(world: World) -> None:
    engine = await world.engine()
    endpoints = [{"url": engine.url, "name": "one"}]
    gate = await world.gateway(endpoints=endpoints, observe={"interval": "60s", "fast_interval": "60s"})
    driver = gate.driver
    await world.until(lambda: driver.scheduler.snapshot(now=driver.now()).endpoints[0].kv_usage is not None)
    assert await world.metric("penstock_endpoint_kv_usage_ratio", endpoint="one") == 0
    reading = Observation(asked_s=driver.now(), waiting=0, running=0)
    driver.tell(driver.scheduler.observed("one", reading, now=driver.now()))
    assert await world.metric("penstock_endpoint_waiting", endpoint="one") == 0
    assert math.isnan(await world.metric("penstock_endpoint_kv_usage_ratio", endpoint="one"))


async def test_without_the_gate_on_sessions_there_are_no_series_of_them(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}], sessions={"memory": "off"})
    assert b"session" not in (await world.ask("GET", "/metrics")).body


async def test_requests_are_counted_by_how_they_ended(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1, queue={"max_requests": 1})
    name = engine.url.removeprefix("http://")
    running = await world.streaming(tokens=60)
    await running.begun()
    waiter = world.soon(world.chat(tokens=1))
    await world.until(lambda: world.picture().waiting == 1)

    assert await world.metric("penstock_leases", endpoint=name) == 1
    assert await world.metric("penstock_queued_requests", model="sim", band="standard") == 1
    assert await world.metric("penstock_queued_bytes") == world.picture().waiting_bytes > 0
    assert await world.metric("penstock_queued_tokens", model="sim", band="standard") > 0
    assert (await world.chat()).status == 429
    assert (await world.ask(body={**chat(), "model": "nobody"})).status == 404
    await running.whole()
    assert (await waiter).status == 200

    ended = "penstock_requests_total"
    assert await world.metric(ended, model="sim", band="standard", outcome="completed", reason="") == 2
    assert await world.metric(ended, model="sim", outcome="rejected", reason="queue_full") == 1
    assert await world.metric(ended, model="other", outcome="rejected", reason="model_not_found") == 1
    assert await world.metric("penstock_rejections_total", reason="queue_full") == 1
    assert await world.metric("penstock_rejections_total") == 2
    assert await world.metric("penstock_dispatches_total", endpoint=name) == 2
    assert await world.metric("penstock_ttft_seconds_count", model="sim", band="standard") == 1, "where it is seen"
    assert await world.metric("penstock_time_per_output_token_seconds_count", model="sim") == 1
    assert await world.metric("penstock_tokens_total", model="sim", kind="completion") == 61
    assert await world.metric("penstock_tokens_total", model="sim", kind="prompt") > 0
    assert await world.metric("penstock_tenant_service_tokens_total") == await world.metric("penstock_tokens_total")
    assert await world.metric("penstock_request_seconds_count", model="sim") == 2
    assert await world.metric("penstock_request_seconds_sum") >= 0.3
    assert await world.metric("penstock_queue_wait_seconds_count", outcome="completed") == 2
    assert 0 < await world.metric("penstock_queue_wait_seconds_sum", outcome="completed") < 2
    assert await world.metric("penstock_overhead_seconds_count") == 2
    assert await world.metric("penstock_leases") == await world.metric("penstock_queued_requests") == 0


async def test_a_wait_that_ended_in_a_refusal_counts_in_full_although_it_was_sent_between(world: World) -> None:
    engine = await world.engine()
    await world.gateway(queue={"max_wait": 0.3})
    fault(engine, "busy")
    assert (await world.chat()).status == 503
    assert await world.metric("penstock_queue_wait_seconds_count", outcome="evicted") == 1
    waited_s = await world.metric("penstock_queue_wait_seconds_sum", outcome="evicted")
    assert waited_s >= 0.25, "all of it but the moments at the engine"
    assert await world.metric("penstock_requeues_total", reason="busy") == len(engine.log.entries)


async def test_names_that_callers_make_up_are_no_labels(world: World) -> None:
    await world.engine()
    await world.gateway()
    for n in range(20):
        await world.ask(body={**chat(), "model": f"made-up-{n}"})
        await world.ask(path=f"/made-up-{n}", body=chat())
        await world.ask(body=chat(), headers={"x-penstock-band": f"made-up-{n}"})
    page = (await world.ask("GET", "/metrics")).body
    assert b"made-up" not in page


async def test_calls_that_need_no_turn_are_counted_too(world: World) -> None:
    await world.engine()
    await world.gateway()
    assert (await world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"})).status == 200
    assert (await world.ask(path="/tokenize", body={"model": "nobody", "prompt": "x"})).status == 404
    assert await world.metric("penstock_requests_total", model="sim", outcome="completed") == 1
    assert await world.metric("penstock_requests_total", model="other", outcome="rejected") == 1
    assert await world.metric("penstock_rejections_total", reason="model_not_found") == 1


async def test_the_engines_gauges_are_shown_as_observed(world: World) -> None:
    engine = await world.engine()
    fault(engine, "metrics_freeze", value={"running": 3, "waiting": 1, "kv_usage": 0.25})
    await world.gateway(slots=8)
    await world.until(lambda: world.picture().endpoints[0].engine_running == 3)
    assert await world.metric("penstock_endpoint_running") == 3
    assert await world.metric("penstock_endpoint_waiting") == 1
    assert await world.metric("penstock_endpoint_kv_usage_ratio") == 0.25
    assert 0 <= await world.metric("penstock_observation_age_seconds") < 2
    assert await world.metric("penstock_endpoint_up") == 1
    await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    assert await world.metric("penstock_endpoint_up") == 0


async def test_the_routers_names_are_exported_if_set(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, queue={"max_requests": 1}, metrics={"aliases": ["vllm_router"]})
    found = {sample.name: family.type for family in await families(world) for sample in family.samples}
    assert {name: found[name] for name in ALIASES} == ALIASES

    running = await world.streaming(tokens=500)
    await running.begun()
    leaver = await world.streaming()
    await world.until(lambda: world.picture().waiting == 1)
    assert await world.metric("vllm_router:queued_requests") == 1
    assert (await world.chat()).status == 429
    leaver.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    running.hang_up()
    await world.idle()
    assert await world.metric("vllm_router:admissions_total") == 1
    assert await world.metric("vllm_router:rejections_total", reason="queue_full") == 1
    assert await world.metric("vllm_router:queue_cancellations_total") == 1
    assert await world.metric("vllm_router:queue_wait_seconds_count") == 2
    assert await world.metric("vllm_router:reservations") == 0


LLM_D = {
    "llm_d_epp_flow_control_queue_size": {
        "fairness_id",
        "priority",
        "inference_pool",
        "model_name",
        "target_model_name",
    },
    "llm_d_epp_flow_control_queue_bytes": {
        "fairness_id",
        "priority",
        "inference_pool",
        "model_name",
        "target_model_name",
    },
    "llm_d_epp_flow_control_pool_saturation": {"inference_pool", "stage"},
    "llm_d_epp_flow_control_global_capacity_utilization_requests": {"inference_pool"},
    "llm_d_epp_flow_control_requests_total": {"outcome", "priority", "inference_pool"},
    "llm_d_epp_flow_control_request_queue_duration_seconds_count": set(),
    "llm_d_epp_request_total": {"model_name", "target_model_name", "fairness_id", "priority"},
    "llm_d_epp_request_error_total": {"model_name", "target_model_name", "fairness_id", "priority", "error_code"},
    "llm_d_epp_request_running": {"model_name", "target_model_name", "fairness_id", "priority"},
    "llm_d_epp_request_ttft_seconds_count": set(),
    "llm_d_epp_average_queue_size": {"name"},
    "llm_d_epp_average_kv_cache_utilization": {"name"},
    "llm_d_epp_ready_endpoints": {"name"},
    "llm_d_epp_per_endpoint_queue_size": {"name", "model_server_endpoint"},
    "inference_extension_flow_control_queue_size": {
        *("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
    },
    "inference_extension_flow_control_pool_saturation": {"inference_pool", "stage"},
    "inference_objective_running_requests": {"model_name"},
    "inference_objective_request_total": {"model_name", "target_model_name", "fairness_id", "priority"},
    "inference_pool_average_queue_size": {"name"},
    "inference_pool_average_running_requests": {"name"},
    "inference_pool_ready_pods": {"name"},
    "inference_pool_per_pod_queue_size": {"name", "model_server_pod"},
}


async def test_llm_ds_names_are_there_with_their_labels_and_count_what_happens(world: World) -> None:
    (engine,) = [await world.engine(step_s=0.01)]
    settings: dict[str, Any] = {"queue": {"max_requests": 2}, "metrics": {"aliases": ["llm_d"]}}
    await world.gateway(slots=2, **settings)
    sizes = {"inference_pool": "penstock", "model_name": "sim"}
    assert await world.metric("llm_d_epp_flow_control_queue_size", **sizes) == 0
    running = [await world.streaming(tokens=500) for _ in range(2)]
    for stream in running:
        await stream.begun()
    leaver = await world.streaming()
    low = await world.client_for(chat(stream=True), headers={"x-penstock-band": "batch"})
    await world.until(lambda: world.picture().waiting == 2)
    assert (await world.chat_with({"x-penstock-band": "batch"})).status == 429

    samples = [sample for family in await families(world) for sample in family.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    assert {name: labels[name] for name in LLM_D} == LLM_D
    for before in ("llm_d_epp", "inference_extension"):
        assert await world.metric(f"{before}_flow_control_queue_size", priority="0", **sizes) == 1
        assert await world.metric(f"{before}_flow_control_queue_size", priority="-1", **sizes) == 1
        assert await world.metric(f"{before}_flow_control_pool_saturation", stage="effective") == 1
    assert await world.metric("llm_d_epp_flow_control_global_capacity_utilization_requests") == 1
    assert await world.metric("inference_objective_running_requests", model_name="sim") == 2
    assert await world.metric("inference_pool_ready_pods") == 1
    await world.until(lambda: world.picture().endpoints[0].engine_running == 2)
    assert await world.metric("llm_d_epp_average_running_requests") == 2
    for stream in (leaver, low, *running):
        stream.hang_up()
    await world.idle()
    assert await world.metric("llm_d_epp_flow_control_requests_total", outcome="RejectedCapacity", priority="-1") == 1
    assert await world.metric("llm_d_epp_flow_control_requests_total", outcome="EvictedContextCancelled") == 2
    assert await world.metric("llm_d_epp_flow_control_requests_total", outcome="Dispatched") == 2
    assert await world.metric("llm_d_epp_request_error_total", error_code="ResourceExhausted") == 1
    await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    assert await world.metric("llm_d_epp_flow_control_pool_saturation") == 1
    assert await world.metric("llm_d_epp_ready_endpoints") == 0


async def test_llm_ds_fairness_id_is_the_flow(world: World) -> None:
    await world.engine(step_s=0.01)
    settings: dict[str, Any] = {"metrics": {"aliases": ["llm_d"]}, "tenants": [{"name": "blue", "keys": []}]}
    await world.gateway(slots=1, **settings)
    running = await world.streaming(tokens=500)
    await running.begun()
    for name in ("red", "blue"):
        header = {"x-llm-d-inference-fairness-id": name}
        for _ in range(2):
            world.soon(world.chat_with(header))
    low = world.soon(world.chat_with({"x-gateway-inference-fairness-id": "red", "x-penstock-band": "batch"}))
    unnamed = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 6)
    size = "llm_d_epp_flow_control_queue_size"
    assert await world.metric(size, fairness_id="red", priority="0", model_name="sim") == 2
    assert await world.metric(size, fairness_id="red", priority="-1", model_name="sim") == 1
    assert await world.metric(size, fairness_id="blue") == 2
    assert await world.metric(size, fairness_id="default-flow") == 1
    assert await world.metric(size) == 6
    running.hang_up()
    assert {(await low).status, (await unnamed).status} == {200}
    await world.idle()
    total = "llm_d_epp_request_total"
    assert await world.metric(total, fairness_id="red", priority="0", model_name="sim") == 2
    assert await world.metric(total, fairness_id="red", priority="-1") == 1
    assert await world.metric("inference_objective_request_total", fairness_id="blue") == 2
    assert await world.metric(total, fairness_id="default-flow", priority="0") == 2
    assert await world.metric(size) == 0
    assert (await world.chat_with({"x-llm-d-inference-fairness-id": "red"}, model="other")).status == 404
    assert await world.metric("llm_d_epp_request_error_total", error_code="NotFound", fairness_id="red") == 1


def test_names_that_callers_invent_are_bounded() -> None:
    histogram = Histogram("any", "Any.", bounds=(1.0,))
    counts = LlmD(lambda: pytest.fail("no snapshot"), (histogram, histogram, histogram, histogram))
    for number in range(502):
        counts.ended(f"flow-{number}", "sim", "normal", Outcome.COMPLETED, None)
    counts.ended("client:127.0.0.1", "sim", "normal", Outcome.COMPLETED, None)
    flows = {labels[0]: count for labels, [count] in counts.requests.values()}
    assert (flows["flow-499"], flows["other"], flows["default-flow"]) == (1, 2, 1)
    assert len(flows) == 502


async def test_the_routers_rejections_are_all_that_ended_with_429(world: World) -> None:
    await world.engine(step_s=0.01)
    limits = {"limits": {"queued": 1, "running": 1}}
    await world.gateway(
        slots=1,
        queue={"max_requests": 1},
        tenants=[{"name": "small", **limits}],
        identity={"max_band": "interactive"},
        metrics={"aliases": ["vllm_router"]},
    )
    running = await world.streaming(tokens=500)
    await running.begun()
    displaced = world.soon(world.chat_with({"X-Tenant-Id": "small"}))
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.chat_with({"X-Tenant-Id": "small"})).header("x-penstock-reason") == "tenant_limit"
    urgent = world.soon(world.chat_with({"X-Penstock-Band": "interactive"}))
    assert (await displaced).header("x-penstock-reason") == "displaced"
    running.hang_up()
    assert (await urgent).status == 200
    for reason in ("tenant_limit", "displaced"):
        assert await world.metric("vllm_router:rejections_total", reason=reason) == 1
    assert await world.metric("vllm_router:rejections_total", reason="overload") == 0
    page = await families(world)
    told = {s.labels["reason"] for family in page for s in family.samples if s.name == "vllm_router:rejections_total"}
    too_many = {str(reason) for reason in Reason if reason.status == 429}
    assert told == too_many - {"endpoint_overloaded"} | {"pinned_overload"}


async def test_a_pinned_endpoint_that_is_overloaded_is_counted_in_the_routers_word(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1, metrics={"aliases": ["vllm_router"]})
    running = await world.streaming(tokens=500)
    await running.begun()
    refused = await world.ask(path=f"{CHAT}?id={engine.url.removeprefix('http://')}", body=chat())
    assert (refused.status, refused.error()["code"]) == (429, "endpoint_overloaded")
    running.hang_up()
    assert await world.metric("vllm_router:rejections_total", reason="pinned_overload") == 1
    assert await world.metric("penstock_rejections_total", reason="endpoint_overloaded") == 1


@pytest.mark.parametrize("name", ['we"ird\\na me', "ünïcode", "{}"])
async def test_a_model_of_any_name_leaves_the_page_readable(world: World, name: str) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9", "models": [name]}])
    labels = [sample.labels.get("model") for family in await families(world) for sample in family.samples]
    assert name in labels
