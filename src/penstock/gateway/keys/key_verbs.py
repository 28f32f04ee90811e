"""The operators' verbs for keys: list, issue, limit, revoke.

Keys of the settings are listed too, and are revoked there. A key is only in the answer that issues it, not in the
store, events or logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from penstock.batch.store.port import NameTakenError, TooManyKeysError
from penstock.batch.values import MadeKey
from penstock.config import values
from penstock.config.model import Settings
from penstock.config.problems import Refused
from penstock.config.sections.tenancy import NAMES_WITHOUT_KEYS, TenantKey
from penstock.core.values.settings import Limits
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, body_of, settings_of
from penstock.gateway.admin.tenant_orders import LIMITS
from penstock.gateway.admin.tenant_verbs import limits_of
from penstock.gateway.identity import rights
from penstock.gateway.identity.callers import HASH_PREFIX, key_hash, new_key
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.keys.key_book import KeyBook

LIST = "/admin/keys"
SHOWN_MAX = 1_000
HASH_SHOWN = 12  # characters: enough to distinguish keys
_RIGHTS = ("models", "max_prompt_tokens", "max_output_tokens", "expires", "limits")
_OFF = "Keys are not issued here: set `identity.made_keys: true`; they are kept in `store`."


class KeyVerbs:
    """The verbs, as handlers of routes. `book`: None: no keys are made here."""

    def __init__(self, book: KeyBook | None, settings: Callable[[], Settings], wall: Callable[[], float]) -> None:
        self._book = book
        self._settings = settings
        self._wall = wall

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", LIST, self._list)
        routes.add("POST", LIST, self._make)
        routes.add("DELETE", LIST + "/{name}", self._revoke)
        routes.add("POST", LIST + "/{name}/limit", self._limit)
        routes.add("DELETE", LIST + "/{name}/limit", self._unlimit)

    # --- looking --------------------------------------------------------------------------------------------------

    def _list(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        try:
            tenant = parse_qs(exchange.query, max_num_fields=100).get("tenant", [None])[-1]
        except ValueError:
            raise AdminError(400, "bad_request", "The query has too many fields.") from None
        rows = [row for row in self._rows() if tenant is None or row["tenant"] == tenant]
        trouble = None if self._book is None else self._book.trouble
        shown = list(islice(rows, SHOWN_MAX))
        more = len(rows) - len(shown)
        answer(exchange, {"keys": shown, "more": more, "makes_keys": self._book is not None, "trouble": trouble})

    def _rows(self) -> Iterator[dict[str, object]]:
        tenants = self._settings().tenants
        for tenant in tenants:
            for key in tenant.keys:
                its = rights.written(rights.rights_of(key, with_limits=True))
                yield self._row(MadeKey(_named(key), tenant.name, key.hash, its, 0.0, key.expires))
        names = {tenant.name for tenant in tenants}
        for made in self._made().values():
            row = self._row(made)
            yield row if made.tenant in names else {**row, "state": "without tenant"}

    def _row(self, key: MadeKey) -> dict[str, object]:
        """A key for people and programs. That of the settings was made at no time that is known."""
        its = rights.read(key.rights) or rights.NONE
        expired = key.expires_at is not None and self._wall() >= key.expires_at
        return {
            "name": key.name,
            "tenant": key.tenant,
            "source": "made" if key.created_at else "file",
            "hash": key.hash.removeprefix(HASH_PREFIX)[:HASH_SHOWN],
            "state": "expired" if expired else "good",
            "models": list(its.models),
            "max_prompt_tokens": its.max_prompt_tokens,
            "max_output_tokens": its.max_output_tokens,
            "limits": _limits(its),
            "created_at": key.created_at or None,
            "expires_at": key.expires_at,
        }

    # --- changing -------------------------------------------------------------------------------------------------

    async def _make(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        book = self._written()
        body = body_of(exchange)
        tenant, name = self._tenant(body.get("tenant")), self._new_name(body.get("name"))
        secret = new_key()
        now = self._wall()
        said = {key: value for key, value in body.items() if key not in ("tenant", "name")}
        its = self._read(said, key_hash(secret), now)
        if its.expires is not None and its.expires <= now:
            message = f"expires: {values.write_moment(its.expires)} is in the past"
            raise AdminError(400, "bad_request", message, param="expires")
        made = MadeKey(
            name, tenant, its.hash, rights.written(rights.rights_of(its, with_limits=True)), now, its.expires
        )
        try:
            await book.add(made)
        except NameTakenError:
            raise _taken(name) from None
        except TooManyKeysError:
            message = "The maximum number of issued keys is reached: revoke unused ones."
            raise AdminError(409, "conflict", message) from None
        answer(exchange, {**self._row(made), "key": secret}, 201)

    async def _revoke(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._issued(names, "take it out")
        if not await self._written().erase(name):
            raise _unknown(name)
        answer(exchange, {"name": name, "state": "withdrawn"})

    async def _limit(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        """Set these limits of an issued key; null ends one, and all others stay."""
        name = self._issued(names, "change it")
        await self._relimit(exchange, name, limits_of(body_of(exchange)))

    async def _unlimit(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._issued(names, "change it")
        await self._relimit(exchange, name, dict.fromkeys(LIMITS))

    async def _relimit(self, exchange: Exchange, name: str, limits: Mapping[str, int | None]) -> None:
        book = self._written()
        if (key := book.keys.get(name)) is None:
            raise _unknown(name)
        its = rights.read(key.rights) or rights.NONE
        after = msgspec.structs.replace(its.limits or Limits(), **limits)
        its = msgspec.structs.replace(its, limits=None if after == Limits() else after)
        if (changed := await book.change(name, rights.written(its))) is None:
            raise _unknown(name)
        answer(exchange, self._row(changed))

    # --- parts ----------------------------------------------------------------------------------------------------

    def _made(self) -> Mapping[str, MadeKey]:
        return {} if self._book is None else self._book.keys

    def _written(self) -> KeyBook:
        if self._book is None:
            raise AdminError(409, "conflict", _OFF)
        return self._book

    def _of_settings(self) -> dict[str, str]:
        return {_named(key): tenant.name for tenant in self._settings().tenants for key in tenant.keys}

    def _issued(self, names: Mapping[str, str], do: str) -> str:
        """The key that a path names. Raises if it stands in the settings, where one has to `do` it."""
        name = names["name"]
        if (tenant := self._of_settings().get(name)) is not None:
            message = f"The key `{name}` stands in the settings of `{tenant}`: {do} there, and reload."
            raise AdminError(409, "conflict", message, param="name")
        return name

    def _tenant(self, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise AdminError(400, "bad_request", "`tenant` is missing.", param="tenant")
        if value in NAMES_WITHOUT_KEYS:
            raise AdminError(400, "bad_request", f"`{value}` stands for clients without a key.", param="tenant")
        if all(tenant.name != value for tenant in self._settings().tenants):
            message = f"There is no tenant `{value[:200]}` in the settings."
            raise AdminError(404, "tenant_not_found", message, param="tenant")
        return value

    def _new_name(self, value: object) -> str:
        try:
            name = values.key_name("" if value is None else value)
        except Refused as refused:
            raise AdminError(400, "bad_request", f"name: {refused}", param="name") from None
        if name in self._made() or name in self._of_settings():
            raise _taken(name)
        return name

    def _read(self, said: Mapping[str, object], its_hash: str, now: float) -> TenantKey:
        """The key as the settings would have it, by the same rules; `expires` may count from `now`."""
        for member in said:
            if member not in _RIGHTS:
                message = f"`{member[:40]}` is none of `tenant`, `name`, `{'`, `'.join(_RIGHTS)}`."
                raise AdminError(400, "bad_request", message, param=member[:40])
        key = {**said, "expires": values.from_now(said.get("expires"), now), "hash": its_hash}
        made = settings_of({"tenants": [{"name": "it", "keys": [key]}]}, "tenants[0].keys[0]")
        return made.tenants[0].keys[0]


def _named(key: TenantKey) -> str:
    """Returns the listed name of a key of the settings."""
    return key.name or key.hash[: len(HASH_PREFIX) + HASH_SHOWN]


def _limits(its: rights.Rights) -> dict[str, int]:
    limits = {} if its.limits is None else msgspec.structs.asdict(its.limits)
    return {name: most for name, most in limits.items() if most is not None}


def _unknown(name: str) -> AdminError:
    return AdminError(
        404, "key_not_found", f"There is no key `{name[:200]}`. `penstock keys ls` lists all.", param="name"
    )


def _taken(name: str) -> AdminError:
    return AdminError(409, "conflict", f"There is a key `{name[:200]}` already.", param="name")
