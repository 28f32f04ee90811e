"""The record as a hash in Valkey, or in Redis: for gateways outside Kubernetes that have one at hand.

Compare and set is one script, which the server runs as a whole. It is sent each time, because to load functions is a
right that users of a shared server do not have. The hash has no time to live: the server's clock does not count, and
the epoch has to stay. Needs the extra `valkey` (redis-py, for both).
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from penstock.share.election import Claim, ElectionError, Record

REQUEST_S: Final = 1.0
FIELDS: Final = ("version", "id", "address", "epoch")
SCRIPT: Final = """
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'id', ARGV[3], 'address', ARGV[4], 'epoch', ARGV[5])
return 1
"""
FAILURES: Final = RedisError, OSError, UnicodeDecodeError
#: A server's error codes, errors' words, and their remedies.
HINTS: Final = {
    "READONLY": "it is a replica that only reads: name the primary",
    "NOAUTH": "it wants a password: write valkey://:${PASSWORD}@host:6379",
    "WRONGPASS": "it does not take this user and password",
    "NOPERM": "the user may not do this: it needs hget, hmget, hset and eval, for this key",
    "MOVED": "it is a node of a cluster, and another has the key: name a server that is no cluster",
    "CLUSTERDOWN": "it is a node of a cluster that is down: name a server that is no cluster",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "LOADING": "it is starting",
    "MISCONF": "it writes nothing any more because it can't save",
    "OOM": "its memory is full",
    "WRONGTYPE": "the key holds something else: give another `key`",
    "codec can't decode": "another program writes to this key, bytes that are no text: give another `key`",
    "unknown command": "it lacks what is needed: scripts and hashes",
}


class ValkeyHash:
    """One key of one server."""

    def __init__(self, url: str, key: str, *, ca_file: str | None = None) -> None:
        """ValueError: the URL is none."""
        self._key = f"{key}:decider"
        self._client: Any = client_of(url, ca_file)
        self.where = f"{self._key} in Valkey"

    async def read(self) -> Record:
        """Returns the hash; raises ElectionError."""
        try:
            async with self._client.pipeline(transaction=False) as asked:
                asked.role()
                asked.hmget(self._key, FIELDS)
                role, found = await asked.execute(raise_on_error=False)
            if isinstance(found, Exception):
                raise found
        except FAILURES as error:
            raise ElectionError(explained(error)) from None
        if isinstance(role, list) and role and role[0] == "slave":  # otherwise only writers would notice
            raise ElectionError(HINTS["READONLY"])
        version, life, address, epoch = found
        try:
            return Record(version or "", life or "", address or "", int(epoch or 0))
        except ValueError:
            raise ElectionError(f"its epoch is not a number: {epoch:.40}") from None

    async def write(self, over: Record, claim: Claim) -> Record | None:
        """Write `claim` if the version still is that of `over`; None: it is not. Raises ElectionError."""
        version = secrets.token_hex(8)
        try:
            done = await self._client.eval(
                SCRIPT, 1, self._key, over.version, version, claim.id, claim.address, str(claim.epoch)
            )
        except FAILURES as error:
            raise ElectionError(explained(error)) from None
        return Record(version, claim.id, claim.address, claim.epoch) if done else None

    async def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()


def client_of(url: str, ca_file: str | None) -> Any:
    """Returns a client of the server at `url`. ValueError: the URL is none."""
    plain = plain_url(url)
    tls: dict[str, Any] = {"ssl_ca_certs": ca_file} if ca_file and plain.startswith("rediss:") else {}
    return redis.asyncio.Redis.from_url(
        plain,
        socket_timeout=REQUEST_S,
        socket_connect_timeout=REQUEST_S,
        retry=Retry(NoBackoff(), 0),  # a question that failed is put again in its time
        decode_responses=True,
        max_connections=4,
        **tls,
    )


def plain_url(url: str) -> str:
    """Returns `url` as redis-py takes it, which knows the older names of the schemes only."""
    for ours, theirs in (("valkey://", "redis://"), ("valkeys://", "rediss://")):
        if url.startswith(ours):
            return theirs + url.removeprefix(ours)
    return url


def explained(error: BaseException) -> str:
    """Returns the error of the server or its connection, with a remedy."""
    said = " ".join(str(error).split())[:300] or type(error).__name__
    code: str | None = None
    seen: BaseException | None = error
    while seen is not None and code is None:  # errors while connecting are wrapped
        code = getattr(seen, "status_code", None)
        seen = seen.__cause__ or seen.__context__
    hint = HINTS.get(code or "") or next((hint for mark, hint in HINTS.items() if mark in said), None)
    return f"{hint} ({said})" if hint else said
