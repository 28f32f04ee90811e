"""Clients: allowed web pages (CORS), and the client's address behind proxies."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.address import is_everywhere, split_listen
from penstock.config.problems import Document, Found, mapping_of, problem, unreadable
from penstock.config.sections.section import Section, setting
from penstock.config.sections.share import OptionalListen, OptionalSharedSecret
from penstock.config.sections.tenancy import HOSTS_MAX, PROXIES_MAX

ANY_ORIGIN = "*"


class CorsSection(Section):
    """Web pages that may call the API from a browser (CORS). None by default; never `/admin`.

    The gateway answers preflight requests itself and never allows cookies. A script sends a key like any client, and
    everybody who opens the page can read that key.
    """

    origins: Annotated[tuple[values.CorsOrigin, ...], BeforeValidator(values.items(0, HOSTS_MAX))] = setting(
        (),
        "Their origins, such as `https://chat.example.com`; these are `identity.allowed_origins` too. `*` for any, "
        "only with `identity.require_key`.",
    )


class ClientAddress(Section):
    """The client's address behind load balancers or proxies, for the access log, events,
    `limits.max_connections_per_address` and the delay after wrong admin tokens. Default: the peer's.

    It grants nothing; `identity.trusted_proxies` lets a proxy name tenants.
    """

    proxy_protocol: Annotated[tuple[values.Network, ...], BeforeValidator(values.items(0, PROXIES_MAX))] = setting(
        (),
        "Addresses or networks of load balancers that must begin each connection with a PROXY protocol header "
        "(version 1 or 2, before TLS); without one it is closed. Others' headers are ignored. Not for `admin.listen`.",
    )
    proxies: Annotated[tuple[values.Network, ...], BeforeValidator(values.items(0, PROXIES_MAX))] = setting(
        (),
        "Addresses or networks of HTTP proxies whose `header` is trusted: the client is its last address outside "
        "these. They are exempt from `limits.max_connections_per_address`.",
    )
    header: Literal["x-forwarded-for", "forwarded"] = setting(
        "x-forwarded-for",
        "The header that these proxies append to. The other one is ignored, because clients may forge it.",
    )


class EppSection(Section):
    """The endpoint picker for Envoy and the gateways made of it: docs/epp.md. Needs the extra `epp`.

    Proxies prove themselves by a certificate (`client_ca`), by `secret`, or by both.
    """

    listen: OptionalListen = setting(
        None,
        "Where proxies connect by gRPC (ext_proc), such as `:9002`; with TLS if `tls` is set. Without `client_ca` and "
        "`secret`, `:9002` is loopback only, and at another address no engine's `api_key` is given out. Default: "
        "nowhere.",
    )
    client_ca: values.OptionalFile = setting(
        None, "An authority (PEM) that signed the certificates of the proxies and no others. Needs `tls`."
    )
    secret: OptionalSharedSecret = setting(
        None,
        "What proxies send as the gRPC metadata `x-penstock-secret` (Envoy: `grpc_service.initial_metadata`). Never "
        "logged or shown.",
    )
    fallbacks: values.Whole = setting(
        0,
        "Other endpoints named after the picked one in `x-gateway-destination-endpoint`, for a proxy that tries a list "
        "in order (`deploy/envoy/fallbacks.yaml`). With `deploy/envoy/envoy.yaml` it must be 0: its `ORIGINAL_DST` "
        "clusters take one address each, the second that of `x-penstock-fallback-endpoint`, which is always sent.",
        ge=0,
        le=3,
    )
    max_streams_per_address: values.Whole = setting(
        10_000,
        "Open streams, so requests under way, of one proxy's address in one process; further ones are refused. All of "
        "them together are bounded by `limits.max_connections`.",
        ge=1,
    )
    sample_every: values.Whole = setting(
        20,
        "With `response_body_mode: NONE`: the body of one in so many answers is asked for, to learn endpoints' pace "
        "and to measure the estimate's error; 0: none. Needs `request_body_mode: BUFFERED` and "
        "`allow_mode_override: true`.",
        ge=0,
    )

    @property
    def proves(self) -> bool:
        """True if proxies have to prove themselves."""
        return self.client_ca is not None or self.secret is not None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on: only loopback if proxies need no proof and no host is given."""
        host, port = split_listen(self.listen or "")
        return (host or ("::" if self.proves else "127.0.0.1")), port

    @property
    def gives_keys(self) -> bool:
        """True if whoever connects may get engines' API keys: a proxy with a proof, or this machine."""
        return self.proves or not is_everywhere(self.address[0])


def epp_problem() -> str | None:
    """Returns why the picker can't run here."""
    if find_spec("grpc") is None or find_spec("envoy") is None:
        return "needs grpcio and xds-protos, not installed: pip install 'penstock-gateway[epp]'"
    return None


def epp_checks(document: Document) -> Found:
    raw = mapping_of(document.get("epp"))
    if raw.get("listen") and (missing := epp_problem()) is not None:
        yield problem(("epp", "listen"), missing)
    authority = raw.get("client_ca")
    if isinstance(authority, str):
        if not mapping_of(document.get("tls")).get("cert"):
            yield problem(("epp", "client_ca"), "needs `tls`: certificates are shown only on connections with TLS")
        yield from unreadable(document, ("epp", "client_ca"), authority)
