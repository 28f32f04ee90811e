"""Operation: who may look at the gateway and change it while it runs, and what does it tell of itself?"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.address import endpoint_url
from penstock.config.sections.section import Section, setting

OptionalUrl = Annotated[str | None, BeforeValidator(values.optional(endpoint_url)), values.ValueKind("URL")]


class Admin(Section):
    """The tokens for looking at `/admin` and changing things there, and where it is.

    Where neither token is set, the gateway makes one of its own at each start, and keeps it in `state_dir` for the
    commands on the same machine. Without a token `/admin` then shows itself to this machine only, where it is served
    at a loopback address, and changes nothing.
    """

    listen: values.OptionalListen = setting(
        None,
        "An address of its own for `/admin`, `/metrics`, `/autoscale`, `/sleep` and `/wake_up`, such as "
        "`127.0.0.1:9090`: at `listen` these are 404 then. `/health`, `/ready` and `/version` are at both. The same "
        "`tls`. Commands are given its URL (`--url`, `PENSTOCK_URL`).",
    )

    token: values.OptionalAdminToken = setting(
        None,
        "The token for everything under `/admin`, of at least 8 characters. Sent as `Authorization: Bearer …`. Never "
        "logged or shown.",
    )
    read_token: values.OptionalAdminToken = setting(None, "A token that may look, but change nothing.")

    @property
    def has_token(self) -> bool:
        """Whether any token is set."""
        return self.token is not None or self.read_token is not None


class AutoscaleSection(Section):
    """How many endpoints `/autoscale` wants for a model (docs/autoscaling.md)."""

    target_wait: values.Duration = setting(
        60.0, "The queue that stands when new endpoints begin to serve is to be gone within this.", gt=0
    )
    saturation: values.Number = setting(0.85, "The share of the slots that is to be in use.", gt=0, le=1)
    start: values.Duration = setting(
        60.0,
        "How long an engine takes from being asked for to its first request: load is looked at so far ahead.",
        ge=0,
    )
    keep: values.Duration = setting(300.0, "What was wanted so recently is wanted still.", ge=0)


class Log(Section):
    """What is logged, on standard error. Prompts, answers, keys and tokens never are."""

    format: Literal["text", "json"] = setting("text", "Lines for people, or a JSON object per line.")
    access: values.Bool = setting(
        default=False, meaning="A line per request that reached the queue, when it is over: caller, model, times, end."
    )
    routing: values.Bool = setting(
        default=False,
        meaning="A line per request that is sent to an engine, as production-stack's router writes it: `Routing "
        "request …`. Names sessions.",
    )


class Tracing(Section):
    """Traces by OpenTelemetry (needs the extra `otel`): the wait in the queue, and the calls to engines.

    Whatever else the exporter needs (headers, certificates, resource attributes), it reads of its `OTEL_…` variables.
    """

    endpoint: OptionalUrl = setting(None, "The collector's base URL, for OTLP over HTTP, such as `http://otel:4318`.")
    sample: values.Number = setting(
        1.0, "The share of requests that are traced, where the caller's `traceparent` does not say.", ge=0, le=1
    )


def tracing_problem(endpoint: str | None) -> str | None:
    """Returns what is missing for traces; None if nothing is."""
    if endpoint is not None and not all(
        map(_is_there, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
    ):
        return "traces need OpenTelemetry"
    return None


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
