"""Which tokens is a prompt made of? Asked of an engine, which alone knows for sure, and remembered.

No request has to wait for the answer. Queries are bounded in number and time; an engine that has no `/tokenize`, or
fails, is skipped for a while. The cache is bounded by tokens, and keyed by the query.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import msgspec

from penstock.gateway.kv_cache.tokenize_request import LATE_S, Question
from penstock.gateway.openai.splice import set_in_bytes
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import UpstreamException

logger = logging.getLogger(__name__)

OPEN_MAX = 64  # concurrent queries: more would slow the engines down
TIMEOUT_S = 1.0
TOKENS_MAX = 8_000_000  # remembered: 32 MB
ANSWER_BYTES_MAX = 32 << 20
REST_S = 2.0  # after a failure or a late answer; doubles with each one after it
REST_S_MAX = 120.0  # and at once if there is no such path


class _Answer(msgspec.Struct):
    tokens: list[int]


_decode = msgspec.json.Decoder(_Answer).decode


class Tokenizer:
    """Asks one of the endpoints that `choose` names for a model, in order of preference."""

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        choose: Callable[[str], Iterable[str]],
        now: Callable[[], float],
        tokens_max: int = TOKENS_MAX,
    ) -> None:
        self._targets = targets
        self._choose = choose
        self._now = now
        self._tokens_max = tokens_max
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._known_tokens = 0
        self._open = 0
        self._resting: dict[
            str, tuple[float, float]
        ] = {}  # endpoint -> until when it is not asked, and how long that is

    def known(self, question: Question) -> array[int] | None:
        """Returns the tokens if they are remembered; None: they have to be asked for."""
        if question.tokens is not None:
            return question.tokens
        key = _key(question)
        tokens = self._known.get(key)
        if tokens is not None:
            self._known.move_to_end(key)
        return tokens

    def endpoint(self, model: str) -> str | None:
        """Returns an endpoint to ask now, or None."""
        if self._open >= OPEN_MAX:
            return None
        now = self._now()
        able = (name for name in self._choose(model) if name in self._targets)
        return next((name for name in able if self._resting.get(name, (0.0,))[0] <= now), None)

    def endpoint_removed(self, name: str) -> None:
        """Forget whether the endpoint `name` is left alone for a while."""
        self._resting.pop(name, None)

    async def ask(self, question: Question, endpoint: str) -> array[int] | None:
        """Returns the tokens; None without an answer."""
        target = self._targets.get(endpoint)
        if target is None:
            return None
        body = set_in_bytes(question.body, {"model": msgspec.json.encode(target.name_of(question.model))})
        headers = [(b"content-type", b"application/json"), *target.own_headers()]
        self._open += 1
        late = asyncio.get_running_loop().call_later(LATE_S, self._rest, endpoint, "it is too slow")
        rested = self._resting.get(endpoint)
        try:
            answer = await target.upstream.fetch(
                "POST",
                "/tokenize",
                headers=headers,
                body=body,
                timeout_s=TIMEOUT_S,
                bytes_max=ANSWER_BYTES_MAX,
            )
            if answer.status == 200:
                tokens = array("I", _decode(answer.body).tokens)
                self._remember(_key(question), tokens)
                if self._resting.get(endpoint) == rested:
                    self._resting.pop(endpoint, None)
                return tokens
            unable = answer.status in (401, 403, 404, 405, 501) and b"NotFoundError" not in answer.body
            if unable or answer.status >= 500:
                self._rest(endpoint, f"status {answer.status}", REST_S_MAX if unable else REST_S)
        except UpstreamException as failure:
            self._rest(endpoint, str(failure))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
            self._rest(endpoint, "its answer makes no sense")
        finally:
            late.cancel()
            self._open -= 1
        return None

    def _rest(self, endpoint: str, why: str, at_least_s: float = REST_S) -> None:
        now = self._now()
        until_s, rest_s = self._resting.get(endpoint, (0.0, 0.0))
        if until_s > now:
            return  # asked before it was to be left alone
        rest_s = min(max(2 * rest_s, at_least_s), REST_S_MAX)
        logger.info("%s: no tokenize calls for %g s: %s", endpoint, rest_s, why)
        self._resting[endpoint] = (now + rest_s, rest_s)

    def _remember(self, key: bytes, tokens: array[int]) -> None:
        if key in self._known or len(tokens) > self._tokens_max:
            return
        self._known[key] = tokens
        self._known_tokens += len(tokens) + 64  # the entry itself counts too
        while self._known_tokens > self._tokens_max:
            _, dropped = self._known.popitem(last=False)
            self._known_tokens -= len(dropped) + 64


def _key(question: Question) -> bytes:
    return blake2b(question.body, digest_size=16).digest()
