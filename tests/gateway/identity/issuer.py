"""A little identity provider on a socket: its configuration, its keys, and tokens that it signs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from functools import cache
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.ports import free_port

AUDIENCE = "penstock"


@cache
def private_key(name: str) -> PrivateKeyTypes:
    """A key of that name: of the kind that the name begins with. Making an RSA key takes a tenth of a second."""
    return ec.generate_private_key(ec.SECP256R1()) if name.startswith("ec") else rsa.generate_private_key(65537, 2048)


def public_jwk(name: str, **more: object) -> dict[str, Any]:
    algorithm: Any = ECAlgorithm if name.startswith("ec") else RSAAlgorithm
    key: Any = private_key(name)
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name, "use": "sig", **more}


class Issuer:
    """Publishes the keys of these names; signs with any."""

    def __init__(self, *keys: str) -> None:
        self.keys: list[dict[str, Any]] = [public_jwk(name) for name in keys]
        self.asked: list[str] = []  # paths
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/realm"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def down(self) -> None:
        """Take no connection any more; up again, it has the same address."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        await asyncio.gather(*self._answering)

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    def token(
        self,
        key: str = "rsa-1",
        *,
        lasts_s: float = 600.0,
        headers: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A token as it should be, but for what is said. A claim that is None is left out."""
        now = int(time.time())
        said = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": now - 1000,
            "exp": now + int(lasts_s),
            **claims,
            **(more or {}),
        }
        token: str = jwt.encode(
            {name: value for name, value in said.items() if value is not None},
            private_key(key),
            algorithm="ES256" if key.startswith("ec") else "RS256",
            headers={name: value for name, value in {"kid": key, **(headers or {})}.items() if value is not None},
        )
        return token

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):  # who asked is gone
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            self.asked.append(path)
            found: dict[str, object] = {
                "/realm/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys?all"},
                "/realm/keys?all": {"keys": self.keys},
            }
            status, body = (b"200 OK", json.dumps(found[path]).encode()) if path in found else (b"404 Not Found", b"")
            if writer.is_closing():
                return
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes = b"") -> str:
    """A token that no library would make: unsigned, or by a secret that is none."""
    parts = ".".join(_packed(json.dumps(part).encode()) for part in (header, claims))
    return f"{parts}.{_packed(hmac.digest(secret, parts.encode(), hashlib.sha256)) if secret else ''}"


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
