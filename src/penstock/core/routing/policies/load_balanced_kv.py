"""Routing: by KV cache while endpoints are about equally loaded, otherwise by load (production-stack's pull request
884).

If the longest queue over all replicas (running and waiting requests) exceeds the shortest by `imbalance_threshold` or
more, the least loaded one; otherwise the one with the longest cached prefix. With the default threshold, infinity, this
is plain `kv`. The loads are the ledger's, so dispatches since the last reading count, and routers with the same old
reading do not herd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context, RoutingPolicy
from penstock.core.routing.policies.kv import KvAware


class LoadBalancedKv(KvAware):
    """`kv`, below a threshold of imbalance."""

    def judge(self, endpoints: Sequence[Endpoint], context: Context) -> RoutingPolicy:
        return self.by_load if self._imbalanced(context) else super().judge(endpoints, context)

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        return () if self._imbalanced(context) else super().preferred(context)

    def _imbalanced(self, context: Context) -> bool:
        threshold = self.settings.imbalance_threshold
        if threshold == math.inf:
            return False
        loads = [context.load(endpoint) for endpoint in context.alive()]
        return bool(loads) and max(loads) - min(loads) >= threshold
