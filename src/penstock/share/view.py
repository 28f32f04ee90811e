"""What does an edge know without asking? Who is there, who serves which model, how loaded: as its decider last said.

The decider says it when it changes: endpoints at once, loads a few times a second. So what is asked for here may be a
quarter of a second old; nothing that takes a slot is decided by it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from penstock.core.queueing.position import QueuePosition
from penstock.core.values.rows import Allowance
from penstock.share.messages import Allowed, EndpointRow, Endpoints, Loads, Places

ALLOWANCES_MAX = 10_000  # tenants whose rates are remembered; of others the headers are left out
PICKED_LOAD = 1 / 64  # what one request that was sent there without a turn counts until the next word comes


class View:
    """The last word on each thing."""

    def __init__(self) -> None:
        self.rows: dict[str, EndpointRow] = {}
        self.divides = False
        self.paced = False
        self._sure = False  # every endpoint has told what it serves
        self._models: dict[str, list[str]] = {}  # endpoints that serve it
        self._any: list[str] = []  # endpoints that serve whatever is asked
        self._loads: dict[str, float] = {}  # of those that may be sent something
        self._allowances: OrderedDict[str, Allowance] = OrderedDict()
        self._places: dict[int, QueuePosition] = {}

    def endpoints(self, told: Endpoints) -> None:
        """These there are now."""
        self.rows = {row.name: row for row in told.rows}
        self.divides = told.divides
        self._sure = bool(told.rows) and all(row.models is not None or row.serves_any for row in told.rows)
        self._models, self._any = {}, [row.name for row in told.rows if row.serves_any]
        for row in told.rows:
            for model in () if row.serves_any else row.models or ():
                self._models.setdefault(model, []).append(row.name)
        self._loads = {name: load for name, load in self._loads.items() if name in self.rows}

    def levels(self, told: Loads) -> None:
        """So loaded they are."""
        self.paced = told.paced
        # Where both crossed a change of the endpoints, the next word sets it right.
        self._loads = {name: load for name, load in zip(self.rows, told.loads, strict=False) if load is not None}

    def allowed(self, told: Allowed) -> None:
        self._allowances[told.account] = told.allowance
        self._allowances.move_to_end(told.account)
        if len(self._allowances) > ALLOWANCES_MAX:
            self._allowances.popitem(last=False)

    def placed(self, told: Places) -> None:
        """The answer to the last question; it replaces the one before."""
        self._places = {number: QueuePosition(*place) for number, place in told.rows}

    # --- questions ----------------------------------------------------------------------------------------------

    def serving(self, model: str) -> list[str]:
        """Who may be sent a request for the model now."""
        return [name for name in (*self._models.get(model, ()), *self._any) if name in self._loads]

    def least_loaded(self, model: str, but: Collection[str]) -> str | None:
        """The least loaded of these. What it is given counts until the next word comes, or all would go to one."""
        usable = [name for name in self.serving(model) if name not in but]
        if not usable:
            return None
        chosen = min(usable, key=self._loads.__getitem__)
        self._loads[chosen] += PICKED_LOAD
        return chosen

    def knows(self, model: str) -> bool | None:
        """Whether some endpoint serves the model; None while one may yet."""
        if self._any or model in self._models:
            return True
        return False if self._sure else None

    def allowance(self, account: str) -> Allowance | None:
        return self._allowances.get(account)

    def places(self, numbers: Iterable[int]) -> dict[int, QueuePosition]:
        return {number: place for number in numbers if (place := self._places.get(number)) is not None}
