"""Calls to a running gateway with urllib: one request, one JSON answer."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import penstock
from penstock.config.address import UNIX
from penstock.gateway.admin import own_token

URL_DEFAULT = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
_GIVE_IT = "Give it by --token or PENSTOCK_ADMIN_TOKEN."
_NOT_ITS_TOKEN = (
    "the gateway has an admin token of its own: the one found in the state folder is that of another, or of an earlier "
    f"one on this port. {_GIVE_IT}"
)


class GatewayError(Exception):
    """The gateway is unreachable or refuses. `status` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AdminClient:
    """Calls the admin API of one gateway."""

    def __init__(self, url: str, token: str | None, *, is_found: bool = False) -> None:
        """`is_found`: nobody gave the token, it was in the state folder."""
        self._url = base(url)
        self._is_found = is_found and token is not None
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Returns the gateway's JSON answer. Raises `GatewayError` if it fails or takes longer than `timeout_s`."""
        data, headers = None, self._headers
        if body is not None:
            data, headers = json.dumps(body).encode(), {**headers, "content-type": "application/json"}
        try:
            with reach(self._url + path, method, data, headers, timeout_s=timeout_s) as answer:
                return read_json(answer)
        except GatewayError as error:
            if self._is_found and error.status == HTTPStatus.UNAUTHORIZED:
                raise GatewayError(_NOT_ITS_TOKEN, error.status) from None
            raise


def reach(url: str, method: str, data: Any, headers: Mapping[str, str], *, timeout_s: float) -> Any:
    """Returns the gateway's answer, to be read and closed. Raises `GatewayError`.

    `data` is the body: bytes, or pieces whose total length is in `headers`.
    """
    if not url.startswith(("http://", "https://", f"{UNIX}/")):
        given = url.partition("/admin/")[0].partition("/v1/")[0]
        bare = given and not given.startswith("unix") and not any(sign in given for sign in ("//", ":/"))
        hint = f" (did you mean `http://{given}`?)" if bare else ""
        raise GatewayError(f"{url} is not a URL with http://, https:// or unix:/path{hint}")
    is_unix = url.startswith(UNIX)
    http_url = "http://localhost" + url.split(":", 2)[2] if is_unix else url
    request = urllib.request.Request(http_url, data, dict(headers), method=method)  # noqa: S310 (checked above)
    try:
        answer = _opener(url).open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise GatewayError(_message(error, url), error.code) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        hint = ""
        if isinstance(reason, ConnectionRefusedError | FileNotFoundError):
            reason = "connection refused" if isinstance(reason, ConnectionRefusedError) else "there is no such socket"
            hint = " (is a gateway running there? --url or PENSTOCK_URL names another)"
        elif isinstance(reason, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted here, {reason.verify_message}"
            hint = " (SSL_CERT_FILE names a file with its authority)"
        elif isinstance(reason, ssl.SSLError):
            reason, hint = f"no TLS is spoken there, {reason.reason}", f" (did you mean `http{_origin(url)[5:]}`?)"
        elif isinstance(reason, http.client.RemoteDisconnected | ConnectionResetError) and url.startswith("http:"):
            hint = f" (is it TLS? then `https{_origin(url)[4:]}`)"
        raise GatewayError(f"cannot reach {_origin(url)}: {reason}{hint}") from None
    answer.url = url
    return answer


def base(url: str) -> str:
    """Returns what paths are appended to: the URL, and behind the path of a unix socket a colon."""
    url = url.rstrip("/")
    return f"{url}:" if url.startswith(UNIX) and url.count(":") == 1 else url


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Bypasses the environment's proxies for a gateway on this machine, because the request carries the token."""
    if url.startswith(UNIX):
        at_socket = _AtSocket(url.split(":", 2)[1])
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), at_socket, _NoRedirects)
    proxies: dict[str, str] | None = {} if own_token.is_here(urlsplit(url).hostname) else None
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirects)


class _AtSocket(urllib.request.HTTPHandler):
    """Sends requests to the unix socket at `path`, whatever host they name."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, /, *, timeout: float | None = None, **_: object) -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(host, timeout=timeout)
        made.sock = socket.socket(socket.AF_UNIX)  # so that it makes none itself
        made.sock.settimeout(timeout)
        try:
            made.sock.connect(self._path)
        except OSError:
            made.close()
            raise
        return made


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because another server would get the token."""

    def redirect_request(self, *_: Any) -> None:
        return None


