"""The certificate that callers' connections are encrypted with (`tls`), and its renewal."""

from __future__ import annotations

import ssl

from penstock.config.load import ConfigError, Problem
from penstock.config.model import Settings
from penstock.config.sections.endpoint_tls import HasPasswordError, asked_for_password


class Certificate:
    """The certificate of connections. A listening server keeps its context, so a new one is loaded into that."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    def check(self, settings: Settings) -> None:
        """Raises ConfigError if the settings' files can't be used."""
        _context(settings)

    def follow(self, settings: Settings) -> None:
        """Use these settings' certificate for new connections."""
        if self._context is not None and settings.tls.cert:
            _load(self._context, settings)

    def context(self, settings: Settings) -> ssl.SSLContext | None:
        """Returns the context to listen with; None: plain HTTP. Raises as `check` does."""
        self._context = _context(settings)
        return self._context


def _context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls.cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        _load(context, settings)
    except HasPasswordError:
        raise ConfigError([Problem("tls.key", "is encrypted; use a key without a passphrase")]) from None
    except (OSError, ssl.SSLError) as error:
        raise ConfigError([Problem("tls", f"the certificate or its key can't be used: {_why(error)}")]) from None
    return context


def _why(error: OSError) -> str:
    """OpenSSL's error in plain words."""
    text = error.strerror or str(error)
    if "KEY_VALUES_MISMATCH" in text:
        return "the key belongs to another certificate"
    return "one of the two files is not a PEM file, or is truncated" if "PEM lib" in text else text


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    assert settings.tls.cert is not None
    context.load_cert_chain(settings.tls.cert, settings.tls.key, password=asked_for_password)
