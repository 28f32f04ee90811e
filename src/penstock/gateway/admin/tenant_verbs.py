"""An operator's verbs for a tenant: show, pause, resume, limit, weigh, and cancel its requests.

A tenant is one of the settings, the part of all callers without a key, or a name that a trusted proxy gave within the
last ten minutes. A name inside that shared part has no limits of its own: only its requests can be cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.queueing.quotas import DAY_S, MINUTE_S
from penstock.core.values.rows import Allowance, Left
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, body_of, settings_of
from penstock.gateway.admin.tenant_orders import LIMITS, PAUSED, WEIGHT, Order, TenantOrders, TooManyOrderedError
from penstock.gateway.identity.callers import Callers
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Exchange

LIST = "/admin/tenants"
SHOWN_MAX = 200
_ANY_HASH = "sha256:" + "0" * 64
CANCELLED_MAX = 1_000  # at a time: each of them is answered in this turn of the loop


class TenantVerbs:
    """The verbs, as handlers of routes."""

    def __init__(self, driver: Driver, callers: Callers, orders: TenantOrders) -> None:
        self._driver = driver
        self._scheduler = driver.scheduler
        self._callers = callers
        self._orders = orders

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", LIST, self._list)
        routes.add("GET", LIST + "/{name}", self._show)
        routes.add("POST", LIST + "/{name}/pause", self._pause)
        routes.add("POST", LIST + "/{name}/resume", self._resume)
        routes.add("POST", LIST + "/{name}/limit", self._limit)
        routes.add("DELETE", LIST + "/{name}/limit", self._unlimit)
        routes.add("POST", LIST + "/{name}/weight", self._weigh)
        routes.add("DELETE", LIST + "/{name}/weight", self._unweigh)
        routes.add("POST", LIST + "/{name}/cancel", self._cancel)

    # --- looking --------------------------------------------------------------------------------------------------

    def _list(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        busy = self._scheduler.busy()
        listed = [profile.name for profile in self._callers.profiles()]
        # Those with work first, the most waiting first, then those with orders.
        names = dict.fromkeys([*sorted(busy, key=lambda name: busy[name], reverse=True), *self._orders, *listed])
        rows = [self._row(name, busy.get(name, (0, 0))) for name in islice(names, SHOWN_MAX)]
        answer(exchange, {"tenants": rows, "more": len(names) - len(rows)})

    def _show(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        self._answer(exchange, self._account(names))

    def _row(self, name: str, busy: tuple[int, int]) -> dict[str, object]:
        """A tenant's requests and limits, and where each limit comes from."""
        profile, orders = self._callers.profile(name), self._orders.of(name)
        file = self._orders.file.get(name)
        limits: dict[str, object] = {}
        for key in LIMITS:
            its = None if file is None else getattr(file, key)
            if (order := orders.get(key)) is not None:
                limits[key] = {"value": order.value, "by": "operator", "until": _until(order), "settings": its}
            elif its is not None:
                limits[key] = {"value": its, "by": "settings"}
        ours, order = None if profile is None else profile.weight, orders.get(WEIGHT)
        return {
            "name": name,
            "in_settings": profile is not None,
            "has_keys": profile is not None and profile.has_keys,
            "weight": ours if order is None else order.value,
            "weight_by": None if order is None else {"by": "operator", "until": _until(order), "settings": ours},
            "waiting": busy[0],
            "running": busy[1],
            "paused": None if PAUSED not in orders else {"by": "operator", "until": _until(orders[PAUSED])},
            "limits": limits,
            "budgets": budgets(self._scheduler.allowance((name,), now=self._driver.now())),
        }

    def _answer(self, exchange: Exchange, name: str) -> None:
        answer(exchange, self._row(name, self._scheduler.busy().get(name, (0, 0))))

    # --- changing -------------------------------------------------------------------------------------------------

    def _pause(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._account(names)
        body = body_of(exchange)
        self._say(name, {PAUSED: Order(until_reload=_flag(body, "until_reload"))})
        self._answer(exchange, name)

    def _resume(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._account(names)
        self._take_back(name, PAUSED)
        self._answer(exchange, name)

    def _limit(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._account(names)
        body = body_of(exchange)
        until_reload = _flag(body, "until_reload")
        read = limits_of({key: value for key, value in body.items() if key != "until_reload"})
        self._say(name, {key: Order(value, until_reload=until_reload) for key, value in read.items()})
        self._answer(exchange, name)

    def _unlimit(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._account(names)
        self._take_back(name, *LIMITS)
        self._answer(exchange, name)

    def _weigh(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._account(names)
        if not self._orders.weighs:
            raise AdminError(409, "conflict", "Tenants have no weights: `fairness.levels` does not name them.")
        body = body_of(exchange)
        until_reload = _flag(body, "until_reload")
        if body.keys() - {"until_reload"} != {"weight"}:
            raise AdminError(400, "bad_request", "Name the `weight`, and nothing else.", param="weight")
        read = settings_of({"tenants": [{"name": "it", "weight": body["weight"]}]}, "tenants[0]").tenants[0].weight
        self._say(name, {WEIGHT: Order(read, until_reload=until_reload)})
        self._answer(exchange, name)

    def _unweigh(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._account(names)
        self._take_back(name, WEIGHT)
        self._answer(exchange, name)

    def _cancel(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        """Cancel waiting requests, and running ones if asked; so many at a time, with the number left."""
        name = names["name"]
        running_too = _flag(body_of(exchange), "running_too")
        found = self._scheduler.requests_of(name, running=False)
        if running_too:
            found += self._scheduler.requests_of(name, running=True)
        if not found and self._met(name) is None and name not in self._orders:
            raise _unknown(name)
        now = found[:CANCELLED_MAX]
        self._driver.tell(self._scheduler.all_evicted(now, now=self._driver.now()))
        answer(exchange, {"name": name, "cancelled": len(now), "left": len(found) - len(now)})

    # --- parts ----------------------------------------------------------------------------------------------------

    def _account(self, names: Mapping[str, str]) -> str:
        """The tenant that a path names. Raises if there is none, or if it has no limits of its own."""
        name = names["name"]
        if name in self._orders:
            return name
        account = self._met(name)
        if account is None:
            raise _unknown(name)
        if account != name:
            message = (
                f"`{name[:200]}` is a name inside `{ANONYMOUS}`, which all callers without a key share: name that."
            )
            raise AdminError(409, "conflict", message, param="name")
        return name

    def _met(self, name: str) -> str | None:
        """Returns the name for the limits of a tenant that is configured or was met lately, here or by a worker."""
        return self._callers.account_of(name) or self._scheduler.account_of(name)

    def _say(self, name: str, orders: Mapping[str, Order]) -> None:
        try:
            self._orders.say(name, orders)
        except TooManyOrderedError as error:
            raise AdminError(409, "conflict", f"{error}.") from None
        self._tell()

    def _take_back(self, name: str, *keys: str) -> None:
        self._orders.take_back(name, *keys)
        self._tell()

    def _tell(self) -> None:
        driver, orders = self._driver, self._orders
        driver.tell(self._scheduler.tenants_limited(orders.limits(), now=driver.now()))
        driver.tell(self._scheduler.tenants_weighed(orders.weights(), now=driver.now()))


def limits_of(said: Mapping[str, object]) -> dict[str, int | None]:
    """Returns limits that an operator sent, by the rules of the settings; None: no such limit. Raises AdminError."""
    if not said:
        raise AdminError(400, "bad_request", f"Name at least one limit: {', '.join(LIMITS)}.")
    key = {"hash": _ANY_HASH, "limits": said}  # of a key: limits of a tenant may have models, too
    read = settings_of({"tenants": [{"name": "it", "keys": [key]}]}, "tenants[0].keys[0].limits")
    return {name: getattr(read.tenants[0].keys[0].limits, name) for name in said}


def _unknown(name: str) -> AdminError:
    message = f"There is no tenant `{name[:200]}`: not in the settings, and no caller gave that name lately."
    return AdminError(404, "tenant_not_found", message, param="name")


def budgets(allowance: Allowance | None) -> dict[str, dict[str, float]]:
    """Returns of each rate its use, which exceeds it in debt, its remainder, and when more comes back, in seconds.

    `next_s`: until there is any to take; `reset_s`: until all of it is back.
    """
    told: dict[str, dict[str, float]] = {}
    if allowance is None:
        return told
    rates: tuple[tuple[str, Left | None, float], ...] = (
        ("requests_per_minute", allowance.requests, MINUTE_S),
        ("tokens_per_minute", allowance.tokens, MINUTE_S),
        ("tokens_per_day", allowance.tokens_day, DAY_S),
    )
    for key, left, period_s in rates:
        if left is None:
            continue
        next_s = 0.0 if left.remaining else max(0.0, left.reset_s - period_s * (1 - 1 / left.limit))
        told[key] = {
            "limit": left.limit,
            "used": round(left.reset_s / period_s * left.limit),
            "remaining": left.remaining,
            "next_s": round(next_s, 3),
            "reset_s": round(left.reset_s, 3),
        }
    return told


def _until(order: Order) -> str:
    return "reload" if order.until_reload else "restart"


def _flag(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise AdminError(400, "bad_request", f"`{name}` has to be true or false.", param=name)
    return value
