"""Access to the API server: address, credential and trusted certificates.

Inside a cluster every pod finds all this in its environment and in files mounted into it. Tokens are renewed while we
run, so the token file is read for every request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

from penstock.config.sections.discovery import ClusterAccount
from penstock.gateway.endpoints.discovery.base import SourceError
from penstock.http.client.pool import Headers

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_BYTES_MAX = 64 << 10
NAMESPACE_DEFAULT = "default"


class Access:
    """Address, certificates and credentials of one API server."""

    def __init__(self, settings: ClusterAccount, env: Mapping[str, str], *, account: Path = ACCOUNT) -> None:
        """Raises `SourceError` if neither the settings nor the environment name a server."""
        self._token_file = Path(settings.token_file) if settings.token_file else None
        self._ca_file = settings.ca_file
        self.namespace = settings.namespace or _namespace(account)
        if settings.server is not None:
            self.server = settings.server
            return
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise SourceError("`server` is not given, and this is not a pod of a cluster")
        self.server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._token_file = account / "token"
        self._ca_file = str(account / "ca.crt")

    def tls(self) -> ssl.SSLContext | None:
        """Returns the TLS context for the server; None for plain HTTP.

        Raises `SourceError` if the certificates to trust can't be read.
        """
        if not self.server.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SourceError(f"{self._ca_file} can't be used as certificates: {error}") from None

    async def headers(self) -> Headers:
        """Returns the credential headers, with the current token. Raises `SourceError` without one."""
        token = None
        if self._token_file is not None:
            token = await asyncio.to_thread(self._read_token, self._token_file)
        headers: Headers = [(b"accept", b"application/json"), (b"user-agent", b"penstock")]
        if token:
            headers.append((b"authorization", b"Bearer " + token.encode()))
        return headers

    def _read_token(self, path: Path) -> str:
        try:
            with path.open(encoding="ascii") as file:
                return file.read(TOKEN_BYTES_MAX).strip()
        except (OSError, ValueError) as error:
            raise SourceError(f"the token in {path} can't be read: {error}") from None


def _namespace(account: Path) -> str:
    try:
        return (account / "namespace").read_text("ascii").strip() or NAMESPACE_DEFAULT
    except (OSError, ValueError):
        return NAMESPACE_DEFAULT
