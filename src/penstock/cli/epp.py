"""`penstock epp`: a gateway that also picks endpoints for proxies (docs/epp.md)."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from penstock.cli import running
from penstock.config.model import Settings
from penstock.config.sections.epp import EppSection

DEFAULT = ":9002"  # where gateways look for a picker

add_arguments = running.add_arguments


def run(args: argparse.Namespace) -> int:
    """Serve, with `epp.listen` at its usual port unless set; returns the exit code."""
    if find_spec("grpc") is None or find_spec("envoy") is None:
        print("penstock epp: needs grpcio and xds-protos: pip install 'penstock-gateway[epp]'", file=sys.stderr)
        return 2
    return running.run(args, _picking)


def _picking(settings: Settings) -> Settings:
    if settings.epp.listen is not None:
        return settings
    return settings.model_copy(update={"epp": EppSection(listen=DEFAULT)})
