"""The PROXY protocol: the client's address, sent by a load balancer. It comes before anything else.

The header begins each connection, unencrypted even before TLS: a line of text (version 1), or a block of bytes (version
2); see https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. Anybody who reaches the port could send one, so it
is read only from peers named in the settings, which have to send it; its presence is never guessed. That is why no
client can have one taken for its request, or the other way round.

The bytes after the header belong to others, such as TLS, so no more than the header is taken from the socket: `missing`
is the number of bytes that may be read. A header is bounded in size here, and in time by the listener.
"""

from __future__ import annotations

import ipaddress
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
LINE_BYTES_MAX: Final = 107  # of version 1, by the specification
REST_BYTES_MAX: Final = 2048  # of version 2: addresses take 216 at most, the rest is balancers' additions
_BEGIN: Final = len(SIGNATURE)  # the shortest line has 15 bytes
_FIXED: Final = 16
_LINE_BEGIN: Final = b"PROXY "
_ADDRESS_BYTES: Final = {1: 12, 2: 36, 3: 216}  # by family: IPv4, IPv6, unix; addresses and ports of both ends
_LOCAL, _PROXIED = 0, 1

Peer = tuple[str, int]


class ProxyHeaderError(Exception):
    """These bytes are not a header. This connection is useless."""


def missing(data: bytes) -> int:
    """How many more bytes may be read, none of which is behind the header's end; 0: `data` is a whole header.

    Raises `ProxyHeaderError` as soon as `data` can't become one.
    """
    if data[:_BEGIN] == SIGNATURE[: len(data)]:
        return _missing_of_block(data)
    if data[:6] != _LINE_BEGIN[: len(data)]:
        raise ProxyHeaderError("no PROXY protocol header")
    if len(data) < _BEGIN:
        return _BEGIN - len(data)
    if data.endswith(b"\r\n"):
        return 0
    if b"\n" in data or len(data) >= LINE_BYTES_MAX:
        raise ProxyHeaderError("a PROXY line without its end")
    return 1 if data.endswith(b"\r") or len(data) == LINE_BYTES_MAX - 1 else 2


def read(data: bytes) -> Peer | None:
    """Returns the client's address and port from a complete header; None if it has none, as for a health check.

    Raises `ProxyHeaderError` if the header contradicts itself.
    """
    return _of_block(data) if data.startswith(SIGNATURE) else _of_line(data)


def _missing_of_block(data: bytes) -> int:
    if len(data) < _BEGIN:
        return _BEGIN - len(data)
    if len(data) < _FIXED:
        return _FIXED - len(data)
    size = int.from_bytes(data[14:16], "big")
    if size > REST_BYTES_MAX:
        raise ProxyHeaderError(f"a PROXY header of {size} bytes")
    return _FIXED + size - len(data)


def _of_block(data: bytes) -> Peer | None:
    version, command = data[12] >> 4, data[12] & 15
    family, transport = data[13] >> 4, data[13] & 15
    if version != 2 or command not in (_LOCAL, _PROXIED) or family > 3 or transport > 2:
        raise ProxyHeaderError("a PROXY header of an unknown version")
    if command == _LOCAL or family == 0 or transport == 0:
        return None  # the balancer's own connection, or unknown: the socket's peer counts
    rest = data[_FIXED:]
    if len(rest) < _ADDRESS_BYTES[family]:
        raise ProxyHeaderError("a PROXY header too short for its addresses")
    if family == 3:
        return None
    size = 4 if family == 1 else 16
    return _plain(ipaddress.ip_address(rest[:size])), int.from_bytes(rest[2 * size : 2 * size + 2], "big")


def _of_line(data: bytes) -> Peer | None:
    words = data[:-2].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return None  # ignoring the rest
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyHeaderError("a malformed PROXY line")
    version = 4 if words[1] == "TCP4" else 6
    source, _ = _address(words[2], version), _address(words[3], version)
    port, _ = _port(words[4]), _port(words[5])
    return _plain(source), port


def _address(word: str, version: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(word)
    except ValueError:
        raise ProxyHeaderError("a PROXY line without addresses") from None
    if address.version != version or "%" in word:
        raise ProxyHeaderError("a PROXY line with addresses of another kind")
    return address


def _port(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= 5) or (word[0] == "0" and word != "0"):
        raise ProxyHeaderError("a PROXY line without ports")
    if (port := int(word)) > 65_535:
        raise ProxyHeaderError("a PROXY line without ports")
    return port


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Returns an address as text; IPv4 inside IPv6 becomes IPv4, so that a client has one address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
