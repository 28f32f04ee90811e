"""How do the commands that talk to a running gateway reach it? One request, one JSON answer."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

URL_DEFAULT = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 20


class GatewayError(Exception):
    """The gateway can't be reached, or refuses. The message says it all."""


class AdminClient:
    """A gateway, and the right to ask it."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """What the gateway answers; a `GatewayError` where it does not, or not with success."""
        data = None if body is None else json.dumps(body).encode()
        if not self._url.startswith(("http://", "https://")):
            raise GatewayError(f"{self._url} is not a URL with http:// or https://")
        request = urllib.request.Request(self._url + path, data, method=method)  # noqa: S310 (checked above)
        if data is not None:
            request.add_header("content-type", "application/json")
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                raise GatewayError(_message(error)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise GatewayError(f"cannot reach {self._url}: {reason}") from None
        except ValueError:
            raise GatewayError(f"{self._url}{path} does not answer with JSON: is it a Penstock gateway?") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--url` and `--token`, the same for all such commands."""
    parser.add_argument(
        "--url",
        default=os.environ.get("PENSTOCK_URL", URL_DEFAULT),
        help=f"the gateway (PENSTOCK_URL; default {URL_DEFAULT})",
    )
    parser.add_argument(
        "--token", default=os.environ.get("PENSTOCK_ADMIN_TOKEN"), help="admin token (PENSTOCK_ADMIN_TOKEN)"
    )


def client(args: argparse.Namespace) -> AdminClient:
    return AdminClient(args.url, args.token)


def _message(error: urllib.error.HTTPError) -> str:
    """The gateway's own words, where it is one."""
    try:
        return str(json.loads(error.read(1 << 20))["error"]["message"])
    except (ValueError, LookupError, TypeError, OSError, http.client.HTTPException):
        return f"answered {error.code} {error.reason}"
