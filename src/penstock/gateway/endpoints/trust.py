"""The TLS context of an endpoint's connections."""

from __future__ import annotations

import logging
import ssl

from penstock.config.sections.endpoint_tls import EndpointTls, TlsFileError, client_context

logger = logging.getLogger(__name__)


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
