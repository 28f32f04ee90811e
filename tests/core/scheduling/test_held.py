"""A held flow hoards no credit: after its release it starts level with the flows that were served meanwhile.

Two tenants always have requests waiting. `b` is held for a while, in every way there is. Meanwhile `a` uses all slots
open to it; from two seconds after the release, both get their share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Reject
from penstock.core.values.request import Request
from penstock.core.values.settings import (
    AdmissionSettings,
    BandSettings,
    EndpointSpec,
    Limits,
    RoutingSettings,
)
from tests.core.drive import request, scheduler, sent, the_lease
from tests.core.release import check_release
from tests.core.shop import Customer, Shop, ShopJob

HELD_AT_S = 15.0
SETTINGS = SchedulerSettings(wait_s_max=1e9, stale_after_s=1e9)


def customer(name: str, waiting: int = 12, **more: Any) -> Customer:
    return Customer(name, prompt_tokens=(1, 1), output_tokens=(25, 25), waiting=waiting, **more)


Change = Callable[["World"], None]


class World(Shop):
    """A shop in which requests are held from `HELD_AT_S` on."""

    def __init__(
        self,
        customers: Sequence[Customer],
        *,
        endpoints: Sequence[EndpointSpec] = (),
        changes: Callable[[Request], Request] = lambda made: made,
        **more: Any,
    ) -> None:
        super().__init__(customers, slots=(4, 4), **{"settings": SETTINGS, **more})
        self._specs = endpoints
        self._changes = changes
        self._quiet_until_s = dict.fromkeys([x.name for x in customers], 0.0)
        self.used: list[tuple[float, int]] = []  #: slots, after each event
        self.watch = self._note

    def hold(self, hold: Change, release: Change, for_s: float) -> World:
        self._at(HELD_AT_S, lambda: hold(self))
        self._at(HELD_AT_S + for_s, lambda: release(self))
        self.run(HELD_AT_S + for_s + 45.0)
        return self

    def tell(self, actions: list[Action]) -> None:
        self._tell(actions)

    def cancel(self, name: str) -> None:
        self.waiting[self.jobs.pop(name).customer] -= 1
        self._tell(self.scheduler.cancelled(name, now=self.now))

    def service(self) -> list[tuple[float, str, float]]:
        return [(job.sent_s, job.customer.name, job.cost) for job in self.dispatched]

    def least_used(self, since_s: float, until_s: float) -> int:
        return min(slots for at_s, slots in self.used if since_s < at_s < until_s)

    def _note(self, job: ShopJob | None) -> None:
        if job is None:
            self.used.append((self.now, sum([len(jobs) for jobs in self.in_flight.values()])))

    def _open(self) -> None:
        if not self._specs:
            super()._open()
            return
        self._ask()
        for spec in self._specs:
            self._tell(self.scheduler.endpoint_added(spec, now=0.0))

    def _request(self, name: str, customer: Customer, prompt_tokens: int) -> Request:
        return self._changes(super()._request(name, customer, prompt_tokens))

    def _ask(self) -> None:
        """Keep the queue of each tenant filled. A refused tenant retries a second later."""
        for at in range(max(x.waiting for x in self.customers)):
            for each in self.customers:
                if self.waiting[each] <= at < each.waiting and self.now >= self._quiet_until_s[each.name]:
                    self._arrive(each)

    def _tell(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reject):
                self._quiet_until_s[self.jobs[action.request_id].customer.name] = self.now + 1.0
                self._at(self.now + 1.0, lambda: None)
        super()._tell(actions)


def limited(**limits: int) -> Change:
    return lambda world: world.tell(world.scheduler.tenants_limited({"b": Limits(**limits)}, now=world.now))


def unlimited(world: World) -> None:
    world.tell(world.scheduler.tenants_limited({}, now=world.now))


def reloaded(**changes: Any) -> Change:
    return lambda world: world.tell(world.scheduler.reconfigured(replace(SETTINGS, **changes), now=world.now))


def paused(model: str | None) -> Change:
    return lambda world: world.tell(world.scheduler.paused(model, now=world.now))


def resumed(model: str | None) -> Change:
    return lambda world: world.tell(world.scheduler.resumed(model, now=world.now))


HELD_BY: dict[str, tuple[Change, Change]] = {
    "a pause of the tenant": (limited(running=0), unlimited),
    "a limit of one, reset": (limited(running=1), unlimited),
    "a limit of two, reset": (limited(running=2), unlimited),
    "a limit that a reload sets and takes": (reloaded(tenants={"b": Limits(running=1)}), reloaded()),
    "a pause of the tenant that a reload ends": (limited(running=0), reloaded()),
    "requests a minute": (limited(requests_per_minute=1), unlimited),
    "tokens a minute": (limited(tokens_per_minute=60), unlimited),
    "a pause of everything": (paused(None), resumed(None)),
    "another gateway that decides": (
        lambda world: world.tell(world.scheduler.halted(now=world.now)),
        lambda world: world.tell(world.scheduler.begun(now=world.now)),
    ),
}


@pytest.mark.parametrize(
    ("waiting", "for_s"),
    [(12, 40.0), *(pytest.param(*slow, marks=pytest.mark.slow) for slow in [(12, 70.0), (3, 70.0), (3, 300.0)])],
)
@pytest.mark.parametrize("by", HELD_BY)
def test_a_tenant_that_was_held_takes_no_more_than_its_share(by: str, waiting: int, for_s: float) -> None:
    """With three requests waiting a tenant is no flood, so slots may be reserved for it: not while it is held."""
    hold, release = HELD_BY[by]
    world = World([customer("a", waiting), customer("b", waiting)]).hold(hold, release, for_s)
    released_s = HELD_AT_S + for_s
    check_release(world.service(), released_s, {"a": 0.5, "b": 0.5})
    assert world.least_used(released_s + 2.0, released_s + 45.0) == 8
    if "tenant" in by or "limit" in by:  # others refuse its requests, so it is idle, or stop all
        assert world.least_used(HELD_AT_S + 2.0, released_s) == 8, "slots idle for a tenant that may not use them"


@pytest.mark.parametrize("for_s", [40.0, *(pytest.param(slow, marks=pytest.mark.slow) for slow in (70.0, 300.0))])
def test_a_flow_whose_model_was_paused_takes_no_more_than_its_share(for_s: float) -> None:
    world = World([customer("a"), customer("b", model="n")]).hold(paused("n"), resumed("n"), for_s)
    check_release(world.service(), HELD_AT_S + for_s, {"a": 0.5, "b": 0.5})
    assert world.least_used(HELD_AT_S + 2.0, HELD_AT_S + for_s) == 8


@pytest.mark.parametrize("for_s", [40.0, *(pytest.param(slow, marks=pytest.mark.slow) for slow in (70.0, 300.0))])
@pytest.mark.parametrize("verbs", [("endpoint_down", "endpoint_up"), ("endpoint_drained", "endpoint_resumed")])
def test_a_flow_whose_engines_were_away_takes_no_more_than_its_share(verbs: tuple[str, str], for_s: float) -> None:
    """Both share the large engine; meanwhile `a` went on at the small one."""
    specs = [EndpointSpec("large", 8, frozenset("mn")), EndpointSpec("small", 2, frozenset("m"))]
    world = World([customer("a"), customer("b", model="n")], endpoints=specs)
    gone, back = (
        lambda world, verb=verb: world.tell(getattr(world.scheduler, verb)("large", now=world.now)) for verb in verbs
    )
    world.hold(gone, back, for_s)
    check_release(world.service(), HELD_AT_S + for_s, {"a": 0.5, "b": 0.5})


def test_a_flow_that_goes_on_with_another_model_is_not_held() -> None:
    """It was served meanwhile, so it neither has credit nor loses any when its other model is resumed."""
    both = [customer("b", model="m"), customer("b", model="n")]
    world = World([customer("a"), *both]).hold(paused("n"), resumed("n"), 70.0)
    held = [x for x in world.service() if HELD_AT_S + 2.0 <= x[0] < HELD_AT_S + 70.0]
    assert sum(cost for _, name, cost in held if name == "b") / sum(cost for *_, cost in held) == pytest.approx(
        0.5, rel=0.05
    )
    check_release(world.service(), HELD_AT_S + 70.0, {"a": 0.5, "b": 0.5})


def test_users_of_a_tenant_that_was_held_share_its_part() -> None:
    users = [customer("b", user="u"), customer("b", user="v")]
    world = World([customer("a", user="w"), *users]).hold(limited(running=0), unlimited, 70.0)
    check_release(world.service(), HELD_AT_S + 70.0, {"a": 0.5, "b": 0.5})
    by_user = [(job.sent_s, job.customer.user or "", job.cost) for job in world.dispatched]
    check_release([x for x in by_user if x[1] != "w"], HELD_AT_S + 70.0, {"u": 0.5, "v": 0.5})


def test_a_group_all_of_whose_tenants_were_held_takes_no_more_than_its_share() -> None:
    """Tenants stand one level below: the part that they share is lifted with them."""

    def below(made: Request) -> Request:
        return made.but(flow=("left" if made.tenant == "a" else "right", made.tenant), weights=(1.0, 1.0))

    settings = replace(SETTINGS, tenant_level=1)
    world = World([customer("a"), customer("b")], changes=below, settings=settings)
    world.hold(limited(running=1), unlimited, 70.0)
    check_release(world.service(), HELD_AT_S + 70.0, {"a": 0.5, "b": 0.5})
    assert world.least_used(HELD_AT_S + 2.0, HELD_AT_S + 70.0) == 8


def test_a_flow_of_a_held_tenant_is_lifted_although_flows_are_no_tenants() -> None:
    """Where flows are told apart by something else, its requests are passed one by one."""
    settings = replace(SETTINGS, tenant_level=None)
    world = World([customer("a"), customer("b")], settings=settings)
    world.hold(limited(running=1), unlimited, 70.0)
    check_release(world.service(), HELD_AT_S + 70.0, {"a": 0.5, "b": 0.5})


@pytest.mark.parametrize("for_s", [40.0, *(pytest.param(slow, marks=pytest.mark.slow) for slow in (70.0, 300.0))])
def test_a_flow_whose_sessions_waited_for_their_home_takes_no_more_than_its_share(for_s: float) -> None:
    """Its home has two of eight slots. Then its requests belong to no session and may go anywhere."""
    settings = replace(SETTINGS, routing="session", router=RoutingSettings(affinity_wait_s=1e6))
    free: list[bool] = []

    def at_home(made: Request) -> Request:
        return made if made.tenant == "a" or free else made.but(session="s")

    specs = [EndpointSpec("small", 2, frozenset("m")), EndpointSpec("large", 6, frozenset("m"))]
    world = World([customer("a"), customer("b")], endpoints=specs, changes=at_home, settings=settings)
    world.scheduler._state.router.lived("m", "s", "small")

    def let_go(world: World) -> None:
        free.append(True)
        for entry in list(world.scheduler._state.entries.values()):
            if entry.request.session and entry.lease is None:
                world.cancel(entry.request.id)

    world.hold(lambda _: None, let_go, for_s)
    check_release(world.service(), HELD_AT_S + for_s, {"a": 0.5, "b": 0.5})


def test_a_band_that_was_held_saves_up_nothing_of_its_promised_share() -> None:
    bands = (BandSettings("high"), BandSettings("low", min_share=0.2))
    settings = replace(SETTINGS, bands=bands)

    def low(made: Request) -> Request:
        return made.but(band=int(made.tenant == "b"))

    world = World([customer("a"), customer("b")], changes=low, settings=settings)
    world.hold(limited(running=0), unlimited, 70.0)
    check_release(world.service(), HELD_AT_S + 70.0, {"a": 0.8, "b": 0.2})


def test_a_band_below_its_ceiling_saves_up_nothing_of_its_promised_share() -> None:
    """Its ceiling keeps it out while those above it use more than half of the slots."""
    held, freed = (
        replace(SETTINGS, bands=(BandSettings("high"), BandSettings("low", min_share=0.2, ceiling=ceiling)))
        for ceiling in (0.5, 1.0)
    )

    def low(made: Request) -> Request:
        return made.but(band=int(made.tenant == "b"))

    world = World([customer("a"), customer("b")], changes=low, settings=held)
    world.hold(lambda _: None, lambda world: world.tell(world.scheduler.reconfigured(freed, now=world.now)), 70.0)
    check_release(world.service(), HELD_AT_S + 70.0, {"a": 0.8, "b": 0.2})


def test_a_flow_that_only_waits_for_room_keeps_its_claim() -> None:
    """Nothing but full slots kept it waiting, so it is next, however long that took."""
    made = scheduler(SchedulerSettings(wait_s_max=1e9, admission=AdmissionSettings(reserved_share=0.0)), e=1)
    lease = the_lease(made.arrived(request("a-0", tenant="a", output_tokens=100), now=0.0))
    made.arrived(request("b-0", tenant="b"), now=0.0)
    for at in range(1, 4):
        made.arrived(request(f"a-{at}", tenant="a"), now=0.0)
    made.paused(None, now=1.0)
    made.resumed(None, now=50.0)
    assert sent(made.finished(lease, now=60.0)) == [("b-0", "e")]


def test_debt_is_kept_while_held() -> None:
    """What a flow got too much before a pause is not forgotten by it."""
    made: CheckedScheduler = scheduler(
        SchedulerSettings(wait_s_max=1e9, admission=AdmissionSettings(reserved_share=0.0)), e=1
    )
    lease = the_lease(made.arrived(request("b-0", tenant="b", prompt_tokens=10_000), now=0.0))
    for at in range(1, 4):
        made.arrived(request(f"a-{at}", tenant="a"), now=0.0)
    made.arrived(request("b-1", tenant="b"), now=0.0)
    made.tenants_limited({"b": Limits(running=0)}, now=1.0)
    made.tenants_limited({}, now=2.0)
    for at in range(1, 4):
        ((name, _),) = actions = sent(after := made.finished(lease, now=2.0 + at))
        assert name == f"a-{at}", actions
        lease = the_lease(after)