def read_json(answer: Any) -> Any:
    """Returns an answer as JSON. Raises `GatewayError` if it is not JSON or breaks off."""
    try:
        return json.loads(answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:
        raise GatewayError(f"{_origin(answer.url)} broke off: {error}") from None
    except ValueError:
        raise GatewayError(f"{answer.url} does not answer with JSON: is it a Penstock gateway?") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--url` and `--token`, for all commands that call the admin API."""
    parser.add_argument(
        "--url",
        default=os.environ.get("PENSTOCK_URL", URL_DEFAULT),
        help=f"the gateway, http://HOST:PORT or unix:/PATH (PENSTOCK_URL; default {URL_DEFAULT})",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get("PENSTOCK_ADMIN_TOKEN"),
        help="admin token (PENSTOCK_ADMIN_TOKEN; default: the generated token of a gateway on this machine)",
    )


def add_verb(
    verbs: Any, name: str, meaning: str, description: str = "", *, names: str = "", **defaults: object
) -> argparse.ArgumentParser:
    """Returns the parser of a verb that calls the admin API, with `--url`, `--token` and `--json`.

    `names`: of what the verb is about, as its first argument. `defaults` are set in the parsed arguments.
    """
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=meaning, description=description or f"{meaning.capitalize()}.", allow_abbrev=False
    )
    if names:
        verb.add_argument("name", metavar="NAME", help=names)
    add_arguments(verb)
    add_output(verb)
    verb.set_defaults(**defaults)
    return verb


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, and `-o json` and `-o wide` as other tools have them: `args.json`, `args.wide`."""
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "-o",
        "--output",
        choices=["json", "wide"],
        action=_Output,
        dest="wide",
        default=False,
        help="`json`: as --json; `wide`: tables as wide as their columns",
    )


class _Output(argparse.Action):
    def __call__(self, _: object, args: argparse.Namespace, value: object, __: object = None) -> None:
        args.json, args.wide = args.json or value == "json", value == "wide"


def client(args: argparse.Namespace) -> AdminClient:
    """Returns a client with the token of `args`, or with the generated one of a gateway on this machine."""
    if args.token:
        return AdminClient(args.url, args.token)
    return AdminClient(args.url, own_token.find(args.url, os.environ), is_found=True)


def asked(args: argparse.Namespace, work: Callable[[AdminClient, argparse.Namespace], int]) -> int:
    """Returns the exit code of `work`; 1 if the gateway refuses or can't be reached, with the reason on stderr."""
    try:
        return work(client(args), args)
    except GatewayError as error:
        print(f"penstock: {error}", file=sys.stderr)
    except KeyError as error:
        print(f"penstock: {lacks(error)}", file=sys.stderr)
    return 1


def lacks(error: KeyError) -> str:
    """Returns the words for an answer without a member that has to be there."""
    version = f"penstock {penstock.__version__}; --json prints what it says"
    return f"the gateway's answer has no {error}: it is of another version than this command ({version})"


def show(args: argparse.Namespace, answer: Any, *lines: str) -> int:
    """Print an answer as lines, or as JSON with `--json`. Returns 0."""
    for line in [json.dumps(answer)] if args.json else lines:
        print(line)
    return 0


def _message(error: urllib.error.HTTPError, url: str) -> str:
    """Returns the message of a refusal, or the status if it is not from a gateway."""
    try:
        told = json.loads(error.read(1 << 20))["error"]
        message, code = str(told["message"]), str(told.get("code"))
    except (ValueError, LookupError, TypeError, AttributeError, OSError, http.client.HTTPException):
        return f"{_origin(url)} answered {error.code} {error.reason}: is it a Penstock gateway?"
    if code == "path_not_found" and "/admin/" in url:
        given, _, path = url.partition("?")[0].rpartition("/admin/")
        more = "" if path == "state" else f"; one of another version may lack /admin/{path}"
        if given.rstrip(":") != _origin(url):
            more = f"; without a `root_path` the URL ends at {_origin(url)}"
        return f"{_origin(url)} has no /admin: if `admin.listen` gives it a separate address, use that{more}"
    if error.code == HTTPStatus.UNAUTHORIZED:
        return f"{message} {_GIVE_IT}"
    return message


def _origin(url: str) -> str:
    if url.startswith(UNIX):
        return ":".join(url.split(":")[:2])
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
