"""The objects of the Gateway API inference extension: a pool, objectives, and rewrites of model names.

Their API servers need not check them as we do, so each object's content is read by itself: a malformed one is logged
once, its last good version stays, and the others count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from penstock.gateway.endpoints.discovery.kubernetes_objects import ApiPart, Meta
from penstock.gateway.endpoints.pool_rules import ModelRewrite

logger = logging.getLogger(__name__)

POOL_GROUP = "inference.networking.k8s.io"
RULE_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")  # of objectives and rewrites, today's first
PORTS_MAX = 8  # of a pool
WEIGHT_MAX = 1_000_000
PRIORITY_MAX = 2**31 - 1  # an int32

S = TypeVar("S")


class Custom(ApiPart, frozen=True):
    """An object of any kind, its content unread."""

    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class _Selector(ApiPart, frozen=True):
    match_labels: Mapping[str, str]


class _TargetPort(ApiPart, frozen=True):
    number: int


class PoolSpec(ApiPart, frozen=True):
    """An InferencePool: which pods, and at which ports."""

    selector: _Selector
    target_ports: Sequence[_TargetPort] = ()
    app_protocol: str | None = None

    @property
    def labels(self) -> str:
        """The label selector of its pods."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.selector.match_labels.items()))

    @property
    def ports(self) -> list[int]:
        return list(dict.fromkeys(port.number for port in self.target_ports))

    def why_unusable(self) -> str | None:
        """Returns why no endpoint can be found by it; None: it is usable."""
        if not self.selector.match_labels:
            return "it selects no labels"
        if not 0 < len(self.ports) <= PORTS_MAX:
            return f"it has {len(self.ports)} target ports; 1 to {PORTS_MAX} are possible"
        if wrong := [port for port in self.ports if not 0 < port < 2**16]:
            return f"{wrong[0]} is not a port"
        return None


class _PoolRef(ApiPart, frozen=True):
    name: str
    group: str = POOL_GROUP
    kind: str = "InferencePool"

    def is_for(self, pool: str) -> bool:
        return (self.name, self.group, self.kind) == (pool, POOL_GROUP, "InferencePool")


class ObjectiveSpec(ApiPart, frozen=True):
    """An InferenceObjective: the priority of requests that name it."""

    pool_ref: _PoolRef
    priority: int | None = None


class _ModelMatch(ApiPart, frozen=True):
    value: str
    type: str = "Exact"


class _RewriteMatch(ApiPart, frozen=True):
    model: _ModelMatch | None = None


class _RewriteTarget(ApiPart, frozen=True):
    model_rewrite: str
    weight: int | None = None


class _RewriteRule(ApiPart, frozen=True):
    targets: list[_RewriteTarget]
    matches: list[_RewriteMatch] | None = None


class RewriteSpec(ApiPart, frozen=True):
    """An InferenceModelRewrite: rules, the first that matches counts."""

    pool_ref: _PoolRef
    rules: Sequence[_RewriteRule] = ()


class Specs(Generic[S]):
    """The contents of all objects of one kind, the last good version of each."""

    def __init__(self, what: str, kind: type[S]) -> None:
        self._what = what
        self._kind = kind
        self._known: dict[str, tuple[str, Meta, S | None]] = {}  # by uid: the version that was read last, its content

    def read(self, objects: Iterable[Custom]) -> list[tuple[Meta, S]]:
        """Returns name and content of each of these objects that was ever readable."""
        known: dict[str, tuple[str, Meta, S | None]] = {}
        for found in objects:
            meta = found.metadata
            version, _, before = self._known.get(meta.uid, ("", meta, None))
            if version != meta.resource_version:
                before = self._content(found, before)
            known[meta.uid] = meta.resource_version, meta, before
        self._known = known
        return [(meta, content) for _, meta, content in known.values() if content is not None]

    def _content(self, found: Custom, before: S | None) -> S | None:
        try:
            return msgspec.json.decode(found.spec, type=self._kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rest = "it is left out" if before is None else "what was read of it before stays"
            logger.warning("%s %s can't be read: %s; %s", self._what, found.metadata.name, error, rest)
            return before


def priorities(objectives: Iterable[tuple[Meta, ObjectiveSpec]], pool: str) -> dict[str, int]:
    """Returns the priority by name of the objectives for `pool`; one without a priority has 0."""
    return {
        meta.name: max(-PRIORITY_MAX, min(PRIORITY_MAX, spec.priority or 0))
        for meta, spec in objectives
        if spec.pool_ref.is_for(pool) and meta.deletion_timestamp is None
    }


def rewrites(objects: Iterable[tuple[Meta, RewriteSpec]], pool: str) -> list[ModelRewrite]:
    """Returns the rules for `pool`, that of the oldest object first, as they take precedence."""
    own = [(meta, spec) for meta, spec in objects if spec.pool_ref.is_for(pool) and meta.deletion_timestamp is None]
    own.sort(key=lambda each: (each[0].creation_timestamp or "", each[0].name))
    found = (_rewrite(rule) for _, spec in own for rule in spec.rules)
    return [rule for rule in found if rule is not None]


def _rewrite(rule: _RewriteRule) -> ModelRewrite | None:
    """A rule as it is applied; None: it applies to nothing.

    If only some targets have a weight, the others get nothing, as in llm-d.
    """
    exact = {
        match.model.value for match in rule.matches or () if match.model is not None and match.model.type == "Exact"
    }
    if rule.matches and not exact:
        return None
    weighted = any(target.weight is not None for target in rule.targets)
    weights: dict[str, int] = {}
    for target in rule.targets:
        weight = (target.weight or 0) if weighted else 1
        if target.model_rewrite and 0 < weight <= WEIGHT_MAX:
            weights[target.model_rewrite] = weights.get(target.model_rewrite, 0) + weight
    return ModelRewrite(tuple(sorted(exact)), weights) if weights else None
