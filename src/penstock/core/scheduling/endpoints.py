"""Endpoints come, change and go; they tell their load, and what they hold of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from penstock.core.endpoints.health import Presence
from penstock.core.endpoints.movement import Movement
from penstock.core.scheduling import returning, sending
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action
from penstock.core.values.observation import Glimpse, Observation
from penstock.core.values.settings import EndpointLimits, EndpointSpec


class EndpointFacts:
    """What the scheduler is told of endpoints."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        """Take in an endpoint, to be used from now on. Returns what is sent there."""
        state = self._state
        endpoint = state.pool.add(spec)
        state.paced = state.has_pace_limit()
        state.health_changed(now)
        return sending.touched(state, endpoint, now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        """Note that a probe found the endpoint alive. Returns what follows."""
        return _probed(self._state, name, up=True, now=now)

    def endpoint_down(self, name: str, *, presence: Presence = Presence.DOWN, now: float) -> list[Action]:
        """Note that a probe found nobody there, or an engine that does not serve, as `presence` says.

        What runs there is left to its own connection's fate.
        """
        return _probed(self._state, name, up=False, presence=presence, now=now)

    def endpoint_changed(
        self,
        name: str,
        *,
        models: Iterable[str] | None = None,
        tells_models: bool | None = None,
        vouched: bool | None = None,
        by_word: bool = False,
        key_refused: bool | None = None,
        silent: bool | None = None,
        slots: int | Literal["auto"] | None = None,
        told_slots: int | None = None,
        lingers: bool | None = None,
        contexts: Mapping[str, int] | None = None,
        price: float | None = None,
        weight: float | None = None,
        limits: EndpointLimits | None = None,
        now: float,
    ) -> list[Action]:
        """Note what an endpoint told (what it serves, or that it can't tell; how many it runs), or what was set. None:
        as before.

        `vouched`: whether anything says that it is an engine, before it has answered a request (`proof.py`); `by_word`:
        that is the operator alone. `key_refused`: whether it refused to list its models for want of a key. `silent`:
        whether it leaves a question unanswered, which its state shows; its requests are judged by themselves.
        `slots` are set by hand and stay; `auto` gives them back to what the engine tells, or to finding out. `lingers`:
        its engine goes on with requests that are abandoned (`endpoints/abandoned_slots.py`).
        `contexts`: how many tokens a request may have, by model.
        """
        state = self._state
        endpoint = state.pool[name]
        if models is not None:
            endpoint.models = frozenset(models)
        if tells_models is not None:
            endpoint.tells_models = tells_models
        if vouched is not None:
            endpoint.proof.vouch(vouched=vouched, by_word=by_word)
        if key_refused:
            endpoint.proof.refuses_key(now)
        elif key_refused is not None:
            endpoint.proof.forgive()
        endpoint.silent = endpoint.silent if silent is None else silent
        if slots is not None:
            endpoint.set_slots(slots)
        if told_slots is not None:
            endpoint.slots_told(told_slots)
        if lingers is not None:
            endpoint.ledger.abandoned.lingers = lingers
        if contexts is not None:
            endpoint.contexts = dict(contexts)
        if price is not None:
            endpoint.price = price
        if weight is not None:
            endpoint.weight = weight
        if limits is not None:
            endpoint.set_limits(limits)
            state.paced = state.has_pace_limit()
        state.health_changed(now)
        state.queues.touch(endpoint)
        actions: list[Action] = []
        returning.evict_unknown(state, now, actions)
        returning.evict_falling_back(state, now, actions)
        sending.hand_out(state, now, actions)
        return actions

    def endpoint_removed(self, name: str, *, now: float) -> list[Action]:
        """Remove an endpoint. What runs there ends in its own time; another of the same name may come later.

        Requests that only it served wait on, because it may be replaced: until `max_wait` is over, and then get
        `no_endpoint`.
        """
        state = self._state
        endpoint = state.pool.remove(name, known_until_s=now + state.settings.wait_s_max)
        state.queues.forget(endpoint)
        state.router.gone(endpoint)
        state.affinity.used(endpoint)
        state.groups.gone(endpoint)
        state.timers.cancel(name)
        state.health_changed(now)
        return _without(state, now)

    def endpoint_drained(self, name: str, *, now: float) -> list[Action]:
        """Send nothing new to the endpoint, as an operator wants it; what runs there may finish."""
        return _drained(self._state, name, drained=True, now=now)

    def endpoint_resumed(self, name: str, *, now: float) -> list[Action]:
        """Use a drained endpoint again. Returns what is sent there."""
        return _drained(self._state, name, drained=False, now=now)

    def observed(self, name: str, reading: Observation | None, *, answered: bool = False, now: float) -> list[Action]:
        """Take in a `reading` of the endpoint's gauges; None: it could not be had.

        `answered`: something came back all the same, so its process does not stand still.
        """
        state = self._state
        endpoint = state.pool[name]
        epoch = endpoint.ledger.epoch
        if reading is not None:
            wanted = endpoint.adaptive is not None and state.pump.wants_slots(endpoint)
            if endpoint.observed(reading, now, wanted=wanted):
                state.pool.changed()
                if endpoint.overfull:
                    state.look_again(endpoint, now)
            state.router.read(endpoint, restarted=endpoint.ledger.epoch != epoch)
        else:
            endpoint.ledger.missed(answered=answered)
        return sending.touched(state, endpoint, now)

    def moved(self, names: Iterable[str], *, now: float) -> list[Action]:
        """Note that answers of the endpoints `names` have come further, or would have if their clients read them."""
        for name in names:
            if (endpoint := self._state.pool.get(name)) is not None:
                endpoint.ledger.life_s = now
        return []

    def glimpsed(self, name: str, part: Glimpse, *, now: float) -> list[Action]:
        """Take in a `part` of the endpoint's gauges, as an answer told it."""
        state = self._state
        endpoint = state.pool[name]
        endpoint.ledger.glimpse(part, now)
        return sending.touched(state, endpoint, now)

    def kv_stored(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """Note that an endpoint says that it holds these token blocks from now on: their `keys`, made at the edge."""
        state = self._state
        if (known := state.pool.get(endpoint)) is not None:
            state.router.stored(known, keys)
        return []

    def kv_removed(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """Note that an endpoint no longer holds the token blocks with these `keys`."""
        state = self._state
        if (known := state.pool.get(endpoint)) is not None:
            state.router.removed(known, keys)
        return []

    def kv_cleared(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """Note that `endpoint` says that it holds nothing any more."""
        state = self._state
        if (known := state.pool.get(endpoint)) is not None:
            state.router.cleared(known)
        return []

    def kv_lost(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """Note that the KV-event stream of `endpoint` ended: until it tells again, our own history speaks for it."""
        state = self._state
        if (known := state.pool.get(endpoint)) is not None:
            state.router.lost(known)
        return []


def _drained(state: SchedulerState, name: str, *, drained: bool, now: float) -> list[Action]:
    endpoint = state.pool[name]
    endpoint.drained = drained
    if not drained:
        endpoint.proof.forgive()
    state.health_changed(now)
    state.queues.touch(endpoint)
    return _without(state, now)


def _probed(
    state: SchedulerState, name: str, *, up: bool, now: float, presence: Presence = Presence.DOWN
) -> list[Action]:
    endpoint = state.pool[name]
    if up and not endpoint.health.up:
        endpoint.movement = Movement()
        endpoint.refused_kinds = frozenset()
        endpoint.proof.returned()
    elif up:
        endpoint.proof.chance(now)
    leases, slots = len(endpoint.ledger.leases), endpoint.slots
    endpoint.health.probed(up=up, presence=presence, now=now, leases=leases, slots=slots)
    if up:
        state.router.answers(endpoint)
    else:
        state.router.down(endpoint)
    state.health_changed(now)
    state.queues.touch(endpoint)
    return _without(state, now)


def _without(state: SchedulerState, now: float) -> list[Action]:
    """Send away what need not wait for an endpoint that may be out of service now. Returns all that follows."""
    actions: list[Action] = []
    if state.queues.waiting:
        returning.evict_falling_back(state, now, actions)
        sending.hand_out(state, now, actions)
    return actions
