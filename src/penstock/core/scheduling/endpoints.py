"""Endpoints: they come, change and go, tell their load, and what they hold of prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.health import Presence
from penstock.core.endpoints.movement import CHECK_S, LATE_S, Movement
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling.requests import Requests
from penstock.core.values.actions import Action
from penstock.core.values.cause import Cause
from penstock.core.values.lifecycle import State
from penstock.core.values.located import Source
from penstock.core.values.observation import Glimpse, Observation
from penstock.core.values.outcome import Reason
from penstock.core.values.settings import EndpointLimits, EndpointSpec

RECALLS_MAX = 2  # of one request: each time the work of a prompt may be lost


class Endpoints(Requests):
    """Facts of endpoints."""

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        """An endpoint may be used from now on."""
        endpoint = self._pool.add(spec)
        self.paced = self._has_pace_limit()
        self._health_changed(now)
        return self._touched(endpoint, now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        """A probe found it alive."""
        return self._probed(name, up=True, now=now)

    def endpoint_down(self, name: str, *, presence: Presence = Presence.DOWN, now: float) -> list[Action]:
        """A probe found nobody there, or nobody who serves. What runs there is left to its own connection's fate."""
        return self._probed(name, up=False, presence=presence, now=now)

    def endpoint_changed(
        self,
        name: str,
        *,
        models: Iterable[str] | None = None,
        tells_models: bool | None = None,
        slots: int | Literal["auto"] | None = None,
        told_slots: int | None = None,
        lingers: bool | None = None,
        price: float | None = None,
        limits: EndpointLimits | None = None,
        now: float,
    ) -> list[Action]:
        """It told what it serves (or that it can't tell) or how many it runs, or its slots were set. None: as before.

        `slots` are set by hand and stay; `auto` gives them back to what the engine tells, or to finding out. `lingers`:
        its engine goes on with what is given up (`abandoned_slots.py`).
        """
        endpoint = self._pool[name]
        if models is not None:
            endpoint.models = frozenset(models)
        if tells_models is not None:
            endpoint.tells_models = tells_models
        if slots is not None:
            endpoint.set_slots(slots)
        if told_slots is not None:
            endpoint.slots_told(told_slots)
        if lingers is not None:
            endpoint.ledger.given_up.lingers = lingers
        if price is not None:
            endpoint.price = price
        if limits is not None:
            endpoint.set_limits(limits)
            self.paced = self._has_pace_limit()
        self._health_changed(now)
        self._queues.touch(endpoint)
        actions: list[Action] = []
        for band in self._queues.bands:
            unknown = {model for model in band.tree.models() if self._pool.knows(model, now) is False}
            for entry in [e for e in band.entries.values() if e.request.model in unknown] if unknown else ():
                self._evict(entry, Reason.MODEL_NOT_FOUND, now, actions)
        self._hand_out(now, actions)
        return actions

    def endpoint_removed(self, name: str, *, now: float) -> list[Action]:
        """Nothing new goes there. What runs there ends in its own time; one of the same name may come later.

        What only it served waits on, for it may be replaced: until `max_wait` is over, and then gets `no_endpoint`.
        """
        endpoint = self._pool.remove(name, known_until_s=now + self._settings.wait_s_max)
        self._queues.forget(endpoint)
        self._router.gone(endpoint)
        self._affinity.used(endpoint)
        self._groups.gone(endpoint)
        self._timers.cancel(name)
        self._health_changed(now)
        return self._pumped(now)

    def endpoint_drained(self, name: str, *, now: float) -> list[Action]:
        """An operator wants nothing new to go there; what runs there may finish."""
        return self._drained(name, drained=True, now=now)

    def endpoint_resumed(self, name: str, *, now: float) -> list[Action]:
        """An operator gives it back."""
        return self._drained(name, drained=False, now=now)

    def observed(self, name: str, reading: Observation | None, *, now: float) -> list[Action]:
        """A reading of its gauges came, or (None) none could be had."""
        endpoint = self._pool[name]
        epoch = endpoint.ledger.epoch
        if reading is not None:
            wanted = endpoint.adaptive is not None and self._pump.wants_slots(endpoint)
            if endpoint.observed(reading, now, wanted=wanted):
                self._pool.changed()
            self._router.read(endpoint, restarted=endpoint.ledger.epoch != epoch)
        else:
            endpoint.ledger.missed()
        return self._touched(endpoint, now)

    def moved(self, names: Iterable[str], *, now: float) -> list[Action]:
        """Answers of these endpoints have come further, or would have if their clients read them."""
        for name in names:
            if (endpoint := self._pool.get(name)) is not None:
                endpoint.ledger.life_s = now
        return []

    def expire(self, *, now: float) -> list[Action]:
        """Let time pass: evict who waited too long, look again at what time may have opened, and at who moves."""
        actions: list[Action] = []
        if now >= self._look_s:
            self._look_who_moves(now, actions)
        self._let_time_pass(now, actions)
        return actions

    def glimpsed(self, name: str, part: Glimpse, *, now: float) -> list[Action]:
        """An answer told a part of its gauges."""
        endpoint = self._pool[name]
        endpoint.ledger.glimpse(part, now)
        return self._touched(endpoint, now)

    def kv_stored(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """An endpoint says that it holds these token blocks from now on (their keys, made at the edge)."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.stored(known, keys)
        return []

    def kv_removed(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """It does not hold these any more."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.removed(known, keys)
        return []

    def kv_cleared(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """It says that it holds nothing any more."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.cleared(known)
        return []

    def kv_lost(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """Its word can't be had any more: until it tells again, our own history speaks for it."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.lost(known)
        return []

    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]:
        """The keys of a request's token blocks became known: they tell which endpoint holds how much of it."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        entry.blocks = (tuple(keys), block_tokens)
        return self._told_where(entry, now)

    def cached(
        self, request_id: str, tokens: Mapping[str, int], source: Source = Source.LMCACHE, *, now: float
    ) -> list[Action]:
        """A look-up answered: how many tokens of the prompt each endpoint holds, by name; empty where it failed."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        if tokens:
            entry.looked_up = (source, tokens)
        return self._told_where(entry, now)

    def _look_who_moves(self, now: float, actions: list[Action]) -> None:
        """Find out who shows no movement, and take back what has no first byte there."""
        stood_still = now - self._look_s > LATE_S
        self._look_s = now + CHECK_S if self._leases and len(self._pool) > 1 else math.inf
        for endpoint in self._pool:
            movement = endpoint.movement
            if stood_still:
                movement.forgive(now)
            was_stuck = movement.stuck_s is not None
            movement.look(endpoint.ledger, now)
            if was_stuck and movement.stuck_s is None:
                self._queues.touch(endpoint)
        for endpoint in self._pool:
            movement = endpoint.movement
            if movement.stuck_s is None and movement.strain > 1.0 and self._pool.others_move(endpoint, now):
                movement.found_stuck(now)
                endpoint.failure, endpoint.failed_s = Cause.STUCK, now
                self._queues.touch(endpoint)
            if movement.stuck_s is not None:
                self._take_back(endpoint, now, actions)

    def _take_back(self, endpoint: Endpoint, now: float, actions: list[Action]) -> None:
        """What has no first byte at a stuck endpoint goes back to the queue, where it can be served elsewhere."""
        movement, ledger = endpoint.movement, endpoint.ledger
        for lease in list(ledger.leases.values()):
            if lease.first_token_s is not None or lease.pending or lease.passed_on:
                continue
            entry = self._leases[lease.serial]
            if movement.gives_up(lease, ledger, now) and self._may_be_taken_back(entry, now):
                movement.gave_up(lease, now)
                self._router.failed(entry, lease)
                self._release(entry, now, given_up=True)
                entry.recalls += 1
                self._requeue(entry, None, endpoint, now, actions)

    def _may_be_taken_back(self, entry: Entry, now: float) -> bool:
        """Whether another endpoint may serve it, and in time."""
        request = entry.request
        if entry.recalls >= RECALLS_MAX or not entry.whole or request.pinned is not None or request.home is not None:
            return False
        if entry.wait_s_max <= entry.waited_s or not self._in_time(entry, now):
            return False
        others = [e for e in self._usable(entry, now) if e.movement.stuck_s is None and not entry.shuns(e.name, now)]
        if not self._settings.queue_enabled and (
            self._quotas.held(entry.account) or not self._pauses.sends(entry.model)
        ):
            return False
        return bool(others)

    def _told_where(self, entry: Entry, now: float) -> list[Action]:
        self._affinity.told(entry)
        self._look(entry, now)
        for endpoint in self._pool:
            if endpoint.serves(entry.model):
                self._queues.touch(endpoint)
        return self._pumped(now)

    def _drained(self, name: str, *, drained: bool, now: float) -> list[Action]:
        endpoint = self._pool[name]
        endpoint.drained = drained
        self._health_changed(now)
        return self._touched(endpoint, now)

    def _probed(self, name: str, *, up: bool, now: float, presence: Presence = Presence.DOWN) -> list[Action]:
        endpoint = self._pool[name]
        if up and not endpoint.health.up:
            endpoint.movement = Movement()
        endpoint.health.probed(up=up, presence=presence, now=now)
        if up:
            self._router.answers(endpoint)
        else:
            self._router.down(endpoint)
        self._health_changed(now)
        return self._touched(endpoint, now)
