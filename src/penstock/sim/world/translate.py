"""Translates the world's engines, requests and gauges into the scheduler's values."""

from __future__ import annotations

from penstock.core.values.observation import Observation
from penstock.core.values.request import Contents, Request, Turn
from penstock.core.values.settings import EndpointSpec
from penstock.sim.world.workload import Job
from penstock.sim.world.world_values import EngineNode, EngineSpec

SLOTS_INITIAL = 16  # if an engine's size is not configured


def endpoint_spec(spec: EngineSpec) -> EndpointSpec:
    return EndpointSpec(
        name=spec.name,
        slots=spec.slots if spec.slots is not None else SLOTS_INITIAL,
        models=frozenset({"sim"}),
        adaptive_slots=spec.slots is None,
        labels={} if spec.role == "both" else {"role": spec.role},
    )


def request(job: Job) -> Request:
    stream = job.stream
    return Request(
        id=job.id,
        model=stream.model,
        band=stream.band,
        tenant=stream.tenant,
        flow=(stream.tenant, stream.user) if stream.user else (stream.tenant,),
        weights=(stream.weight, 1.0) if stream.user else (stream.weight,),
        body_bytes=job.body_bytes,
        contents=Contents(job.body_bytes - job.picture_bytes, pictures=1) if job.picture_bytes else None,
        output_tokens_max=stream.output_tokens_max,
        streamed=stream.streamed,
        deadline_s=job.deadline_s,
        session=job.session,
        turn=Turn(job.root, "" if job.session == job.root else job.session or "") if job.root is not None else None,
        prefix=job.blocks,
        prefix_chunk_bytes=max(1, round(job.block_tokens * job.body_bytes / job.prompt_tokens)),
    )


def observation(node: EngineNode, asked_s: float) -> Observation | None:
    """Returns an engine's observation; None if it has no page."""
    gauges, config = node.page.read(node.engine.gauges(), asked_s), node.spec.config
    if gauges is None:
        return None
    if not node.page.has_counters:
        return Observation(asked_s=asked_s, running=gauges.running, waiting=gauges.waiting)
    return Observation(
        asked_s=asked_s,
        running=gauges.running,
        waiting=gauges.waiting,
        queued=gauges.waiting,
        kv_usage=gauges.kv_usage,
        kv_capacity_tokens=config.kv_blocks * config.block_size,
        progress=gauges.prompt_tokens_total + gauges.generation_tokens_total + gauges.finished_total,
        started_s=node.started_s,
        pace_s_total=gauges.between_tokens_s_total,
        pace_tokens_total=gauges.between_tokens_total,
        first_token_s_total=gauges.first_token_s_total,
        first_tokens_total=gauges.first_tokens_total,
    )
