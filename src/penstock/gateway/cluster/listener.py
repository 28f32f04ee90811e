"""TCP between gateways: the listener, the dialler, and the group's certificates, if it has any.

Each connection begins with a greeting (`greeting.py`). The listener bounds what strangers cost: concurrent greetings,
the time of each, and no byte kept beyond a greeting. Past the bound the oldest greeting is closed, so a crowd of idle
strangers can't keep a gateway out.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Final, cast

from penstock.config.address import split_listen
from penstock.config.load import ConfigError, Problem
from penstock.config.sections.share import ShareSection, ShareTls
from penstock.gateway.cluster.greeting import EDGE, NONCE_BYTES, GreetingError, Talk, dialing, listening
from penstock.http.server.listener import Listener

logger = logging.getLogger(__name__)

GREETING_S: Final = 5.0  # from the first byte to the last, TLS and all
GREETINGS_MAX: Final = 64  # concurrent
BACKLOG: Final = 256

Accept = Callable[[asyncio.Transport, bytes], None]  #: a connection, and the data after the greeting
Greeted = Callable[[asyncio.Transport, bytes, bytes], None]  #: the same, with its kind between


class _Greeter(asyncio.Protocol):
    """A connection until its greeting is over."""

    def __init__(self, talk: Talk, greeted: Greeted, failed: Callable[[str, str], None]) -> None:
        self._talk = talk
        self._greeted = greeted
        self._failed = failed
        self._came = bytearray()
        self._wanted = 0
        self._peer = ""
        self._over = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def end(self, why: str) -> None:
        """Close it: it is no link."""
        if not self._over:
            self._finish()
            if self._transport is not None:
                self._transport.close()  # after the bytes already written; nothing more is read
            self._failed(self._peer, why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "somebody"
        self._timer = asyncio.get_running_loop().call_later(
            GREETING_S, self.end, f"its greeting was not over after {GREETING_S:g} s"
        )
        self._step(None)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._came += data
        while not self._over and len(self._came) >= self._wanted:
            came = bytes(self._came[: self._wanted])
            del self._came[: self._wanted]
            self._step(came)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("it hung up inside the greeting" + (f": {exc}" if exc is not None else ""))

    def _step(self, came: bytes | None) -> None:
        assert self._transport is not None
        try:
            wanted = 0
            while not wanted:  # a step that expects nothing is followed at once
                out, wanted = next(self._talk) if came is None else self._talk.send(came)
                came = b""
                if out:
                    self._transport.write(out)
            self._wanted = wanted
        except StopIteration as done:
            self._finish()
            self._greeted(self._transport, done.value, bytes(self._came))
        except GreetingError as error:
            self.end(str(error))

    def _finish(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()


class GroupListener:
    """The port for other gateways of the group. `edge` and `question` take connections that were greeted."""

    def __init__(self, share: ShareSection, *, edge: Accept, question: Accept) -> None:
        self._secret = _secret(share)
        self._listen = split_listen(share.listen or "")
        self._context = context(share.tls, server=True)
        self._greeters: dict[_Greeter, None] = {}  # the oldest first
        self._listener: Listener | None = None
        self._edge = edge
        self._question = question

    @property
    def port(self) -> int:
        """The port listened on."""
        return 0 if self._listener is None else self._listener.port

    async def start(self) -> None:
        """Listen. OSError: the address is taken."""
        listener = Listener(
            lambda _: self._newcomer(),
            ssl=self._context,
            begin_timeout_s=lambda: GREETING_S,
            shutdown_timeout_s=GREETING_S,
        )
        await listener.listen(*self._listen, BACKLOG)
        listener.accept()
        self._listener = listener

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
            await self._listener.end()
        for greeter in tuple(self._greeters):
            greeter.end("the gateway ends")

    def _newcomer(self) -> _Greeter:
        def greeted(transport: asyncio.Transport, kind: bytes, rest: bytes) -> None:
            self._greeters.pop(greeter, None)
            (self._edge if kind == EDGE else self._question)(transport, rest)

        def failed(peer: str, why: str) -> None:
            self._greeters.pop(greeter, None)
            logger.warning("share: a connection from %s was closed: %s", peer, why)

        if len(self._greeters) >= GREETINGS_MAX:
            next(iter(self._greeters)).end("too many greetings at once")
        greeter = _Greeter(listening(self._secret, secrets.token_bytes(NONCE_BYTES)), greeted, failed)
        self._greeters[greeter] = None
        return greeter


class Dialler:
    """Dials other gateways of the group."""

    def __init__(self, share: ShareSection) -> None:
        self._secret = _secret(share)
        self._context = context(share.tls, server=False)

    async def __call__(self, address: str, kind: bytes) -> tuple[asyncio.Transport, bytes]:
        """Returns a greeted connection with the bytes already received on it. OSError: no gateway of the group answers.

        The caller sets its protocol at once, before anything else may come.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[asyncio.Transport, bytes]] = loop.create_future()

        def greeted(transport: asyncio.Transport, _: bytes, rest: bytes) -> None:
            transport.pause_reading()  # until the caller has it
            if done.done():
                transport.abort()
            else:
                done.set_result((transport, rest))

        def failed(_: str, why: str) -> None:
            if not done.done():
                done.set_exception(ConnectionError(None, why))

        talk = dialing(self._secret, kind, secrets.token_bytes(NONCE_BYTES))
        host, port = split_listen(address)
        greeter = _Greeter(talk, greeted, failed)
        try:
            async with asyncio.timeout(GREETING_S):
                await loop.create_connection(lambda: greeter, host, port, ssl=self._context)
                return await done
        except TimeoutError:
            raise ConnectionError(None, f"no answer within {GREETING_S:g} s") from None
        except ssl.SSLError as error:
            raise ConnectionError(None, f"TLS: {error.reason or error}") from None
        finally:
            if not done.done():
                done.cancel()
                greeter.end("given up")


def own_token(share: ShareSection) -> str | None:
    """Returns the admin token that the secret gives to all gateways of the group; None without a secret."""
    if share.secret is None:
        return None
    return hmac.digest(_secret(share), b"penstock: the group's own admin token", "sha256").hex()


def prefix_seed(share: ShareSection) -> int:
    """Return the seed of prompts' keys (64 bits), equal at all gateways of the group, now and after restarts.

    Derived from the secret; without one from the group's CA certificate, which clients never see.
    """
    known = _secret(share)
    if not known and (ssl_context := context(share.tls, server=False)) is not None:
        known = b"".join(sorted(ssl_context.get_ca_certs(binary_form=True)))
    return int.from_bytes(hmac.digest(known, b"penstock: the seed of prompts' keys", "sha256")[:8], "big")


def context(tls: ShareTls, *, server: bool) -> ssl.SSLContext | None:
    """Returns the TLS context to listen or dial with; None: no TLS. Raises `ConfigError`.

    The group's own authority defines its members, so a certificate may have any name, because addresses change.
    """
    if not tls.given:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    assert tls.cert is not None
    try:
        made.load_cert_chain(tls.cert, tls.key)
        made.load_verify_locations(tls.ca)
    except (OSError, ssl.SSLError) as error:
        text = error.strerror or str(error)
        raise ConfigError([Problem("share.tls", f"a certificate, its key or `ca` can't be used: {text}")]) from None
    return made


def _secret(share: ShareSection) -> bytes:
    return b"" if share.secret is None else share.secret.get_secret_value().encode()
