"""Epp: picking endpoints for a proxy that carries the bytes itself."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.config.problems import Document, Found, mapping_of, problem
from penstock.config.sections.section import Section, setting
from penstock.config.sections.share import OptionalListen


class EppSection(Section):
    """The endpoint picker for Envoy and the gateways made of it: docs/epp.md. Needs the extra `epp`."""

    listen: OptionalListen = setting(
        None, "Where proxies connect by gRPC (ext_proc), such as `:9002`; with TLS if `tls` is set. Default: nowhere."
    )


def epp_problem() -> str | None:
    """Returns why the picker can't run here."""
    if find_spec("grpc") is None or find_spec("envoy") is None:
        return "needs grpcio and xds-protos, not installed: pip install 'penstock-gateway[epp]'"
    return None


def epp_checks(document: Document) -> Found:
    """Yields what keeps the picker from listening on this machine."""
    if mapping_of(document.get("epp")).get("listen") and (missing := epp_problem()) is not None:
        yield problem(("epp", "listen"), missing)
