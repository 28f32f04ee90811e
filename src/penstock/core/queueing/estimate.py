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

from typing import Final

from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.request import Contents, Estimate, Request

BYTES_PER_TOKEN = 4.0  # English prose in JSON; a first guess
TOKENS_PER_BYTE: Final = 1.0 / BYTES_PER_TOKEN
UNKNOWN: Final = -1.0
BYTES_PER_TOKEN_MOST = 8.0  # of prose, code and their JSON; more is blanks
PICTURE_TOKENS = 765.0
SOUND_TOKENS = 500.0
VIDEO_TOKENS = 1000.0
DOCUMENT_TOKENS = 750.0
OUTPUT_TOKENS: Final = 16.0  # a low guess: too little is charged as an answer grows, too much given back at its end
LEARNING_RATE: Final = 0.1  # about the last twenty answers
PIECE_LEARNING_RATE = 0.2  # of the whole; with much text, whose estimate errs, pieces show little
PROMPT_TOKENS_MAX: Final = 1_048_576  # the longest context that is served
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


class _Learned:
    """The moving averages of a tenant's requests for a model, or of all tenants'; below 0: nothing learned."""

    __slots__ = ("output_tokens", "tokens_per_byte")

    def __init__(self) -> None:
        self.tokens_per_byte = UNKNOWN
        self.output_tokens = UNKNOWN  # may well be 0: an embedding has no answer


class Estimator:
    """Learned ratios, sizes and lengths. Those are forgotten that learned nothing for the longest time."""

    def __init__(self) -> None:
        self._learned: BoundedMap[tuple[str, str], _Learned] = BoundedMap(KEYS_MAX)  # of all tenants: ""
        self._piece_tokens: BoundedMap[tuple[str, str], float] = BoundedMap(KEYS_MAX)  # by the model and kind of piece

    def estimate(self, tenant: str, model: str, contents: Contents, output_tokens_max: int | None) -> Estimate:
        """Returns the estimated tokens of a request's prompt and answer; at least one each."""
        own, output = self._learned.get((tenant, model)), UNKNOWN
        per_byte = UNKNOWN
        if own is not None:
            per_byte, output = own.tokens_per_byte, own.output_tokens
        if (per_byte < 0.0 or output < 0.0) and (others := self._learned.get(("", model))) is not None:
            per_byte = others.tokens_per_byte if per_byte < 0.0 else per_byte
            output = others.output_tokens if output < 0.0 else output
        if output < 0.0:
            output = OUTPUT_TOKENS
        if output_tokens_max is not None and output > output_tokens_max:
            output = float(output_tokens_max)
        prompt = contents.text_bytes * (per_byte if per_byte >= 0.0 else TOKENS_PER_BYTE) + contents.token_ids
        if contents.pictures or contents.sounds or contents.videos or contents.documents:
            prompt += self._pieces_tokens(model, contents)
        prompt_tokens = min(max(1, round(prompt)), PROMPT_TOKENS_MAX * max(1, contents.inputs))
        return Estimate(prompt_tokens, max(1, round(output * contents.answers)))

    def learn(self, tenant: str, model: str, contents: Contents, prompt_tokens: int, output_tokens: int) -> None:
        """Learn from the tokens that an engine reported for such a prompt and for all its answers together.

        `prompt_tokens` 0: not reported.
        """
        ratio = UNKNOWN
        if prompt_tokens > 0:
            if contents.pictures or contents.sounds or contents.videos or contents.documents:
                self._learn_pieces(tenant, model, contents, prompt_tokens)
            elif contents.text_bytes > 0 and not contents.token_ids:
                # Bodies of a few bytes are mostly braces; a ratio above one token per byte is not text.
                ratio = min(prompt_tokens / contents.text_bytes, 1.0)
        answers = contents.answers
        if ratio < 0.0 and not answers:
            return
        for key in ((tenant, model), ("", model)):
            learned = self._learned.renewed_or(key, _Learned)
            if ratio >= 0.0:
                known = learned.tokens_per_byte
                learned.tokens_per_byte = ratio if known < 0.0 else known + LEARNING_RATE * (ratio - known)
            if answers:
                known, length = learned.output_tokens, output_tokens / answers
                learned.output_tokens = length if known < 0.0 else known + LEARNING_RATE * (length - known)

    def _learn_pieces(self, tenant: str, model: str, contents: Contents, prompt_tokens: int) -> None:
        """Divide the tokens beyond the text among the pieces, in proportion to their expectation."""
        pieces_tokens = self._pieces_tokens(model, contents)
        text_tokens = contents.text_bytes * self._tokens_per_byte(tenant, model) + contents.token_ids
        factor = max(0.0, prompt_tokens - text_tokens) / pieces_tokens
        rate = PIECE_LEARNING_RATE * pieces_tokens / (pieces_tokens + text_tokens)
        for kind, at_first in _PIECES:
            if _count(contents, kind):
                known = self._piece_tokens.get((kind, model))
                before = at_first if known is None else known
                tokens = min(factor * max(1.0, before), PIECE_TOKENS_MAX)
                self._piece_tokens.set((kind, model), before + rate * (tokens - before))

    def _tokens_per_byte(self, tenant: str, model: str) -> float:
        for key in ((tenant, model), ("", model)):
            learned = self._learned.get(key)
            if learned is not None and learned.tokens_per_byte >= 0.0:
                return learned.tokens_per_byte
        return TOKENS_PER_BYTE

    def _pieces_tokens(self, model: str, contents: Contents) -> float:
        tokens = 0.0
        for kind, at_first in _PIECES:
            if count := _count(contents, kind):
                known = self._piece_tokens.get((kind, model))
                tokens += count * max(1.0, at_first if known is None else known)
        return tokens


def _count(contents: Contents, kind: str) -> int:
    count: int = getattr(contents, kind)
    return count
