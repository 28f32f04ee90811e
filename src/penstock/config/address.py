"""Addresses: reading and normalising `host:port`, URLs, paths and networks.

Addresses are text in one normal form: `host:port`, `10.0.0.0/8`, and `scheme://host[:port][/prefix]` with the host in
lower case and no trailing slash, so that two spellings of one engine are recognised as one. An engine at a unix socket
is `unix:/path[:/prefix]`, and a unix socket to listen on `unix:/path`.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from penstock.config.problems import Refused, show

PORT_MAX = 65_535
NOWHERE = "127.0.0.1:0"  # a `listen` that no endpoint's address equals
HERE = frozenset({"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"})  # this machine, as a client reaches it
UNIX = "unix:"
SOCKET_BYTES_MAX = 107  # of a socket's path, by the kernel
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?", re.ASCII)
_URL = re.compile(r"[!-~]{1,2048}", re.ASCII)
_SOCKET = re.compile(r"(/[\w.@+=~-]+)+", re.ASCII)
_NEVER_IN_URL = frozenset('"<>\\^`{|}')
_API = re.compile(r"/v1(/((chat/)?completions|responses|messages|embeddings|models))?$|/(health|metrics)$")
_BROKEN_SCHEME = re.compile(r"(https?):?/+|(https?):(?=\D)")
_DEFAULT_PORT = {"http": 80, "https": 443}


def listen_address(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PORT_MAX:
        raise Refused(f"{show(value)} has no host", f"write `127.0.0.1:{value}`, or `:{value}` for every interface")
    if not isinstance(value, str):
        raise Refused(f"expected `host:port`, found {show(value)}")
    host, colon, port = value.rpartition(":")
    if "://" in value:
        raise Refused(f"{show(value)} is a URL; expected `host:port`", f"write {show(value.partition('://')[2])}")
    if not colon:
        hint = f"127.0.0.1:{value}" if _is_port(value) else f"{value}:8080"
        raise Refused(f"{show(value)}: expected `host:port`", f"write {show(hint)}")
    if not _is_port(port):
        raise Refused(f"{show(value)}: the port has to be a number from 0 (choose a free one) to {PORT_MAX}")
    if ":" in host and not host.startswith("["):
        raise Refused(f"{show(value)}: an IPv6 address needs brackets", f"write {show(f'[{host}]:{port}')}")
    if re.fullmatch(r"\[[0-9.]+\]", host):
        host = host[1:-1]  # a templated address, such as a pod's, may be of either family
    if host and not _is_host(host):
        raise Refused(f"{show(value)}: expected a host name or an IP address before the port")
    return f"{host}:{int(port)}"


def socket_address(value: object) -> str:
    """Returns an address to listen on: `host:port` or `unix:/path`. Raises `Refused`."""
    if not isinstance(value, str) or not value.startswith((UNIX, "/")):
        return listen_address(value)
    if value.startswith("/"):
        raise Refused(f"{show(value)}: expected `host:port` or `unix:/path`", f"write `{UNIX}{value}`")
    path, colon, _ = _socket_of(value)
    if colon:
        raise Refused(f"{show(value)}: only a path follows `{UNIX}`", f"write `{UNIX}{path}`")
    return UNIX + path


def split_listen(listen: str) -> tuple[str, int]:
    """Returns host and port of a checked `listen`. An empty host means every interface; IPv6 has no brackets. The host
    of a unix socket is all of its `unix:/path`.
    """
    if listen.startswith(UNIX):
        return listen, 0
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def is_everywhere(host: str) -> bool:
    """Returns True if an address to listen on is reachable from other machines."""
    if host == "localhost" or host.startswith(UNIX):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def endpoint_url(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Refused(f"expected a URL, found {show(value)}", "for example http://gpu-0:8000")
    if not _URL.fullmatch(value) or _NEVER_IN_URL & set(value):
        raise Refused(f"{show(value)} is not a URL: expected ASCII characters without spaces")
    if value.startswith(UNIX):
        return _unix_url(value)
    parts = _split(value)
    if parts is None or parts.hostname is None or not _is_host(_bracketed(parts.hostname)):
        raise Refused(f"{show(value)} is not a URL with a host", _with_scheme(value))
    if parts.username is not None:
        raise Refused("credentials in a URL are not used", "give the engine's key as `api_key`")
    return _based(value, f"{parts.scheme}://{_authority(parts)}", parts.path)


def _unix_url(value: str) -> str:
    """Returns `unix:/path[:/prefix]` in normal form. Raises `Refused`."""
    path, colon, prefix = _socket_of(value)
    if colon and not prefix.startswith("/"):
        raise Refused(f"{show(value)}: expected a path after the socket's", f"write `{UNIX}{path}:/{prefix}`")
    return _based(value, UNIX + path, prefix).removesuffix(":")


def _socket_of(value: str) -> tuple[str, str, str]:
    """Returns the socket's path, a colon if more follows, and that; `unix:///path` is the same. Raises `Refused`."""
    path, colon, rest = value.removeprefix(UNIX).partition(":")
    if path.startswith("///"):
        path = path[2:]
    if not _SOCKET.fullmatch(path):
        message = "expected the absolute path of a socket, of letters, digits and `_.@+=~-`"
        raise Refused(f"{show(value)}: {message}", "for example unix:/run/vllm.sock")
    if len(path) > SOCKET_BYTES_MAX:
        raise Refused(f"{show(value)}: a socket's path has at most {SOCKET_BYTES_MAX} characters")
    return path, colon, rest


