"""What does each part of the gateway need of the settings? Asked when it is made, and again when it is told new ones.

Both ways ask here, so a gateway that was told new settings is what it would be if it had been started with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config.model import EndpointSection, Settings
from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.endpoints.roles import bootstrap_port_of
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import (
    AdmissionSettings,
    BandSettings,
    HealthSettings,
    Prices,
    QueueBounds,
    RoutingSettings,
)
from penstock.engines.base import Model
from penstock.engines.recognise import ENGINES
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.observer import Observer, ObserveSettings
from penstock.gateway.endpoints.registry import EndpointFactory
from penstock.gateway.identity.caller import PART_OF
from penstock.gateway.identity.callers import core_limits
from penstock.gateway.kv_cache.lmcache import Controller, Coordinator, LmCache, Service
from penstock.gateway.kv_cache.locator import Locator
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.journey import OnEnd
from penstock.gateway.proxy.model_profiles import profiles
from penstock.gateway.proxy.target import Target
from penstock.gateway.telemetry import access_log
from penstock.http.client.pool import Upstream, UpstreamTimeouts
from penstock.http.server.server import ServerLimits

if TYPE_CHECKING:
    from penstock.gateway.telemetry.tracing import Tracer


def scheduler_settings(settings: Settings) -> SchedulerSettings:
    """The part of the settings that decides."""
    queue, health, admission = settings.queue, settings.health, settings.admission
    prices, levels = settings.fairness.prices, settings.fairness.levels
    accounts = {**{tenant.name: tenant.limits for tenant in settings.tenants}, ANONYMOUS: settings.anonymous.limits}
    return SchedulerSettings(
        bands=tuple(
            BandSettings(
                name=band.name,
                engine_waiting_max=band.max_engine_waiting,
                ceiling=band.ceiling,
                min_share=band.min_share,
                wait_s_max=band.max_wait,
                deadline_s=band.deadline,
                time_per_output_token_s_max=band.max_time_per_output_token,
                requests_max=band.max_requests,
                bytes_max=band.max_bytes,
                tokens_max=band.max_tokens,
                shed_target_s=band.shed_target if band.best_effort else None,
                shed_interval_s=band.shed_interval,
                fairness=band.fairness.policy or None,
                ordering=band.ordering or None,
            )
            for band in settings.bands
        ),
        queue_enabled=queue.enabled,
        bounds=QueueBounds(requests_max=queue.max_requests, bytes_max=queue.max_bytes, tokens_max=queue.max_tokens),
        wait_s_max=queue.max_wait,
        fairness=settings.fairness.policy,
        prices=Prices(prompt=prices.prompt, cached_prompt=prices.cached_prompt, completion=prices.completion),
        levels=levels,
        tenant_level=levels.index("tenant")
        if "tenant" in levels
        else levels.index("user")
        if "user" in levels
        else None,
        ordering=settings.ordering,
        admission=AdmissionSettings(
            kv_usage_max=admission.max_kv_usage,
            prefill_tokens_max=admission.max_prefill_tokens,
            time_per_output_token_s_max=admission.max_time_per_output_token,
            reserved_share=None if admission.reserved_slots == "auto" else admission.reserved_slots,
        ),
        engine_priority=admission.engine_priority,
        tenants={name: limits for name, its in accounts.items() if (limits := core_limits(its)) is not None},
        tenant_weights={
            PART_OF.format(ANONYMOUS): settings.anonymous.weight,
            **{tenant.name: tenant.weight for tenant in settings.tenants},
        },
        model_weights={name: profile.weight for name, profile in profiles(settings).items()},
        routing=settings.routing.policy,
        router=RoutingSettings(
            affinity_escape_s=settings.routing.affinity_escape,
            affinity_wait_s=None if settings.routing.affinity_wait == "auto" else settings.routing.affinity_wait,
            imbalance_threshold=settings.routing.imbalance_threshold,
            price_weight_s=settings.routing.price_weight,
            strict_sessions=settings.routing.session.strict,
            prefix_group=settings.routing.prefix_group,
            prefix_group_tokens=settings.routing.prefix_group_tokens,
        ),
        attempts_max=settings.retry.max_attempts,
        retry_budget=settings.retry.budget,
        health=HealthSettings(
            eject_after=health.eject_after,
            eject_for_s=health.eject_for,
            eject_for_s_max=health.eject_for_max,
            panic_threshold=health.panic_threshold,
        ),
        stale_after_s=max(3 * settings.observe.interval, 2.0),
        divided_tokens_min=settings.routing.divide_from,
    )


def server_limits(settings: Settings) -> ServerLimits:
    """What a client may send, and how long it may take."""
    limits, timeouts = settings.limits, settings.timeouts
    return ServerLimits(
        header_bytes_max=limits.max_header,
        body_bytes_max=limits.max_body,
        bodies_bytes_max=max(settings.queue.max_bytes, limits.max_body),
        connections_max=limits.max_connections,
        connections_per_address_max=limits.max_connections_per_address,
        header_timeout_s=timeouts.client_header,
        body_timeout_s=timeouts.client_body,
        write_timeout_s=timeouts.client_write,
    )


def wait_s_max(settings: Settings) -> float:
    """The longest that anybody may wait."""
    return max(band.max_wait or settings.queue.max_wait for band in settings.bands)


def aliases(settings: Settings) -> dict[str, str]:
    """What callers may say, and what engines know it as."""
    return {name: model.to for name, model in settings.models.items() if model.to is not None}


def admin_tokens(settings: Settings) -> tuple[str | None, str | None]:
    """For everything, and for looking only."""
    full, reads = settings.admin.token, settings.admin.read_token
    return full.get_secret_value() if full else None, reads.get_secret_value() if reads else None


def tracer(settings: Settings) -> Tracer | None:
    """What sends traces, where there is a collector."""
    tracing = settings.tracing
    if tracing.endpoint is None:
        return None
    from penstock.gateway.telemetry.tracing import otlp  # noqa: PLC0415  (an extra)

    return otlp(tracing.endpoint, sample=tracing.sample)


def on_end(settings: Settings) -> OnEnd | None:
    """Who hears of requests' ends, where anybody does."""
    return access_log.ended if settings.log.access else None


