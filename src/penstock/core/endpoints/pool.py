"""The endpoints: their models, health and room.

Health is separate from admission, because pinned and free requests, and those without queueing, skip the queue but
not health.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.roles import MODELS_MAX, Role, Roles
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.catalogue import Cause
from penstock.core.values.request import Request
from penstock.core.values.settings import EndpointSpec, HealthSettings

OTHERS_STRAIN_MAX = 0.5  # of its patience: endpoints silent for longer may have stopped at the same moment


class Pool:
    """All endpoints of a gateway, by name and in order of configuration."""

    def __init__(
        self, health: HealthSettings, *, stale_after_s: float, named_models: frozenset[str] = frozenset()
    ) -> None:
        self._health = health
        self._named_models = named_models
        self._stale_after_s = stale_after_s
        self._endpoints: dict[str, Endpoint] = {}
        self._added = 0
        self._gateways = 1  # that decide, each for itself
        self._next_epoch = 0  # no lease of a removed endpoint has it, so none counts for a later one of that name
        self._gone: BoundedMap[str, float] = BoundedMap(MODELS_MAX)  # models without endpoints, and until when known
        self._counts: dict[str, tuple[int, int]] = {}  # `slots` and `serving` per model, until something changes
        self.answered = 0  # good answers of all endpoints so far
        self.uniform = True  # all endpoints serve the same models
        self.priced = False  # they have different prices
        self.adapted = False  # some list adapters
        self.differ = False  # a request may fit one and not another, by its length or its kind
        self.roles = Roles()

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)

    def __getitem__(self, name: str) -> Endpoint:
        return self._endpoints[name]

    def get(self, name: str) -> Endpoint | None:
        """Returns the endpoint of that name, if any."""
        return self._endpoints.get(name)

    def add(self, spec: EndpointSpec) -> Endpoint:
        """Add an endpoint as the settings or discovery describe it, and return it. Its name must be new."""
        assert spec.name not in self._endpoints
        endpoint = Endpoint(
            spec,
            index=self._added,
            epoch=self._next_epoch,
            health=self._health,
            stale_after_s=self._stale_after_s,
        )
        self._added += 1
        endpoint.apportion(self._gateways)
        self._endpoints[spec.name] = endpoint
        self.changed()
        return endpoint

    def remove(self, name: str, *, known_until_s: float) -> Endpoint:
        """Forget an endpoint and return it.

        Unless it leaves for good it may be replaced: models that only it served count as known until `known_until_s`.
        """
        endpoint = self._endpoints.pop(name)
        self._next_epoch = max(self._next_epoch, endpoint.ledger.epoch + 1)
        if endpoint.tells_models and not endpoint.leaves:
            self._left_without(sorted(endpoint.models or ()), known_until_s)
        self.changed()
        return endpoint

    def lists(self, endpoint: Endpoint, models: Iterable[str], *, known_until_s: float) -> None:
        """Note the models that an endpoint lists. One that no longer lists any loads them, as after a restart.

        Then models that only it served count as known until `known_until_s`.
        """
        before, endpoint.models = endpoint.models, frozenset(models)
        if not endpoint.models:
            self._left_without(sorted(before or ()), known_until_s)

    def _left_without(self, models: Iterable[str], known_until_s: float) -> None:
        for model in models:
            self._gone.pop(model)
            if not any(e.serves(model) for e in self):
                self._gone.set(model, known_until_s)

    def holder(self, lease: Lease) -> Endpoint | None:
        """Returns the endpoint at which a lease was taken; None if it was removed, even if another has its name now."""
        endpoint = self._endpoints.get(lease.endpoint)
        return endpoint if endpoint is not None and lease.epoch >= endpoint.first_epoch else None

    def knows(self, model: str, now: float) -> bool | None:
        """True if an endpoint serves the model; None while one may: not reported yet, being replaced, or configured."""
        for e in self._endpoints.values():
            if e.serves(model) and not e.leaves and (e.tells_models or not self._put_off(e, now)):
                return True
        if model in self._named_models or now < (self._gone.get(model) or now):
            return None
        told = all(e.models is not None or not e.tells_models or e.leaves for e in self)
        return False if told and self._endpoints else None

    @property
    def telling(self) -> bool:
        """Whether some endpoint has not reported its models yet."""
        return any(e.awaits_models for e in self)

    def _answering(self, model: str) -> list[Endpoint]:
        """Returns the endpoints in service that answer for the model."""
        return [e for e in self if e.in_service and e.role is not Role.PREFILL and e.serves(model)]

    def alive(self, model: str) -> bool:
        """True if an endpoint that answers for the model is in service."""
        return bool(self._answering(model))

    def works(self, model: str, now: float) -> bool:
        """True if an endpoint that answers for the model takes requests, if only after a moment."""
        return any(e.works(now) and e.role is not Role.PREFILL and e.serves(model) for e in self)

    def unhealthy(self, endpoint: Endpoint, now: float) -> Cause | None:
        """Returns why nothing may go to the endpoint at all; None if something may."""
        health = endpoint.health
        if not health.up:
            return Cause.NO_BACKEND
        if endpoint.drained:
            return Cause.PAUSED
        proof = endpoint.proof
        if (proof.closed or not proof.answered) and (
            proof.waits(len(endpoint.ledger.leases), now) or now < endpoint.first_until_s
        ):
            return Cause.UNPROVEN
        if now < health.held_until_s:
            return Cause.HELD
        if now < health.ejected_until_s:
            return None if self._panics(endpoint, now) else Cause.EJECTED
        if health.trial is not None and health.on_trial(len(endpoint.ledger.leases), now):
            return Cause.RETURNING
        liveness = endpoint.liveness
        return Cause.STUCK if liveness.stuck_s is not None and liveness.closed(endpoint.ledger, now) else None

    def ejections_change_s(self, now: float) -> float:
        """Returns when the next ejection ends; infinity if there is none."""
        return min([e.health.ejected_until_s for e in self if e.health.ejected(now)], default=math.inf)

    def others_move(self, endpoint: Endpoint, now: float) -> bool:
        """True if another endpoint could do the same work and is well: it moves, or has nothing to do."""
        return any(
            e is not endpoint
            and e.role is endpoint.role
            and e.liveness.strain < OTHERS_STRAIN_MAX
            and e.shares_models(endpoint)
            and self.unhealthy(e, now) is None
            for e in self
        )

    def usable(self, request: Request, now: float, *, whole: bool = False) -> list[Endpoint]:
        """Returns the endpoints a request may go to without waiting for its turn: those alive, or the one it is pinned
        to.

        Of endpoints with roles, those that may compute its prompt; `whole`: the request is not divided. If all that are
        alive are on trial, or show no movement, they are returned: a request that can't wait is not refused for that.
        """
        model, pinned = request.model, request.pinned
        well: list[Endpoint] = []
        tried_out: list[Endpoint] = []
        for e in self._endpoints.values():
            if e.name != pinned if pinned is not None else not e.serves(model):
                continue
            if not e.claims(model):
                continue
            if self.roles.any and pinned is None and not self.roles.computes(e, model, whole=whole):
                continue
            cause = self.unhealthy(e, now)
            if cause is None:
                well.append(e)
            elif cause in (Cause.RETURNING, Cause.STUCK, Cause.UNPROVEN):
                tried_out.append(e)
        return well or tried_out

    def held_s(self, request: Request, now: float) -> float:
        """Returns the seconds until one of the endpoints of a request may be sent anything, if all are held."""
        pinned = request.pinned
        until_s = [
            e.health.held_until_s
            for e in self
            if e.in_service and (e.serves(request.model) if pinned is None else e.name == pinned)
        ]
        return max(0.0, min(until_s, default=now) - now)

    def free_slots(self, model: str) -> int:
        """Returns how many slots in service for the model no lease holds."""
        return sum(max(0, e.slots - len(e.ledger.leases)) for e in self._answering(model))

    def slots(self, model: str) -> int:
        """Returns the slots of the endpoints that are in service and answer for the model."""
        return (self._counts.get(model) or self._count(model))[0]

    def serving(self, model: str) -> int:
        """Returns how many endpoints in service compute prompts for the model."""
        return (self._counts.get(model) or self._count(model))[1]

    def _count(self, model: str) -> tuple[int, int]:
        if len(self._counts) >= MODELS_MAX:
            self._counts.clear()
        slots = sum([e.slots for e in self._answering(model)])
        serving = [e for e in self if e.in_service and e.serves(model)]
        computing = sum([self.roles.computes(e, model, whole=False) for e in serving])
        counts = self._counts[model] = slots, computing
        return counts

    def apportion(self, gateways: int) -> None:
        """Use one gateway's part of all slots, of these endpoints and those to come; 1: all of them."""
        self._gateways = gateways
        for endpoint in self:
            endpoint.apportion(gateways)
        self.changed()

    def reconfigured(
        self, health: HealthSettings, *, stale_after_s: float, named_models: frozenset[str] = frozenset()
    ) -> None:
        """Use other rules for health and readings from now on. Verdicts that were passed stand."""
        self._health, self._stale_after_s, self._named_models = health, stale_after_s, named_models
        for endpoint in self:
            endpoint.health.settings = health
            endpoint.ledger.judged_stale_after(stale_after_s)

    def changed(self) -> None:
        """Forget derived values: the slots, models or verdict of an endpoint changed."""
        self._counts.clear()
        self.roles.changed(self)
        self.priced = len({e.price for e in self}) > 1
        self.adapted = any(e.adapters.listed for e in self)
        first = next(iter(self), None)
        self.differ = first is not None and any(e.lacks_any or e.contexts != first.contexts for e in self)
        self._weigh()
        self.uniform = len({e.models if e.tells_models else "any" for e in self}) <= 1
        for endpoint in self:
            if endpoint.proof.left_to_others or endpoint.left_to_others is not None:
                self._leave_to_others(endpoint)

    def took_turn(self, chosen: Endpoint, among: Sequence[Endpoint], serial: int) -> None:
        """Note that `chosen`, one of those that were open, was given the lease `serial`: others are next.

        With equal weights the next is the least recently used. Otherwise each lease advances an endpoint by one over
        its weight (stride scheduling); one that was long passed over is owed one turn, not all of them.
        """
        if not chosen.weighted:
            chosen.turn = float(serial)
            return
        behind = min([e.turn - 1.0 / e.weight for e in among if e is not chosen], default=chosen.turn)
        chosen.turn = max(chosen.turn, behind) + 1.0 / chosen.weight

    def stands_in(self, endpoint: Endpoint, model: str) -> bool:
        """Whether another endpoint, which is an engine and in service, serves a model."""
        return any(e.claims(model) for e in self._standing(endpoint))

    def replaces(self, endpoint: Endpoint) -> bool:
        """Whether other endpoints, which are engines and in service, serve all that this one claims to."""
        others = self._standing(endpoint)
        if any(not e.tells_models for e in others):
            return True
        return endpoint.tells_models and (endpoint.models or frozenset()) <= _models_of(others)

    def _weigh(self) -> None:
        """Find out whether weights differ. If that changed, turns begin again: they were counted by another measure."""
        weighted = len({e.weight for e in self}) > 1
        for endpoint in self:
            if weighted != endpoint.weighted:
                endpoint.turn = 0.0
            endpoint.weighted = weighted

    def _leave_to_others(self, endpoint: Endpoint) -> None:
        """Leave models that another endpoint in service has to that one.

        That is for an endpoint that was seen through, or refuses our key.
        """
        if not endpoint.proof.left_to_others:
            endpoint.left_to_others = None
            return
        others = self._standing(endpoint)
        endpoint.left_to_others = _models_of(others)
        endpoint.left_all_to_others = any(not e.tells_models for e in others)
        self.uniform = False

    def _standing(self, endpoint: Endpoint) -> list[Endpoint]:
        return [e for e in self if e is not endpoint and e.in_service and e.proof.stands and e.role is endpoint.role]

    def _put_off(self, endpoint: Endpoint, now: float) -> bool:
        """Whether it claims to serve any model, failed to prove it, and is not tried again yet."""
        return not endpoint.tells_models and not endpoint.ledger.leases and endpoint.proof.waits(0, now)

    def _panics(self, endpoint: Endpoint, now: float) -> bool:
        """Whether so few of the endpoints that share its models (and its role) are left that ejections are ignored."""
        up = [e for e in self if e.in_service and e.role is endpoint.role and e.shares_models(endpoint)]
        healthy = sum(not e.health.ejected(now) for e in up)
        return healthy < len(up) * self._health.panic_threshold


def _models_of(endpoints: list[Endpoint]) -> frozenset[str]:
    return frozenset[str]().union(*[e.models or frozenset() for e in endpoints])
