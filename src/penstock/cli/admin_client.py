"""How do commands reach a running gateway? With urllib: each call is one request and one JSON answer."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.gateway.admin import own_token

URL_DEFAULT = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 20


class GatewayError(Exception):
    """The gateway can't be reached, or refuses. The message is for people; `status` is 0 if nothing was answered."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AdminClient:
    """Calls the admin API of one gateway, with a token if there is one."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Returns the gateway's JSON answer. Raises GatewayError if there is none within `timeout_s`, or no success."""
        data, headers = None, self._headers
        if body is not None:
            data, headers = json.dumps(body).encode(), {**headers, "content-type": "application/json"}
        with reach(self._url + path, method, data, headers, timeout_s=timeout_s) as answer:
            return read_json(answer)


def reach(url: str, method: str, data: Any, headers: Mapping[str, str], *, timeout_s: float) -> Any:
    """Returns the gateway's answer, to be read and closed. Raises `GatewayError` if there is none, or no success.

    `data` is the body: bytes, or pieces whose total length is in `headers`.
    """
    if not url.startswith(("http://", "https://")):
        raise GatewayError(f"{url} is not a URL with http:// or https://")
    request = urllib.request.Request(url, data, dict(headers), method=method)  # noqa: S310 (checked above)
    try:
        return _opener(url).open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise GatewayError(_message(error), error.code) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise GatewayError(f"cannot reach {_origin(url)}: {reason}") from None


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Asks a gateway on this machine directly, whatever proxy the environment names: the token goes along."""
    proxies: dict[str, str] | None = {} if own_token.is_here(urlsplit(url).hostname) else None
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirects)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a gateway sends none for these calls, and another server would get the token."""

    def redirect_request(self, *_: Any) -> None:
        return None


def read_json(answer: Any) -> Any:
    """Returns an answer as JSON. Raises `GatewayError` if it is no JSON, or breaks off."""
    try:
        return json.loads(answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:
        raise GatewayError(f"{_origin(answer.url)} broke off: {error}") from None
    except ValueError:
        raise GatewayError(f"{answer.url} does not answer with JSON: is it a Penstock gateway?") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--url` and `--token`, the same for all commands that call the admin API."""
    parser.add_argument(
        "--url",
        default=os.environ.get("PENSTOCK_URL", URL_DEFAULT),
        help=f"the gateway (PENSTOCK_URL; default {URL_DEFAULT})",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get("PENSTOCK_ADMIN_TOKEN"),
        help="admin token (PENSTOCK_ADMIN_TOKEN; default: that of a gateway on this machine, where it made its own)",
    )


def client(args: argparse.Namespace) -> AdminClient:
    """Returns a client with the token of `args`, or else with the gateway's own token if it runs on this machine."""
    return AdminClient(args.url, args.token or own_token.find(args.url, os.environ))


def _message(error: urllib.error.HTTPError) -> str:
    """The message of a refusal, if a gateway answered it, else the bare status."""
    try:
        told = json.loads(error.read(1 << 20))["error"]
        message, code = str(told["message"]), str(told.get("code"))
    except (ValueError, LookupError, TypeError, AttributeError, OSError, http.client.HTTPException):
        return f"answered {error.code} {error.reason}"
    if code == "path_not_found" and urlsplit(error.url).path.startswith("/admin/"):
        return f"{_origin(error.url)} has no /admin: where `admin.listen` gives it an address of its own, name that"
    return message


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