def locator(settings: Settings, driver: Driver, catalog: Catalog) -> Locator | None:
    """Who finds out where prompts are cached, where our own history is not enough and the policy cares."""
    routing = settings.routing
    if routing.locality == "history":  # nor is any other asked with a policy that would not listen
        return None
    lmcache = None
    if routing.locality == "lmcache":
        named = routing.lmcache
        services: list[Service] = [Coordinator(named.coordinator)] if named.coordinator else []
        services += [Controller(named.controller)] if named.controller else []
        lmcache = LmCache(services)
    return Locator(driver, lmcache=lmcache, names_of=catalog.names_of)


def endpoint_parts(settings: Settings, driver: Driver) -> EndpointFactory:
    """How the parts of an endpoint are made, whenever it comes."""
    observe = ObserveSettings(
        interval_s=settings.observe.interval,
        fast_interval_s=settings.observe.fast_interval,
        probe_interval_s=settings.health.probe_interval,
    )
    timeouts = UpstreamTimeouts(
        connect_s=settings.timeouts.connect,
        first_byte_s=settings.timeouts.first_byte,
        between_bytes_s=settings.timeouts.between_bytes,
    )

    def target(endpoint: EndpointSection) -> Target:
        key = endpoint.api_key
        upstream = Upstream(endpoint.url, timeouts=timeouts)
        port = bootstrap_port_of(endpoint.labels)
        place = None if port is None else (upstream.place[0], port)
        return Target(upstream, key.get_secret_value() if key is not None else None, place)

    def observer(endpoint: EndpointSection, target: Target, on_models: Callable[[str, list[Model]], None]) -> Observer:
        return Observer(
            endpoint.name,
            target,
            driver,
            observe,
            engine=ENGINES.get(endpoint.engine),
            asks_models=endpoint.models == "auto",
            on_models=on_models,
        )

    return EndpointFactory(
        target=target,
        observer=observer,
        observe=observe,
        timeouts=timeouts,
        slots_initial=settings.admission.slots_initial,
        leave_s=settings.queue.stop_timeout,
    )
