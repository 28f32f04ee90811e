"""Translates the settings for rooms that know nothing of the file: the core, the HTTP server, the log.

Every other part reads the settings itself (`follow`). So a reloaded gateway equals one that was started with the new
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from penstock import logs
from penstock.config.model import Settings
from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import (
    AdmissionSettings,
    BandSettings,
    HealthSettings,
    Limits,
    Prices,
    QueueBounds,
    RoutingSettings,
    SessionSettings,
)
from penstock.gateway.identity.caller import PART_OF
from penstock.gateway.identity.clients import Networks
from penstock.gateway.identity.own_limits import all_limits
from penstock.gateway.process import usable_cpus
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.model_profiles import profiles
from penstock.http.server.server import HttpServer, ServerLimits


class ToScheduler:
    """Reconfigures the scheduler, and carries out its actions at once."""

    def __init__(
        self, driver: Driver, limits: Callable[[], Mapping[str, Limits]], weights: Callable[[], Mapping[str, float]]
    ) -> None:
        self._driver = driver
        self._limits = limits  # of tenants, with operators' changes
        self._weights = weights  # of tenants, by operators

    def follow(self, settings: Settings) -> None:
        """Decide by these settings from now on, for queued requests, too."""
        driver, told = self._driver, scheduler_settings(settings)
        told = msgspec.structs.replace(told, tenants=self._limits(), ordered_weights=self._weights())
        driver.tell(driver.scheduler.reconfigured(told, now=driver.now()))


class ToServer:
    """Sets the limits of an HTTP server: that of callers, or the operators' own."""

    def __init__(self, server: HttpServer, *, for_operators: bool = False) -> None:
        self._server = server
        self._for_operators = for_operators

    def follow(self, settings: Settings) -> None:
        """Use these limits and trusted proxies from now on."""
        its = settings.client_address
        self._server.limits = server_limits(settings)
        proxied = its.proxy_protocol and not self._for_operators
        self._server.brings = Networks(its.proxy_protocol).hold if proxied else None
        self._server.carries_many = Networks(its.proxies).hold


class ToLog:
    """Sets the log's format."""

    def follow(self, settings: Settings) -> None:
        """Log in this format from now on."""
        logs.use(settings.log.format)


def scheduler_settings(settings: Settings) -> SchedulerSettings:
    """Returns the scheduler's part of the settings."""
    queue, admission = settings.queue, settings.admission
    prices, levels = settings.fairness.prices, settings.fairness.levels
    return SchedulerSettings(
        bands=tuple(
            BandSettings(
                name=band.name,
                engine_waiting_max=band.max_engine_waiting,
                ceiling=band.ceiling,
                min_share=band.min_share,
                wait_s_max=0.0 if 0 in (queue.max_requests, band.max_requests) else band.max_wait,
                deadline_s=band.deadline,
                time_per_output_token_s_max=band.max_time_per_output_token,
                requests_max=band.max_requests,
                bytes_max=band.max_bytes,
                tokens_max=band.max_tokens,
                shed_target_s=band.shed_target if band.best_effort else None,
                fairness=band.fairness.policy or None,
                ordering=band.ordering or None,
                preemptible=band.preemptible,
            )
            for band in settings.bands
        ),
        queue_enabled=queue.enabled,
        bounds=QueueBounds(requests_max=queue.max_requests, bytes_max=queue.max_bytes, tokens_max=queue.max_tokens),
        wait_s_max=queue.max_wait if queue.max_requests else 0.0,
        named_models=_named_models(settings),
        empty_wait_s_max=queue.empty_pool_wait,
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
            preempted_share_max=admission.max_preempted_share,
        ),
        engine_priority=admission.engine_priority,
        tenants=all_limits(settings),
        tenant_weights={
            PART_OF.format(ANONYMOUS): settings.anonymous.weight,
            **{tenant.name: tenant.weight for tenant in settings.tenants},
            **{PART_OF.format(tenant.name): tenant.weight for tenant in settings.tenants},  # of keys with limits
        },
        model_weights={name: profile.weight for name, profile in profiles(settings).items()},
        routing=settings.routing.policy,
        router=RoutingSettings(
            affinity_escape_s=settings.routing.affinity_escape,
            affinity_wait_s=None if settings.routing.affinity_wait == "auto" else settings.routing.affinity_wait,
            imbalance_threshold=settings.routing.imbalance_threshold,
            adapter_affinity=settings.routing.adapter_affinity,
            prefix_group=settings.routing.prefix_group,
            price_weight_s=settings.routing.price_weight,
            strict_sessions=settings.routing.session.strict,
        ),
        attempts_max=settings.retry.max_attempts,
        retry_budget=settings.retry.budget,
        health=health_settings(settings),
        stale_after_s=max(3 * settings.observe.interval, 2.0),
        sessions=_sessions(settings),
        divided_tokens_min=settings.routing.divide_from,
    )


def _sessions(settings: Settings) -> SessionSettings:
    """Returns the gate's settings. `queue.max_wait` bounds all waits if it is set, otherwise the rest of a wait."""
    sessions, queue = settings.sessions, settings.queue
    bounded = "max_wait" in queue.model_fields_set and queue.max_wait > 0
    return SessionSettings(
        memory=sessions.memory == "auto",
        wait_s=min(sessions.wait, queue.max_wait) if bounded else sessions.wait,
        wait_s_max=0.0 if bounded else sessions.wait + queue.max_wait,
    )


def health_settings(settings: Settings) -> HealthSettings:
    """Returns when failures take an endpoint out."""
    health = settings.health
    return HealthSettings(
        eject_after=health.eject_after,
        eject_for_s=health.eject_for,
        eject_for_s_max=health.eject_for_max,
        panic_threshold=health.panic_threshold,
    )


def _named_models(settings: Settings) -> frozenset[str]:
    """Returns the models that sources of endpoints name, although they may have none now."""
    found: set[str] = set()
    for entry in settings.discovery:
        for source in (entry.dns, entry.kubernetes):
            if source is not None and source.models != "auto":
                found.update(source.models)
    return frozenset(found)


def workers(settings: Settings) -> int:
    """Returns how many processes carry requests; 1: this one alone."""
    return usable_cpus() if settings.workers == "auto" else settings.workers


def server_limits(settings: Settings) -> ServerLimits:
    """Returns the limits on clients' requests, connections and times."""
    limits, timeouts = settings.limits, settings.timeouts
    return ServerLimits(
        header_bytes_max=limits.max_header,
        body_bytes_max=limits.max_body,
        bodies_bytes_max=max(settings.queue.max_bytes, limits.max_body),
        connections_max=limits.max_connections,
        connections_per_address_max=limits.max_connections_per_address,
        header_timeout_s=timeouts.client_header,
        body_timeout_s=timeouts.client_body,
        body_timeout_total_s=timeouts.client_body_total,
        write_timeout_s=timeouts.client_write,
        keepalive_timeout_s=timeouts.client_idle,
    )
