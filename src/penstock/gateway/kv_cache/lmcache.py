"""LMCache: which instance of it holds how much of a prompt?

Two services can be asked. The *coordinator* lists all holders of each chunk. The *controller* names for each instance a
number of tokens, of the chunks it was the first to report: a hint. Both are asked by token ids. `lmcache_instance` maps
endpoints to instances; without it they are matched by address, if that is unambiguous. Answers are believed as far as
they can be true.

A service that fails or answers too late is no longer waited for, until one answer comes in time again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from array import array
from collections.abc import Collection, Mapping
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from penstock.engines.lmcache import alone, directory_prefixes, field, items, layout_prefixes, space
from penstock.gateway.kv_cache.tokenize_request import LATE_S
from penstock.http.client.pool import Upstream, UpstreamException

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 64 << 20
NAMES_S = 30.0  # validity of learned instances and models
SPACES_MAX = 8  # model names and world sizes looked under for one prompt
_JSON = [(b"content-type", b"application/json")]


class Service(Protocol):
    """One of the two."""

    async def held(self, tokens: array[int], models: Collection[str], salt: str) -> dict[str, int]:
        """Returns how many of the tokens each instance holds, for any of the `models`."""

    async def addresses(self) -> dict[str, str]:
        """Returns instances by IP address, without addresses that several instances share."""

    def close(self) -> None: ...


class Coordinator:
    """`lmcache coordinator`: `POST /directory/lookup`."""

    def __init__(self, url: str) -> None:
        self.upstream = Upstream(url)
        self._spaces: list[tuple[str, int]] = []  # stored model name and world size
        self._spaces_until_s = 0.0
        self._listing: asyncio.Task[None] | None = None

    async def held(self, tokens: array[int], models: Collection[str], salt: str) -> dict[str, int]:
        self._list_spaces()
        spaces = [known for known in self._spaces if known[0] in models][:SPACES_MAX]
        found: dict[str, int] = {}
        ids = list(tokens)
        for model, world_size in spaces or [(model, 1) for model in models]:
            asked = {"token_ids": ids, "model_name": model, "world_size": world_size, "cache_salt": salt}
            answer = await _post(self.upstream, "/directory/lookup", asked)
            _merge(found, directory_prefixes(answer, len(tokens)))
        return found

    async def addresses(self) -> dict[str, str]:
        answer = await _get(self.upstream, "/instances")
        instances = answer if isinstance(answer, list) else field(answer, "instances")
        return alone((field(item, "instance_id"), field(item, "ip")) for item in items(instances))

    def close(self) -> None:
        if self._listing is not None:
            self._listing.cancel()
        self.upstream.close()

    def _list_spaces(self) -> None:
        """See to it that we know under which model names and world sizes to look. No request waits for that."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._spaces_until_s and (self._listing is None or self._listing.done()):
            self._listing = loop.create_task(self._list())

    async def _list(self) -> None:
        try:
            keys = items(field(await _get(self.upstream, "/directory/keys?limit=1000"), "keys"))
        except LookupFailedError as failure:
            logger.debug("cannot list LMCache's directory: %s", failure)
            keys = []
        self._spaces = sorted({found for item in keys if (found := space(field(item, "key"))) is not None})
        # While nothing is stored there its first chunk may come at any moment.
        self._spaces_until_s = asyncio.get_running_loop().time() + (NAMES_S if self._spaces else 1.0)


class Controller:
    """`lmcache_controller`: `POST /lookup`."""

    def __init__(self, url: str) -> None:
        self.upstream = Upstream(url)

    async def held(self, tokens: array[int], models: Collection[str], salt: str) -> dict[str, int]:  # noqa: ARG002
        answer = await _post(self.upstream, "/lookup", {"tokens": list(tokens)})
        return layout_prefixes(answer, len(tokens))

    def close(self) -> None:
        self.upstream.close()

    async def addresses(self) -> dict[str, str]:
        answer = await _post(self.upstream, "/query_worker_info", {"instance_id": "all", "worker_ids": None})
        infos = items(field(answer, "worker_infos"))
        return alone((field(info, "instance_id"), field(info, "ip")) for info in infos)


class LookupFailedError(Exception):
    """No answer, or none that makes sense."""


