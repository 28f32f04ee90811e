"""Estimates of a request's tokens, corrected by reported usage.

No tokenizer stands in the request path. Text is its bytes times a ratio learned per tenant from the usage that engines
report: code, prose and scripts differ several times over, and one tenant must not spoil the estimates of others. Token
ids are counted. A picture, a sound, a video or a document counts by the piece, never by the size of its data: base64
reflects compression, and an address nothing. The tokens of a piece differ by model, so they are learned per model and
kind: usage beyond the text is divided among the pieces in proportion to their expectation.

An answer's length is the moving average of the same tenant's answers from the same model. A tenant that was never seen
gets the model's averages. `max_tokens` is only a cap: clients set it to the maximum, so it predicts nothing.

The rules of thumb, until a model's own usage is known. The initial values are those of small pieces rather than
averages, because a first burst is estimated by them. A guess of twice the truth halves the requests sent to an engine
(0.56 of the throughput was measured); one of half of it sends a few prompts too many, until the first usage arrives.

* Picture: 765. Of 1,024 × 1,024 pixels, OpenAI's models make 765 tokens (170 for each tile of 512, and 85) or 1,024 (a
  patch of 32 each), Anthropic's 1,398 (pixels / 750), Qwen2-VL 1,369 (a patch of 28 each); LLaVA-1.5 makes 576 of any
  (platform.openai.com/docs/guides/images-vision, docs.anthropic.com "Vision", the models' own cards).
* Sound: 20 seconds at 25 tokens a second (Qwen2-Audio: 40 ms a frame; Gemini says 32, Ultravox 6).
* Video: 10 seconds at 100 tokens a second (ai.google.dev/gemini-api/docs/tokens, low resolution; 263 otherwise).
* Document: a page of text, 3,000 characters; pages as pictures are 1,500 to 3,000 (docs.anthropic.com "PDF support").
"""

from __future__ import annotations

from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.request import Contents, Estimate, Request

BYTES_PER_TOKEN = 4.0  # English prose in JSON; a first guess
BYTES_PER_TOKEN_MOST = 8.0  # of prose, code and their JSON; more is blanks
PICTURE_TOKENS = 765.0
SOUND_TOKENS = 500.0
VIDEO_TOKENS = 1000.0
DOCUMENT_TOKENS = 750.0
OUTPUT_TOKENS = 16.0  # a low guess: too little is charged as an answer grows, too much given back only at its end
LEARNING_RATE = 0.1  # about the last twenty answers
PIECE_LEARNING_RATE = 0.2  # of the whole; with much text, whose estimate errs, pieces show little
PROMPT_TOKENS_MAX = 1_048_576  # the longest context that is served
PIECE_TOKENS_MAX = 131_072.0  # an hour of sound or video
KEYS_MAX = 10_000  # tenants and models remembered; the ones not used for the longest time are forgotten

_PIECES = (
    ("pictures", PICTURE_TOKENS),
    ("sounds", SOUND_TOKENS),
    ("videos", VIDEO_TOKENS),
    ("documents", DOCUMENT_TOKENS),
)


def contents_of(request: Request) -> Contents:
    """Returns the contents of a request's body; text by default."""
    return request.contents or Contents(request.body_bytes)


def least_prompt_tokens(contents: Contents) -> float:
    """Returns a prompt's minimal tokens: short bodies, mostly braces, teach too low a ratio."""
    return contents.text_bytes / BYTES_PER_TOKEN_MOST + contents.token_ids


class _Average:
    """A moving average. It may well be 0: an embedding has no answer."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class _Averages:
    """Averages by key, of which those are forgotten that learned nothing for the longest time."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: BoundedMap[tuple[str, str], _Average] = BoundedMap(KEYS_MAX)

    def get(self, tenant: str, model: str, default: float) -> float:
        """The tenant's own, or all tenants', or the default."""
        found = self._known.get((tenant, model)) or self._known.get(("", model))
        return default if found is None else found.value

    def learn(
        self, key: tuple[str, str], value: float, rate: float = LEARNING_RATE, before: float | None = None
    ) -> None:
        """A value was seen. The first one counts in full, unless there is something to begin `before` it."""
        known = self._known.renewed(key)
        if known is not None:
            known.value += rate * (value - known.value)
        else:
            self._known.set(key, _Average(value if before is None else before + rate * (value - before)))


class Estimator:
    """Learned ratios, sizes and lengths."""

    def __init__(self) -> None:
        self._tokens_per_byte = _Averages()
        self._piece_tokens = _Averages()  # by the model and the kind of piece
        self._output_tokens = _Averages()

    def estimate(self, tenant: str, model: str, contents: Contents, output_tokens_max: int | None) -> Estimate:
        """Returns the estimated tokens of a request's prompt and answer; at least one each."""
        prompt = self._text_tokens(tenant, model, contents) + contents.token_ids + self._pieces_tokens(model, contents)
        output = self._output_tokens.get(tenant, model, OUTPUT_TOKENS)
        if output_tokens_max is not None:
            output = min(output, output_tokens_max)
        prompt_max = PROMPT_TOKENS_MAX * max(1, contents.inputs)
        return Estimate(min(max(1, round(prompt)), prompt_max), max(1, round(output * contents.answers)))

    def learn_prompt(self, tenant: str, model: str, contents: Contents, prompt_tokens: int) -> None:
        """Learn from the `prompt_tokens` that an engine reported for such a prompt."""
        if prompt_tokens <= 0:
            return
        pieces_tokens = self._pieces_tokens(model, contents)
        if pieces_tokens > 0.0:
            text_tokens = self._text_tokens(tenant, model, contents) + contents.token_ids
            factor = max(0.0, prompt_tokens - text_tokens) / pieces_tokens
            rate = PIECE_LEARNING_RATE * pieces_tokens / (pieces_tokens + text_tokens)
            for kind, at_first in _PIECES:
                if _count(contents, kind):
                    tokens = factor * max(1.0, self._piece_tokens.get(kind, model, at_first))
                    self._piece_tokens.learn((kind, model), min(tokens, PIECE_TOKENS_MAX), rate, at_first)
        elif contents.text_bytes > 0 and not contents.token_ids:
            # Bodies of a few bytes are mostly braces; a ratio above one token per byte is not text.
            ratio = min(prompt_tokens / contents.text_bytes, 1.0)
            self._tokens_per_byte.learn((tenant, model), ratio)
            self._tokens_per_byte.learn(("", model), ratio)

    def learn_output(self, tenant: str, model: str, output_tokens: int, answers: int = 1) -> None:
        """Learn that `answers` complete answers were `output_tokens` long together."""
        if not answers:
            return
        each = output_tokens / answers
        self._output_tokens.learn((tenant, model), each)
        self._output_tokens.learn(("", model), each)

    def _text_tokens(self, tenant: str, model: str, contents: Contents) -> float:
        return contents.text_bytes * self._tokens_per_byte.get(tenant, model, 1.0 / BYTES_PER_TOKEN)

    def _pieces_tokens(self, model: str, contents: Contents) -> float:
        if not (contents.pictures or contents.sounds or contents.videos or contents.documents):
            return 0.0
        tokens = 0.0
        for kind, at_first in _PIECES:
            if count := _count(contents, kind):
                tokens += count * max(1.0, self._piece_tokens.get(kind, model, at_first))
        return tokens


def _count(contents: Contents, kind: str) -> int:
    count: int = getattr(contents, kind)
    return count
