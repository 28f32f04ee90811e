"""An edge's view of the endpoints, as last reported by the decider: it answers the questions that a scheduler answers.

The decider reports endpoints when they change and loads a few times a second, so loads may be a quarter of a second
old; they decide about nothing that takes a slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from penstock.core.queueing.position import QueuePosition
from penstock.core.values.rows import Allowance
from penstock.share.messages import Allowed, EndpointRow, Endpoints, Loads, Places

ALLOWANCES_MAX = 10_000  # tenants whose rates are kept; others get no headers
PICKED_LOAD = 1 / 64  # of one request that was sent there without a slot, until the next report


class View:
    """The latest reports; an `Edge` is one."""

    def __init__(self) -> None:
        self.rows: dict[str, EndpointRow] = {}
        self.divides = False
        self.paced = False
        self._sure = False  # the models of every endpoint are known
        self._models: dict[str, list[str]] = {}  # endpoints by model
        self._any: list[str] = []  # endpoints that serve any model
        self._loads: dict[str, float] = {}  # of endpoints that are available
        self._out: frozenset[str] = frozenset()  # endpoints that take nothing
        self._stopped: frozenset[str | None] = frozenset()  # models; None: all
        self._allowances: OrderedDict[tuple[str, ...], Allowance] = OrderedDict()
        self._places: dict[int, QueuePosition] = {}

    def know_endpoints(self, told: Endpoints) -> None:
        """Replace the endpoints."""
        self.rows = {row.name: row for row in told.rows}
        self.divides = told.divides
        self._sure = bool(told.rows) and all(row.models is not None or row.serves_any for row in told.rows)
        self._models, self._any = {}, [row.name for row in told.rows if row.serves_any]
        for row in told.rows:
            for model in () if row.serves_any else row.models or ():
                self._models.setdefault(model, []).append(row.name)
        self._loads = {name: load for name, load in self._loads.items() if name in self.rows}

    def know_loads(self, told: Loads) -> None:
        """Replace the loads."""
        self.paced = told.paced
        # If the report crossed a change of the endpoints, the next one corrects it.
        self._loads = {name: load for name, load in zip(self.rows, told.loads, strict=False) if load is not None}
        self._out, self._stopped = frozenset(told.out), frozenset(told.stopped)

    def know_allowance(self, told: Allowed) -> None:
        self._allowances[told.accounts] = told.allowance
        self._allowances.move_to_end(told.accounts)
        if len(self._allowances) > ALLOWANCES_MAX:
            self._allowances.popitem(last=False)

    def know_places(self, told: Places) -> None:
        """Replace the queue positions."""
        self._places = {number: QueuePosition(*place) for number, place in told.rows}

    # --- questions ----------------------------------------------------------------------------------------------

    @property
    def watches(self) -> bool:
        """False: observers are with the decider."""
        return False

    def serving(self, model: str, *, now: float) -> list[str]:  # noqa: ARG002
        """Returns the endpoints that are available for the model."""
        return [name for name in (*self._models.get(model, ()), *self._any) if name in self._loads]

    def least_loaded(self, model: str, *, but: Collection[str] = (), now: float) -> str | None:
        """Returns the least loaded of them. The pick counts as load until the next report, or all would go to one."""
        usable = [name for name in self.serving(model, now=now) if name not in but]
        if not usable:
            return None
        chosen = min(usable, key=self._loads.__getitem__)
        self._loads[chosen] += PICKED_LOAD
        return chosen

    def proven(self, name: str) -> bool:
        """Returns whether the endpoint has answered as an engine."""
        row = self.rows.get(name)
        return row is not None and row.proven

    def refuses_key(self, name: str) -> bool:
        """Returns whether the endpoint refuses the gateway's key."""
        row = self.rows.get(name)
        return row is not None and row.key_refused

    def knows(self, model: str, *, now: float) -> bool | None:  # noqa: ARG002
        """Returns whether some endpoint serves the model; None: not known yet."""
        if self._any or model in self._models:
            return True
        return False if self._sure else None

    def awaits_models(self, name: str) -> bool:
        """Returns whether the endpoint is in service and has not listed its models yet."""
        row = self.rows.get(name)
        return row is not None and row.models is None and not row.serves_any and name not in self._out

    def works(self, model: str, *, now: float) -> bool:  # noqa: ARG002
        """Returns whether the model takes requests now, if only after a moment."""
        if not self._stopped.isdisjoint((model, None)):
            return False
        return any(name not in self._out for name in (*self._models.get(model, ()), *self._any))

    def allowance(self, accounts: tuple[str, ...], *, now: float) -> Allowance | None:  # noqa: ARG002
        return self._allowances.get(accounts)