class LmCache:
    """Asks all services there are, and answers in endpoints."""

    def __init__(self, services: Collection[Service]) -> None:
        self._services = services
        self._instances: dict[str, str | None] = {}  # endpoint -> its instance, as the operator named it
        self._hosts: dict[str, str] = {}
        self._by_address: dict[str, str] = {}  # endpoint -> instance, if not configured
        self._by_address_until_s = 0.0
        self.in_time = True  #: whether the last answer was worth waiting for

    def endpoint_added(self, name: str, url: str, instance: str | None) -> None:
        """Ask for this endpoint from now on, as `instance`; None: it is found by the address in `url`."""
        self._instances[name] = instance
        self._hosts[name] = urlsplit(url).hostname or "127.0.0.1"  # behind a unix socket
        self._by_address_until_s = 0.0

    def endpoint_removed(self, name: str) -> None:
        """Forget the endpoint of that `name`."""
        del self._instances[name], self._hosts[name]
        self._by_address.pop(name, None)

    def close(self) -> None:
        for service in self._services:
            service.close()

    async def lookup(self, tokens: array[int], models: Collection[str], salt: str) -> dict[str, int]:
        """How many tokens of a prompt each endpoint could load; those with none are left out."""
        loop = asyncio.get_running_loop()
        late = False

        def is_late() -> None:
            nonlocal late
            late = True
            self._judge(in_time=False)

        timer = loop.call_later(LATE_S, is_late)
        held: dict[str, int] = {}
        failed = 0
        for answer in await asyncio.gather(
            *(service.held(tokens, models, salt) for service in self._services), return_exceptions=True
        ):
            if isinstance(answer, LookupFailedError):
                failed += 1
                logger.debug("LMCache look-up failed: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                _merge(held, answer)
        timer.cancel()
        self._judge(in_time=failed < len(self._services) and not late)
        named = await self._names() if held else {}
        return {endpoint: held[instance] for endpoint, instance in named.items() if held.get(instance, 0) > 0}

    def _judge(self, *, in_time: bool) -> None:
        if in_time != self.in_time:
            if in_time:
                logger.info("LMCache answers in time again")
            else:
                logger.warning("LMCache is too slow; requests no longer wait for it")
        self.in_time = in_time

    async def _names(self) -> dict[str, str]:
        """The instance of each endpoint."""
        named = {endpoint: instance for endpoint, instance in self._instances.items() if instance is not None}
        if len(named) < len(self._instances):
            await self._match_addresses()
        return {**self._by_address, **named}

    async def _match_addresses(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._by_address_until_s:
            return
        self._by_address_until_s = now + NAMES_S
        instances: dict[str, str] = {}
        for service in self._services:
            try:
                instances |= await service.addresses()
            except LookupFailedError as failure:
                logger.debug("LMCache lists no instances: %s", failure)
        ips = {endpoint: await _ip(host) for endpoint, host in list(self._hosts.items())}
        shared = list(ips.values())
        self._by_address = {
            endpoint: instances[ip]
            for endpoint, ip in ips.items()
            if ip in instances and shared.count(ip) == 1 and self._instances.get(endpoint) is None
        }


def _merge(found: dict[str, int], more: Mapping[str, int]) -> None:
    for instance, tokens in more.items():
        found[instance] = max(found.get(instance, 0), tokens)


async def _ip(host: str) -> str:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return str(found[0][4][0]) if found else ""


async def _post(upstream: Upstream, path: str, value: object) -> object:
    return await _ask(upstream, "POST", path, msgspec.json.encode(value))


async def _get(upstream: Upstream, path: str) -> object:
    return await _ask(upstream, "GET", path, b"")


async def _ask(upstream: Upstream, method: str, path: str, body: bytes) -> object:
    try:
        answer = await upstream.fetch(
            method, path, headers=_JSON, body=body, timeout_s=TIMEOUT_S, bytes_max=ANSWER_BYTES_MAX
        )
        if answer.status != 200:
            raise LookupFailedError(f"{method} {path}: status {answer.status}")
        return msgspec.json.decode(answer.body)
    except UpstreamException as failure:
        raise LookupFailedError(f"{method} {path}: {failure}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LookupFailedError(f"{method} {path}: the answer is not JSON") from None
