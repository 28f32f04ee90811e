"""How does the gateway check an engine's certificate, and which one does it show to the engine?

Engines inside a cluster often have certificates of a private authority, for a name that is not their address, and some
want a certificate of the gateway (mutual TLS). The files are read at the start and at each reload, so a certificate
that was renewed under its old name is used after `penstock reload`.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from penstock.config import values
from penstock.config.sections.section import Section, setting


class EndpointTls(Section):
    """How `https` is spoken with an endpoint. Without it its certificate is checked by the system's authorities."""

    ca: values.OptionalFile = setting(
        None, "The authorities that may sign its certificate, as a PEM file, instead of the system's."
    )
    cert: values.OptionalFile = setting(
        None, "The certificate chain that the gateway shows to it, as a PEM file. With `key`."
    )
    key: values.OptionalFile = setting(None, "The private key of `cert`, as a PEM file without a password.")
    server_name: values.OptionalHost = setting(
        None, "The name that its certificate has to be for, and that it is asked for (SNI). Default: the host of `url`."
    )
    verify: values.Bool = setting(
        default=True,
        meaning="`false`: any certificate will do, so whoever is between can read and change everything. For tests.",
    )


class TlsFileError(Exception):
    """A file can't be used. `key` is the setting that names it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


def client_context(tls: EndpointTls) -> ssl.SSLContext:
    """Returns what connections to an endpoint are made with. Raises `TlsFileError`."""
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
        raise TlsFileError("ca", "is no PEM file of certificates") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key, password=asked_for_password)
        except HasPasswordError:
            raise TlsFileError("key", "has a password, which nobody is there to type") from None
        except (OSError, ValueError) as error:
            if "KEY_VALUES_MISMATCH" in str(error):
                raise TlsFileError("key", "is the key of another certificate") from None
            raise TlsFileError("cert", "or `key` is no PEM file, or is cut off") from None
    return context


class HasPasswordError(Exception):
    """The key is encrypted. Without this, the start would wait for somebody at the terminal."""


def asked_for_password() -> str:
    """Raise `HasPasswordError`: OpenSSL asks for the password of a key."""
    raise HasPasswordError
