"""What the page shows beside the scheduler's snapshot, asked for at each look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.gateway.queueing import Queueing
from penstock.gateway.telemetry.failures import Failures
from penstock.gateway.telemetry.tenant_series import TenantTimes

if TYPE_CHECKING:
    from penstock.gateway.admin.requests import StoppedBy
    from penstock.gateway.telemetry.edge_series import ShownEdge, ShownGroup


class GatewayFacts(msgspec.Struct, frozen=True):
    """State for the page that the scheduler does not know."""

    version: str
    config_hash: Callable[[], str]
    loop_lag_s: Callable[[], float]
    queueing: Callable[[], Queueing]
    edges: Callable[[], Sequence[ShownEdge]] = tuple  #: processes that carry bytes for this one
    batches: Callable[[], Sequence[object]] = tuple  #: those that have not ended, most pressing first
    batch_store: Callable[[], str | None] = lambda: None  #: why the store of files and batches is down
    key_store: Callable[[], str | None] = lambda: None  #: why made keys can't be read
    share: Callable[[], ShownGroup | None] = lambda: None  #: how it stands among gateways that share; None: alone
    proxies: Callable[[], str] = str  #: what is wrong with filters of proxies that ask the endpoint picker
    failures: Failures = msgspec.field(default_factory=Failures)
    keeps_usage: Callable[[], bool] = bool  #: whether there is a ledger of use
    times: TenantTimes = msgspec.field(default_factory=TenantTimes)
    tenants: Callable[[], Iterable[tuple[str, float]]] = tuple  #: those of the settings, with their weights
    stops: Callable[[], Mapping[tuple[str, str], StoppedBy]] = dict  #: who paused and drained, by verb and model
