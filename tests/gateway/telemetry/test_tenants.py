"""Whose requests ended how, waited how long, and for the first token: by tenant, with labels that are bounded."""

from __future__ import annotations

from hashlib import sha256

from penstock.config.load import from_mapping
from penstock.core.values.catalogue import Outcome, Reason
from penstock.gateway.telemetry.tenant_series import TenantSeries
from tests.gateway.conftest import World, chat, fault

TENANTS_MAX = 1000

NIGHTLY = {"X-Tenant-Id": "nightly"}
ENDED = "penstock_tenant_requests_total"


async def test_outcomes_refusals_waits_and_first_tokens_are_counted_by_tenant(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, queue={"max_requests": 1}, tenants=[{"name": "nightly"}, {"name": "team"}])
    running = await world.streaming(tokens=60)
    await running.begun()
    waiter = world.soon(world.chat_with(NIGHTLY, tokens=1))
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.chat_with(NIGHTLY)).status == 429
    assert (await world.ask(body=b"{", headers=NIGHTLY)).status == 400, "nobody has asked yet whose it is"
    await running.whole()
    assert (await waiter).status == 200

    assert await world.metric(ENDED, tenant="nightly", outcome="completed", reason="") == 1
    assert await world.metric(ENDED, tenant="nightly", outcome="rejected", reason="queue_full") == 1
    assert await world.metric(ENDED, tenant="other", outcome="completed", reason="") == 1
    assert await world.metric(ENDED, tenant="other", outcome="rejected", reason="bad_request") == 1
    assert await world.metric(ENDED) == await world.metric("penstock_requests_total") == 4
    assert await world.metric("penstock_tenant_queue_wait_seconds_count", tenant="nightly") == 1, "one was not let in"
    assert await world.metric("penstock_tenant_queue_wait_seconds_sum", tenant="nightly") > 0
    assert await world.metric("penstock_tenant_ttft_seconds_count", tenant="other") == 1
    assert await world.metric("penstock_tenant_ttft_seconds_count", tenant="nightly") == 0, "its answer was no stream"
    assert await world.metric(ENDED, tenant="team", outcome="completed") == 0, "there from the start"


async def test_a_refusal_of_a_request_with_a_key_is_its_tenants_although_it_was_not_read(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "nightly", "keys": [f"sha256:{sha256(b'sk-nightly').hexdigest()}"]}])
    assert (await world.ask(body=b"{", headers={"Authorization": "Bearer sk-nightly"})).status == 400
    assert await world.metric(ENDED, tenant="nightly", outcome="rejected", reason="bad_request") == 1


async def test_a_broken_stream_and_a_retry_are_reported_with_tenant_and_endpoint(world: World) -> None:
    engine = await world.engine()
    await world.gateway(tenants=[{"name": "nightly"}])
    fault(engine, "die", count=1, after_bytes=600)  # beyond the role
    body = await world.ask(body=chat(tokens=50, stream=True), headers=NIGHTLY)
    assert b"stream_broken" in body.body
    assert await world.metric(ENDED, tenant="nightly", outcome="failed", reason="stream_broken") == 1
    rows = world.gate.metrics.failures.take()
    assert [(row.kind, row.reason, row.tenant) for row in rows] == [("broken", "stream_broken", "nightly")]
    assert {row.endpoint for row in rows} == {engine.url.removeprefix("http://")}


def drawn(series: TenantSeries) -> str:
    return "".join(line for one in series.all for line in one.lines())


def test_tenant_labels_are_bounded_and_those_that_are_gone_end() -> None:
    series = TenantSeries()
    many = [{"name": f"t{at}"} for at in range(TENANTS_MAX + 100)]
    series.follow(from_mapping({"endpoints": [{"url": "http://127.0.0.1:9"}], "tenants": many}))
    for at in range(TENANTS_MAX + 200):
        for reason in (Reason.QUEUE_FULL, Reason.BAD_REQUEST):
            series.ended(f"t{at}", Outcome.REJECTED, reason, waited_s=1.0)
    page = drawn(series)
    named = {line.split('tenant="')[1].split('"')[0] for line in page.splitlines() if 'tenant="' in line}
    assert len(named) == TENANTS_MAX
    assert 'penstock_tenant_requests_total{outcome="rejected",reason="queue_full",tenant="other"} 201.0' in page
    series.follow(from_mapping({"endpoints": [{"url": "http://127.0.0.1:9"}], "tenants": [{"name": "t1"}]}))
    page = drawn(series)
    assert 'tenant="t1"} 1.0' in page, "what was counted stays"
    assert 'tenant="t2"' not in page
