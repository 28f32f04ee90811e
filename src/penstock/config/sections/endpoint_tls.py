"""TLS to engines: checking their certificates, and the gateway's own.

Engines often have certificates of a private authority, for a name other than their address, and some require a client
certificate (mutual TLS). The files are read at start and at each reload, so a certificate renewed in place is used
after `penstock reload`.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from penstock.config import values
from penstock.config.sections.section import Section, setting


class EndpointTls(Section):
    """TLS to an endpoint. Without it the system's authorities check its certificate."""

    ca: values.OptionalFile = setting(None, "Authorities (PEM) instead of the system's.")
    cert: values.OptionalFile = setting(None, "The gateway's client certificate chain (PEM). With `key`.")
    key: values.OptionalFile = setting(None, "The private key of `cert` (PEM), without a passphrase.")
    server_name: values.OptionalHost = setting(
        None, "The name expected in its certificate and sent as SNI. Default: the host of `url`."
    )
    verify: values.Bool = setting(
        default=True,
        meaning="`false`: accept any certificate, so traffic can be read and changed in transit. For tests.",
    )


class TlsFileError(Exception):
    """A file can't be used. `key` is the setting that names it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


def client_context(tls: EndpointTls) -> ssl.SSLContext:
    """Returns the TLS context for an endpoint. Raises `TlsFileError`."""
    for key in ("ca", "cert", "key"):
        path = getattr(tls, key)
        if path is not None:
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise TlsFileError(key, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        raise TlsFileError("ca", "is not a PEM file of certificates") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key, password=asked_for_password)
        except HasPasswordError:
            raise TlsFileError("key", "is encrypted; use a key without a passphrase") from None
        except (OSError, ValueError) as error:
            if "KEY_VALUES_MISMATCH" in str(error):
                raise TlsFileError("key", "belongs to another certificate") from None
            raise TlsFileError("cert", "or `key` is not a PEM file, or is truncated") from None
    return context


class HasPasswordError(Exception):
    """The key is encrypted. Without this, OpenSSL would prompt at the terminal."""


def asked_for_password() -> str:
    """Raise `HasPasswordError`: OpenSSL asks for a passphrase."""
    raise HasPasswordError