def _based(value: str, origin: str, path: str) -> str:
    """Returns the URL of an engine at `origin`, of which its own `path` is the prefix. Raises `Refused`."""
    if "?" in value or "#" in value:
        raise Refused(f"{show(value)}: a URL here has no query and no fragment")
    prefix = path.rstrip("/")
    between = ":" if origin.startswith(UNIX) else ""
    if (api := _API.search(prefix)) is not None:
        start = f"{origin}{between}{prefix[: api.start()]}".removesuffix(":")
        raise Refused(f"{show(value)}: Penstock appends the whole path, `/v1` included", f"write `{start}`")
    return f"{origin}{between}{prefix}"


def root_path(value: object) -> str:
    """A prefix of paths, or none."""
    if not isinstance(value, str):
        raise Refused(f"expected a path, found {show(value)}", "for example /vllm")
    path = value.rstrip("/")
    if not path:
        return ""
    if not path.startswith("/"):
        raise Refused(f"{show(value)}: a path begins with a slash", f"write {show('/' + path)}")
    if not _URL.fullmatch(path) or _NEVER_IN_URL & set(path) or {"", ".", ".."} & set(path[1:].split("/")):
        raise Refused(f"{show(value)} is not a path: expected parts of ASCII characters, with slashes between")
    if "?" in path or "#" in path or "%" in path:
        raise Refused(f"{show(value)}: a path here has no query, no fragment and no escapes")
    return path


def network(value: object) -> str:
    """Returns an IP address or network in normal form. Raises `Refused`."""
    if not isinstance(value, str):
        raise Refused(f"expected an IP address or a network such as 10.0.0.0/8, found {show(value)}")
    try:
        found = ipaddress.ip_network(value.strip(), strict=False)
        exact = "/" not in value or ipaddress.ip_interface(value.strip()).ip == found.network_address
    except ValueError:
        raise Refused(f"{show(value)} is not an IP address or a network such as 10.0.0.0/8") from None
    if not exact:
        raise Refused(f"{show(value)} is an address within a network", f"write `{found}`")
    return str(found)


def host_and_port(url: str) -> str:
    """Returns `gpu-0:80` for `http://gpu-0`, `x.sock` for `unix:/run/x.sock`: the default name of an endpoint."""
    if url.startswith(UNIX):
        return url.split(":")[1].rpartition("/")[2]
    parts = urlsplit(url)
    return f"{_bracketed(parts.hostname or '')}:{parts.port or _DEFAULT_PORT[parts.scheme]}"


def same_place(url: str) -> tuple[str, str]:
    """Returns a value that is equal for two URLs of one engine: with or without the default port, by a name or number
    of this machine, by HTTP or HTTPS (a port speaks one of them).
    """
    if url.startswith(UNIX):
        _, socket, *prefix = url.split(":")
        return UNIX + socket, "".join(prefix)
    host, _, port = host_and_port(url).rpartition(":")
    return f"{'localhost' if host in HERE else host}:{port}", urlsplit(url).path


def is_own(url: str, listen: str) -> bool:
    """Whether an endpoint is where this gateway listens, as far as addresses show: at a checked `listen`."""
    host, port = split_listen(listen)
    if host.startswith(UNIX):
        return url == host
    parts = urlsplit(url)
    theirs = parts.hostname or ""
    own = theirs == host or (theirs in HERE and (host in ("", "::") or host in HERE))
    return own and (parts.port or _DEFAULT_PORT.get(parts.scheme)) == port


def which_port(url: str) -> str:
    """Returns a question after the port, for an engine that is not reached at a URL without one; otherwise nothing."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.port is not None:
        return ""
    return f" (port 80, because the URL names none: {parts.scheme}://{parts.netloc}:8000{parts.path}?)"


def _split(value: str) -> SplitResult | None:
    """Returns the parts of an http(s) URL; None if `value` is no such URL. Raises `Refused` if its port is unusable."""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        if "://" in value and "[" not in value:
            raise Refused(f"{show(value)}: the port has to be a number from 1 to {PORT_MAX}") from None
        return None
    if "://" not in value:
        return None
    if parts.scheme not in _DEFAULT_PORT:
        raise Refused(f"{show(value)}: expected a URL with http://, https:// or unix:/path")
    if port == 0:
        raise Refused(f"{show(value)}: the port has to be a number from 1 to {PORT_MAX}")
    return parts


def _with_scheme(value: str) -> str | None:
    """Returns a suggestion for a URL whose scheme is missing (`gpu-0:8000`) or broken (`http:/gpu-0`), or which has a
    variable of a shell in it; None if more is wrong with it.
    """
    if "$" in value:
        return "write `${NAME}` for a variable of the environment"
    broken = _BROKEN_SCHEME.match(value)
    rest = f"{broken[1] or broken[2]}://{value[broken.end() :]}" if broken else f"http://{value}"
    try:
        return None if "://" in value else f"write `{endpoint_url(rest)}`"
    except Refused:
        return None


def _authority(parts: SplitResult) -> str:
    host = _bracketed(parts.hostname or "")
    return host if parts.port is None else f"{host}:{parts.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_port(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= 5 and int(value) <= PORT_MAX


def _is_host(host: str) -> bool:
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
            return host.endswith("]") and "%" not in host
        if re.fullmatch(r"[0-9.]+", host):
            ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return host.startswith("[") or bool(_HOST.fullmatch(host))


def cannot_listen(where: str, error: OSError) -> str:
    """Returns the error text for an address that can't be listened on."""
    return f"cannot listen on {where}: {error.strerror or error}"
