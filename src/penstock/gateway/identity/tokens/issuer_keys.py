"""With which keys does an issuer sign? Fetched, kept, and fetched again, beside the requests.

A key set is small and changes rarely: it is fetched at start, every five minutes, and when a token names an unknown
key, at most once in ten seconds. While the issuer is unreachable, known keys stay valid for a day; then all
tokens are refused. No request waits for a fetch: a token that cannot be judged yet is refused with Retry-After of a
second.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import jwt
import msgspec

from penstock import clock
from penstock.config.sections.tokens import JwtSection
from penstock.http.client.pool import Upstream, UpstreamException

logger = logging.getLogger(__name__)

REFRESH_S = 300.0  # a revoked key is valid so long at most, and a new one is usually known before it is used
STALE_S = 86_400.0  # after the last fetch: an issuer may be down over a night, and its revoked keys count no longer
REFETCH_S = 10.0  # between two fetches that tokens caused
RETRY_S, RETRY_S_MAX = 1.0, 60.0  # after a fetch that failed: doubled each time
FETCH_S = 10.0
BYTES_MAX = 1 << 20  # of a key set; real ones have a few kilobytes
KEYS_MAX = 100
TRIED_MAX = 16  # keys that one token is held against, at some 50 µs each; issuers without names publish two or three
FIRST_S = 3.0  # the start waits so long for the first keys
DISCOVERY = "/.well-known/openid-configuration"
_PUBLIC = ("kty", "n", "e", "crv", "x", "y")  # of a key; a set may wrongly publish private parts
_KINDS = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}  # of keys, and the algorithms that each is for


class KeysError(Exception):
    """The keys can't be had. The text is the reason."""


class IssuerKey(msgspec.Struct, frozen=True):
    """A public key and its algorithms."""

    key: object
    kind: str
    algorithm: str | None  #: the only one, if the issuer names one
    name: str | None = None  #: its `kid`, which is optional

    def suits(self, algorithm: str) -> bool:
        """True if a token signed by this algorithm may be held against the key."""
        return algorithm.startswith(_KINDS[self.kind]) and self.algorithm in (None, algorithm)


class IssuerKeys:
    """The keys of one issuer, as last fetched."""

    def __init__(self, settings: JwtSection, *, now: Callable[[], float] = clock.now) -> None:
        self.settings = settings
        self.version = 0  #: grows with each change of the keys
        self._now = now
        self._keys: list[IssuerKey] = []
        self._raw: object = None
        self._fetched_s: float | None = None  # None: never yet
        self._tried_s: float | None = None
        self._failing: str | None = None
        self._looking = False
        self._looked = asyncio.Event()  # once, with any result
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def first(self) -> None:
        """Wait until the first fetch is over, well or not, but not for long."""
        try:
            await asyncio.wait_for(self._looked.wait(), FIRST_S)
        except TimeoutError:
            logger.warning("no keys of %s within %g s; its tokens get 503 until they arrive", self._name, FIRST_S)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def are_of(self, settings: JwtSection) -> bool:
        """True if these settings mean the same keys."""
        return (settings.issuer, settings.jwks_url) == (self.settings.issuer, self.settings.jwks_url)

    # --- for tokens -------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """True while there are keys that are not too old to be believed."""
        return self._fetched_s is not None and self._now() <= self._fetched_s + STALE_S

    def fitting(self, name: str | None, algorithm: str) -> list[IssuerKey]:
        """Returns the keys that may have signed a token, at most `TRIED_MAX`; `name`: its `kid`.

        Those of that name, or, as names are optional (RFC 7517 4.5), those without one if no key has it. A token
        without a name may be of any key.
        """
        named = self._keys if name is None else [key for key in self._keys if key.name == name]
        listed = named or [key for key in self._keys if key.name is None]
        return [key for key in listed if key.suits(algorithm)][:TRIED_MAX]

    def look_again(self) -> bool:
        """Note that a key is not among those known. True if it may be among those of a fetch that is on its way."""
        if self._looking or self._asked.is_set():
            return True
        if self._failing is not None or self._tried_s is None:
            return True  # fetching is being retried, so the key may still turn up
        if self._now() < self._tried_s + REFETCH_S:
            return False
        self._asked.set()
        return True

    # --- fetching ---------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.settings.jwks_url or self.settings.issuer

    async def _run(self) -> None:
        failures = 0
        while True:
            self._asked.clear()
            self._looking = True
            try:
                self._take(await fetch(self.settings))
                failures = 0
            except KeysError as error:
                failures = min(failures + 1, 16)
                self._failed(str(error))
            finally:
                self._looking, self._tried_s = False, self._now()
                self._looked.set()
            wait_s = min(RETRY_S * 2.0 ** (failures - 1), RETRY_S_MAX) if failures else REFRESH_S
            try:
                await asyncio.wait_for(self._asked.wait(), wait_s * random.uniform(0.8, 1.2))
            except TimeoutError:
                continue

    def _take(self, document: object) -> None:
        keys = read_keys(document)
        if self._failing is not None:
            logger.info("the keys of %s are available again", self._name)
        if document != self._raw:
            self._raw, self._keys = document, keys
            self.version += 1
        self._failing, self._fetched_s = None, self._now()

    def _failed(self, why: str) -> None:
        if why != self._failing:
            known = "the known keys stay valid" if self.usable else "its tokens cannot be verified"
            logger.warning("cannot fetch the keys of %s: %s; %s", self._name, why, known)
        self._failing = why


async def fetch(settings: JwtSection) -> object:
    """Returns the issuer's key set, as JSON. Raises `KeysError` if it can't be had."""
    url = settings.jwks_url
    if url is None:
        found = await _get(settings.issuer.rstrip("/") + DISCOVERY)
        if not isinstance(found, dict) or found.get("issuer") != settings.issuer:
            raise KeysError(f"{settings.issuer.rstrip('/')}{DISCOVERY} does not name `{settings.issuer}` as the issuer")
        url = found.get("jwks_uri")
        if not isinstance(url, str) or (settings.issuer.startswith("https:") and not url.startswith("https:")):
            raise KeysError("the issuer's configuration has no trusted `jwks_uri`")
    return await _get(url)


async def _get(url: str) -> object:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        upstream = Upstream(f"{parts.scheme}://{parts.netloc}")
    except ValueError as error:
        raise KeysError(str(error)) from None
    headers = [(b"accept", b"application/json"), (b"user-agent", b"penstock")]
    try:
        answer = await upstream.fetch("GET", target, headers=headers, timeout_s=FETCH_S, bytes_max=BYTES_MAX)
    except UpstreamException as failure:
        raise KeysError(f"{url}: {failure}") from None
    finally:
        upstream.close()
    if answer.status != 200:
        raise KeysError(f"{url} answered {answer.status}")
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeysError(f"{url} is not JSON") from None


def read_keys(document: object) -> list[IssuerKey]:
    """Returns the public keys for signatures in a key set. Others are passed over.

    Raises `KeysError` if there is none; the known keys then stay.
    """
    listed = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise KeysError(f"the key set has no list of at most {KEYS_MAX} `keys`")
    keys: list[IssuerKey] = []
    for one in listed:
        if not isinstance(one, dict) or one.get("kty") not in _KINDS or (one.get("use") or "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK({name: one[name] for name in _PUBLIC if name in one}).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        name, algorithm = one.get("kid"), one.get("alg")
        keys.append(
            IssuerKey(
                key,
                str(one["kty"]),
                algorithm if isinstance(algorithm, str) else None,
                name if isinstance(name, str) else None,
            )
        )
    if not keys:
        raise KeysError("the key set has no public key for signatures")
    return keys
