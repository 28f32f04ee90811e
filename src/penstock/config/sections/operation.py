"""Operation: admin access, autoscaling signals, the ledger of use, logs and traces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.config import values
from penstock.config.sections.section import Section, setting

PRICED_MAX = 1_000
OPERATORS_MAX = 100
ANY_MODEL = "*"


class Operator(Section):
    """Operators with tokens of their own, for all of `/admin`. Events and the log name them."""

    name: values.TenantName = Field(description="The name in events and the log.")
    token: values.AdminToken = Field(description="The operator's token, as strong as `admin.token`.")


class Admin(Section):
    """The address and tokens of `/admin`.

    If no token is set, the gateway generates one at each start and stores it in the state folder. Commands on the same
    machine look in the default ones; for another `state_dir` they need `export PENSTOCK__STATE_DIR=FOLDER`. Without a
    token, `/admin` is then readable from a loopback address only, and changes nothing.
    """

    listen: values.OptionalListen = setting(
        None,
        "A separate address for `/admin`, `/metrics`, `/autoscale`, `/sleep` and `/wake_up`, such as "
        "`127.0.0.1:9090` or `unix:/run/penstock.sock`; at `listen` these are then 404. `/health`, `/ready` and "
        "`/version` are at both. Uses the same `tls`. Commands need its URL (`--url`, `PENSTOCK_URL`).",
    )

    token: values.OptionalAdminToken = setting(
        None,
        "The token for all of `/admin`, at least 8 characters, sent as `Authorization: Bearer …`. Never logged or "
        "shown.",
    )
    read_token: values.OptionalAdminToken = setting(None, "A read-only token.")
    operators: Annotated[tuple[Operator, ...], BeforeValidator(values.items(0, OPERATORS_MAX))] = ()

    @property
    def has_token(self) -> bool:
        return self.token is not None or self.read_token is not None or bool(self.operators)


class AutoscaleSection(Section):
    """The number of endpoints that `/autoscale` asks for (docs/autoscaling.md)."""

    target_wait: values.Duration = setting(
        60.0, "The queue at the time new endpoints begin to serve should be gone within this.", gt=0
    )
    saturation: values.Number = setting(0.85, "The target share of slots in use.", gt=0, le=1)
    start: values.Duration = setting(60.0, "The start time of an engine: load is forecast this far ahead.", ge=0)
    keep: values.Duration = setting(300.0, "How long a higher number is kept.", ge=0)


class TokenPrices(Section):
    """Prices of a million tokens of a model, in any currency. `*` stands for all models that are not listed."""

    prompt: values.Number = setting(0.0, "Per million prompt tokens.", ge=0)
    cached_prompt: values.OptionalNumber = setting(
        None, "Per million of them that were cached. Default: the same.", ge=0
    )
    completion: values.Number = setting(0.0, "Per million generated tokens.", ge=0)


class UsageSection(Section):
    """The ledger of use (docs/usage.md), kept in `store`."""

    keep: values.Duration = setting(
        90 * 86_400.0, "How long its rows are kept, by the hour. 0: no ledger; earlier rows stay.", ge=0
    )
    prices: Annotated[dict[values.ModelName, TokenPrices], BeforeValidator(values.items(0, PRICED_MAX))] = setting(
        {}, ""
    )


class Log(Section):
    """The log on standard error. It never contains prompts, answers, keys or tokens."""

    format: Literal["text", "json"] = setting("text", "Plain lines, or a JSON object per line.")
    access: values.Bool = setting(
        default=False, meaning="A line per finished request that reached the queue: client, model, times, outcome."
    )
    routing: values.Bool = setting(
        default=False,
        meaning=(
            "A line per request sent to an engine, as production-stack's router logs it: `Routing request …`. Names "
            "sessions."
        ),
    )


class Tracing(Section):
    """OpenTelemetry traces of queueing and engine calls (extra `otel`).

    The exporter's other options (headers, certificates, resource attributes) come from its `OTEL_…` variables.
    """

    endpoint: values.OptionalUrl = setting(
        None, "The collector's base URL, for OTLP over HTTP, such as `http://otel:4318`."
    )
    sample: values.Number = setting(
        1.0, "The share of requests to trace, unless the client's `traceparent` decides.", ge=0, le=1
    )
