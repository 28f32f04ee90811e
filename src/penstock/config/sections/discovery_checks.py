"""Checks of `discovery`: each entry names one source, completely."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.problems import Document, Found, Location, items_of, missing_extra, one_of, problem, unreadable
from penstock.config.sections.discovery import ClusterAccount, Dns, Kubernetes, SourceSection
from penstock.config.sections.endpoint_tls import EndpointTls, TlsFileError, client_context


def discovery_checks(document: Document) -> Found:
    for index, item in enumerate(items_of(document.get("discovery"))):
        if not isinstance(item, Mapping):
            continue
        at: Location = ("discovery", index)
        kinds = SourceSection.given(item)
        if len(kinds) != 1:
            yield from one_of(kinds, SourceSection.model_fields, at)
            continue
        source = SourceSection.valid({kinds[0]: item[kinds[0]]})
        if source is None:
            continue
        if source.dns is not None:
            yield from _dns(source.dns, (*at, "dns"))
            yield from tls_checks(source.dns.tls, (*at, "dns"), is_https=source.dns.scheme == "https")
        if source.kubernetes is not None:
            yield from _kubernetes(source.kubernetes, document, (*at, "kubernetes"))
            tls, scheme = source.kubernetes.tls, source.kubernetes.scheme
            yield from tls_checks(tls, (*at, "kubernetes"), is_https=scheme == "https")


def _dns(dns: Dns, at: Location) -> Found:
    if dns.type == "address" and dns.port is None:
        yield problem((*at, "port"), "is required with `type: address`", f"write `dns: {dns.name}:8000`")
    if dns.type == "srv" and dns.port is not None:
        yield problem((*at, "port"), "is not used with `type: srv`: the records have ports of their own")
    if dns.type == "srv" or dns.resolver:
        key = "type" if dns.type == "srv" else "resolver"
        yield from missing_extra((*at, key), "needs a package that is not installed", "dns", "dns")


def _kubernetes(kubernetes: Kubernetes, document: Document, at: Location) -> Found:
    if sum((kubernetes.service is not None, kubernetes.pool is not None, bool(kubernetes.selector))) != 1:
        yield problem(at, "expected one of `service`, `selector` and `pool`")
    if kubernetes.pool is not None and kubernetes.port:
        yield problem((*at, "port"), "is not used with `pool`, which has target ports of its own")
    yield from account_checks(kubernetes, document, at)


def account_checks(kubernetes: ClusterAccount, document: Document, at: Location) -> Found:
    """Yields the problems of an API server's settings."""
    if kubernetes.token is not None and kubernetes.token_file is not None:
        yield problem((*at, "token"), "is given twice, by `token_file` too", "give one of them")
    if kubernetes.server is None:
        for key in ("token", "token_file", "ca_file"):
            if getattr(kubernetes, key) is not None:
                yield problem((*at, key), "is given, but `server` is not", "in a cluster none of them is needed")
    for key in ("token_file", "ca_file"):
        yield from unreadable(document, (*at, key), getattr(kubernetes, key))


def tls_checks(tls: EndpointTls | None, at: Location, *, is_https: bool) -> Found:
    if tls is None:
        return
    at = (*at, "tls")
    if not is_https:
        yield problem(at, "is given, but the endpoint uses `http`", "write `https`")
    if (tls.cert is None) != (tls.key is None):
        missing, given = ("key", "cert") if tls.key is None else ("cert", "key")
        yield problem((*at, missing), f"is missing, but `{given}` is given", "a client certificate needs both")
        return
    if not tls.verify and tls.ca is not None:
        yield problem((*at, "verify"), "is false, so `ca` is not used", "leave one of them out")
    try:
        client_context(tls)
    except TlsFileError as error:
        yield problem((*at, error.key), error.why)
