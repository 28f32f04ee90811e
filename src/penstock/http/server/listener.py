"""How do new connections come in beside thousands that are busy? Several in every turn of the loop.

uvloop's own server accepts one connection per turn. While 500 streams run, or some hundred requests are answered at
once, a turn takes tens of milliseconds, so the last of 200 new connections waits for seconds before its first byte is
read. Nothing shows that wait: the client sees itself connected. Here one turn accepts up to `ACCEPTS_MAX` connections.
At some 40 µs each that is a few milliseconds, which is also the most that a flood of new connections can cost the
established ones in a turn. Connections accepted in one turn are read in the next; another turn would delay a newcomer's
first byte by everybody's tokens.

If the process is out of file descriptors, new connections wait in the kernel's queue, and a warning is logged.

A load balancer's PROXY header (`proxy_header.py`) is read here, before TLS and before the connection counts, within the
time of a TLS handshake and without keeping anything else. At a unix socket (`unix_socket.py`) there is neither.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Callable, Sequence

    from penstock.http.server.proxy_header import Peer

logger = logging.getLogger(__name__)

UNIX: Final = "unix:"  # before the path of a unix socket, which is its host
ACCEPTS_MAX = 64  # in one turn of the loop
PAUSE_S = 0.5  # after running out of files: by then some connection may have closed
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Brought:
    """A connection that a load balancer brings for somebody."""

    __slots__ = ("peer",)

    def __init__(self, peer: Peer | None) -> None:
        self.peer = peer  # None: the balancer's own connection, or unknown


class Listener:
    """Accepts connections on the listening sockets and starts the protocol (and TLS) on each."""

    def __init__(
        self,
        connection: Callable[[Brought | None], asyncio.Protocol],
        *,
        ssl: tls.SSLContext | None = None,
        begin_timeout_s: Callable[[], float],
        shutdown_timeout_s: float,
        accepts_max: int = ACCEPTS_MAX,
        brings: Callable[[str], bool] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._plain = partial(connection, None)
        self._ssl = ssl
        self._begin_timeout_s = begin_timeout_s  # for a PROXY header, and for a TLS handshake
        self._shutdown_timeout_s = shutdown_timeout_s if ssl else None
        self._accepts_max = accepts_max
        self._brings = brings  # whether the peer at an address sends a PROXY header
        self._beginnings: set[asyncio.Task[None]] = set()  # bounded by the handshake time-out and by open files
        self._pause: asyncio.TimerHandle | None = None
        self.sockets: list[socket.socket] = []
        self.port = 0

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Listen on every address of `host`; an empty `host` means all addresses of this machine. Clients wait in the
        kernel's backlog until `accept`.

        Raises OSError if one of them can't be bound; then none is listened on.
        """
        sockets = await bound(host, port)
        for one in sockets:
            one.listen(backlog)
        self._have(sockets)

    def accept(self) -> None:
        """Accept connections from now on."""
        self._watch()

    def take(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from sockets that are listened on already, maybe by other processes too."""
        self._have(sockets)
        self._watch()

    def _have(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets.extend(sockets)
        self.port = port_of(sockets)
        if sockets[0].family == socket.AF_UNIX:
            self._ssl = None  # no network between

    def close(self) -> None:
        """Stop accepting connections. Those already accepted still start."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        while self.sockets:
            one = self.sockets.pop()
            self._loop.remove_reader(one)
            one.close()

    async def end(self) -> None:
        """Cancel the accepted connections that have not started yet (their TLS handshake is under way)."""
        beginnings = tuple(self._beginnings)
        for task in beginnings:
            task.cancel()
        await asyncio.gather(*beginnings, return_exceptions=True)

    def _watch(self) -> None:
        self._pause = None
        for one in self.sockets:
            self._loop.add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        """Accept waiting connections of one socket, up to `ACCEPTS_MAX` per turn."""
        for _ in range(self._accepts_max):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                if error.errno not in _NO_FILES:
                    raise
                self._wait_for_files(error)
                return
            accepted.setblocking(False)  # noqa: FBT003 - the socket API's own signature
            brings = self._brings is not None and isinstance(address, tuple) and self._brings(address[0])
            if self._ssl is None and not brings:
                self._begin_at_once(accepted)
                continue
            task = self._loop.create_task(self._begin(accepted, address, brings=brings))
            self._beginnings.add(task)
            task.add_done_callback(self._beginnings.discard)

    def _begin_at_once(self, accepted: socket.socket) -> None:
        """Begin a plain HTTP connection.

        A task would take its first step in the next turn, and the connection be read in the one after. So the step is
        taken here, and all that is left to wait for is the loop's `connection_made`, at the beginning of the next turn.
        """
        steps = self._loop.connect_accepted_socket(self._plain, accepted)

        def made(_: object) -> None:
            try:
                steps.send(None)
            except StopIteration:
                pass
            except OSError:
                accepted.close()

        try:
            waiter: asyncio.Future[None] = steps.send(None)
        except OSError:
            accepted.close()
        else:
            waiter.add_done_callback(made)

    async def _begin(self, accepted: socket.socket, address: object, *, brings: bool) -> None:
        """Begin a connection with TLS or a PROXY header."""
        connection = self._connection
        try:
            brought: Brought | None = None
            if brings and (brought := await self._brought(accepted, address)) is None:
                return
            await self._loop.connect_accepted_socket(
                lambda: connection(brought),
                accepted,
                ssl=self._ssl,
                ssl_handshake_timeout=self._begin_timeout_s() if self._ssl is not None else None,
                ssl_shutdown_timeout=self._shutdown_timeout_s,
            )
        except (OSError, TimeoutError, asyncio.CancelledError):  # no TLS, or the client left during the handshake
            accepted.close()

    async def _brought(self, accepted: socket.socket, address: object) -> Brought | None:
        """Read a load balancer's header; None: there is none, and the connection is closed."""
        from penstock.http.server.proxy_header import ProxyHeaderError  # noqa: PLC0415 - off by default

        try:
            async with asyncio.timeout(self._begin_timeout_s()):
                return Brought(await self._header(accepted))
        except ProxyHeaderError as error:
            accepted.close()
            logger.warning(
                "closed a connection from %s, a peer listed in `client_address.proxy_protocol`: %s",
                *(address[0] if isinstance(address, tuple) else address, error),
            )
            return None

    async def _header(self, accepted: socket.socket) -> Peer | None:
        """Read the header, and not a byte more. Returns the client it names; None: the socket's peer."""
        from penstock.http.server import proxy_header  # noqa: PLC0415

        data = b""
        while size := proxy_header.missing(data):
            try:
                more = accepted.recv(size)
            except (BlockingIOError, InterruptedError):
                await self._readable(accepted)
                continue
            if not more:
                raise proxy_header.ProxyHeaderError("closed inside the PROXY header") if data else ConnectionResetError
            data += more
        return proxy_header.read(data)

    async def _readable(self, accepted: socket.socket) -> None:
        readable: asyncio.Future[None] = self._loop.create_future()

        def come() -> None:
            if not readable.done():
                readable.set_result(None)

        self._loop.add_reader(accepted, come)
        try:
            await readable
        finally:
            self._loop.remove_reader(accepted)

    def _wait_for_files(self, error: OSError) -> None:
        for one in self.sockets:
            self._loop.remove_reader(one)
        self._pause = self._loop.call_later(PAUSE_S, self._watch)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        logger.error(
            "new connections must wait: %s (this process may open %d files; `ulimit -n`)", error.strerror, most
        )


async def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of `host`, an empty one meaning all of this machine. OSError: one is taken.

    The host of a unix socket is `unix:/path`; closing it removes its file.
    """
    if host.startswith(UNIX):
        from penstock.http.server.unix_socket import listening_at  # noqa: PLC0415 - most gateways listen on ports

        return [await listening_at(host.removeprefix(UNIX))]
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sockets.append(_bound(family, kind, protocol, address))
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


def port_of(sockets: Sequence[socket.socket]) -> int:
    """Returns the port of bound sockets; 0 for a unix socket."""
    name = sockets[0].getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit this
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)  # noqa: FBT003 - the socket API's own signature
        made.bind(address)
    except OSError as error:
        made.close()
        reason = (error.strerror or str(error)).lower()
        raise OSError(error.errno, f"error while attempting to bind on address {address!r}: {reason}") from None
    return made
