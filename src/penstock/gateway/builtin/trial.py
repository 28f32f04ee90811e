"""A test request that an operator sends as a tenant: where does it go, and why?

It is a chat request from inside and goes the way of all others: the tenant's limits, weight and default band hold for
it, an engine answers it, and its use is the tenant's. The answer to the operator is the story that `penstock explain`
tells, with the engine's words. If it still waits after some seconds the story so far is answered, and the request goes
on: it is found under its id. The prompt stands in no event and no log.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.batch.api.dispatch import ItemExchange
from penstock.batch.dispatch_port import ItemAnswer, Work
from penstock.config.sections.tenancy import ANONYMOUS
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, body_of
from penstock.gateway.admin.story import story
from penstock.gateway.identity.callers import Callers
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.journey import QueuedJourney
from penstock.http.server.server import Exchange

PATH: Final = "/admin/try"
WAITED_S: Final = 10.0  # an operator looks at the story so far rather than at nothing for longer
UNDER_WAY_MAX: Final = 16  # a person sends one at a time; a script is told so
PROMPT: Final = "Say hello."
TOKENS: Final = 16
TOKENS_MAX: Final = 1_000
TEXT_SHOWN: Final = 2_000  # characters of an answer
_MEMBERS: Final = ("tenant", "model", "prompt", "max_tokens")


class Trial:
    """The verb, as a handler of a route."""

    def __init__(self, app: App, driver: Driver, callers: Callers) -> None:
        self._app = app
        self._driver = driver
        self._callers = callers
        self._under_way: set[ItemExchange] = set()

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("POST", PATH, self._try)

    async def _try(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        said = body_of(exchange)
        for member in said:
            if member not in _MEMBERS:
                raise AdminError(400, "bad_request", f"`{member[:40]}` is none of `{'`, `'.join(_MEMBERS)}`.")
        tenant, model, prompt = self._tenant(said), _text(said, "model"), _text(said, "prompt", PROMPT)
        tokens = said.get("max_tokens", TOKENS)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= TOKENS_MAX:
            message = f"`max_tokens` has to be a whole number from 1 to {TOKENS_MAX:,}."
            raise AdminError(400, "bad_request", message, param="max_tokens")
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise AdminError(409, "conflict", f"{UNDER_WAY_MAX} test requests are under way already.")
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
        work = Work(f"try-{secrets.token_hex(6)}", tenant, "", "/v1/chat/completions", msgspec.json.encode(body))
        ended = await self._sent(work)
        explanation = self._driver.scheduler.explain(work.name, now=self._driver.now())
        answer(
            exchange,
            {
                "id": work.name,
                "tenant": tenant,
                "status": None if ended is None else ended.status,  # None: it is not answered yet
                "reason": None if ended is None else ended.reason,
                "text": None if ended is None else _words(ended.body),
                "explanation": explanation,
                "story": [] if explanation is None else story(explanation),
            },
        )

    async def _sent(self, work: Work) -> ItemAnswer | None:
        """Submit it, and return how it ended; None: it goes on."""
        caller = self._callers.inside(work.tenant, work.user, self._driver.now(), is_batch=False)
        over: asyncio.Future[ItemAnswer] = asyncio.get_running_loop().create_future()

        def ended(how: ItemAnswer) -> None:
            self._under_way.discard(request)
            over.set_result(how)

        request = ItemExchange(work, caller, lambda _: None, ended)
        self._under_way.add(request)
        self._app.submit(request, caller, QueuedJourney)
        done, _ = await asyncio.wait([over], timeout=WAITED_S)
        return over.result() if done else None

    def _tenant(self, said: Mapping[str, object]) -> str:
        name = _text(said, "tenant")
        if name != ANONYMOUS and self._callers.account_of(name) is None:
            message = f"There is no tenant `{name[:200]}`: not in the settings, and no caller gave that name lately."
            raise AdminError(404, "tenant_not_found", message, param="tenant")
        return name


def _text(said: Mapping[str, object], name: str, default: str | None = None) -> str:
    value = said.get(name, default)
    if not isinstance(value, str) or not value:
        raise AdminError(400, "bad_request", f"`{name}` has to be a text.", param=name)
    return value


def _words(body: bytes) -> str:
    """The engine's words, the message of a refusal, or what else was answered."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        said = msgspec.json.decode(body)
        words = said["error"]["message"] if "error" in said else said["choices"][0]["message"]["content"]
        return str(words or "")[:TEXT_SHOWN]
    return body[:TEXT_SHOWN].decode("utf-8", "replace")
