"""Makes the parts of an endpoint by the settings: its connections, with their TLS context, and its observer."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from penstock.config.model import EndpointSection, Settings
from penstock.config.sections.endpoint_tls import EndpointTls, TlsFileError, client_context
from penstock.core.endpoints.roles import bootstrap_port_of
from penstock.engines.base import Model
from penstock.engines.recognise import ENGINES
from penstock.gateway.endpoints.observer import Observer, ObserveSettings
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import Upstream, UpstreamTimeouts

logger = logging.getLogger(__name__)


def upstream_timeouts(settings: Settings) -> UpstreamTimeouts:
    """Returns the time limits of an engine."""
    timeouts = settings.timeouts
    return UpstreamTimeouts(
        connect_s=timeouts.connect, first_byte_s=timeouts.first_byte, between_bytes_s=timeouts.between_bytes
    )


def trust(name: str, tls: EndpointTls | None) -> ssl.SSLContext | None:
    """Returns the context for connections to the endpoint `name`; None: the system's authorities.

    The settings were checked before. If a file is missing now, no certificate is trusted until the next reload.
    """
    if tls is None:
        return None
    try:
        return client_context(tls)
    except TlsFileError as error:
        logger.error("endpoint %s: `tls.%s` %s; no connection is made until a reload", name, error.key, error.why)  # noqa: TRY400
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def target_at(
    name: str,
    url: str,
    labels: Mapping[str, str],
    api_key: str | None,
    tls: EndpointTls | None,
    *,
    timeouts: UpstreamTimeouts,
) -> Target:
    """Returns the connections to an endpoint with these `labels`."""
    server_name = None if tls is None else tls.server_name
    upstream = Upstream(url, timeouts=timeouts, ssl_context=trust(name, tls), server_name=server_name)
    port = bootstrap_port_of(labels)
    return Target(upstream, api_key, None if port is None else (upstream.host, port))


class EndpointFactory(msgspec.Struct, frozen=True):
    """Makes the parts of each endpoint that is added."""

    driver: Driver
    observe: ObserveSettings
    timeouts: UpstreamTimeouts
    slots_initial: int
    leave_s: float  #: for the requests of a removed endpoint to end

    @classmethod
    def of(cls, settings: Settings, driver: Driver) -> Self:
        """Returns the factory for these settings."""
        return cls(
            driver=driver,
            observe=ObserveSettings(
                interval_s=settings.observe.interval,
                fast_interval_s=settings.observe.fast_interval,
                probe_interval_s=settings.health.probe_interval,
            ),
            timeouts=upstream_timeouts(settings),
            slots_initial=settings.admission.slots_initial,
            leave_s=settings.queue.stop_timeout,
        )

    def target(self, endpoint: EndpointSection) -> Target:
        """Returns the connections to the endpoint."""
        key = endpoint.api_key
        secret = key.get_secret_value() if key is not None else None
        return target_at(endpoint.name, endpoint.url, endpoint.labels, secret, endpoint.tls, timeouts=self.timeouts)

    def observer(
        self, endpoint: EndpointSection, target: Target, on_models: Callable[[str, list[Model]], None]
    ) -> Observer:
        """Returns the observer of the endpoint, which calls `on_models` with its name and models."""
        return Observer(
            endpoint.name,
            target,
            self.driver,
            self.observe,
            engine=ENGINES.get(endpoint.engine),
            asks_models=endpoint.models == "auto",
            on_models=on_models,
        )
