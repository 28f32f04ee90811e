"""Clients: which web pages may use the gateway, and whose address does a request have that comes through others?"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.sections.section import Section, setting
from penstock.config.sections.tenancy import HOSTS_MAX, PROXIES_MAX

ANY_ORIGIN = "*"


class CorsSection(Section):
    """Which web pages' scripts may call the API from a browser (CORS). None by default, and none may use `/admin`.

    A browser asks first (`OPTIONS`, without the key); the gateway answers that itself. It never allows cookies: a
    script has to send a key as any other client does, and whoever opens the page can read that key.
    """

    origins: Annotated[tuple[values.CorsOrigin, ...], BeforeValidator(values.items(0, HOSTS_MAX))] = setting(
        (),
        "Origins of these pages, such as `https://chat.example.com`; they count as `identity.allowed_origins`, too. "
        "`*` for any, only with `identity.require_key`.",
    )


class ClientAddress(Section):
    """Whose address a request has that comes through load balancers or proxies: in the access log, in the events, for
    `limits.max_connections_per_address`, and where wrong admin tokens are slowed down. Without it, that of whoever
    has the connection.

    It grants nothing: which tenant a proxy may name is said by `identity.trusted_proxies`.
    """

    proxy_protocol: Annotated[tuple[values.Network, ...], BeforeValidator(values.items(0, PROXIES_MAX))] = setting(
        (),
        "Addresses or networks of load balancers that begin each connection with a PROXY protocol header (version 1 or "
        "2, before TLS). They have to: a connection of theirs without one is closed. Nobody else's is read. Does not "
        "hold for `admin.listen`.",
    )
    proxies: Annotated[tuple[values.Network, ...], BeforeValidator(values.items(0, PROXIES_MAX))] = setting(
        (),
        "Addresses or networks of HTTP proxies whose `header` is believed: the client is the last address in it that "
        "is none of these. Their own connections are many clients', so `limits.max_connections_per_address` does not "
        "count for them.",
    )
    header: Literal["x-forwarded-for", "forwarded"] = setting(
        "x-forwarded-for",
        "The header to which these proxies add. The other one is not looked at, for clients may send it themselves.",
    )
