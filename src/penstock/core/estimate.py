"""What will a request cost: tokens guessed before they are known, and corrected by what was true.

No tokenizer stands in the request path. A prompt's tokens are its bytes times a ratio that is learned from the usage
that engines report, for each tenant: code, prose and scripts differ several times over, and one tenant's must not spoil
the estimates of others. An answer's length is the moving average of the same tenant's answers from the same model. A
tenant that was never seen gets the model's averages. `max_tokens` is only a cap: clients set it to whatever is allowed,
so as a prediction it is worthless.
"""

from __future__ import annotations

from penstock.core.request import Estimate

BYTES_PER_TOKEN = 4.0  # English prose in JSON; a first guess
OUTPUT_TOKENS = 128.0  # a chat answer; a first guess
LEARNING_RATE = 0.1  # about the last twenty answers
PROMPT_TOKENS_MAX = 131_072  # a long context; a body that seems longer holds an image or a sound
KEYS_MAX = 10_000  # tenants and models remembered; the ones not used for the longest time are forgotten


class _Average:
    """Averages by key, bounded, forgetting whom it has not heard of for the longest time."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], float] = {}

    def get(self, tenant: str, model: str, default: float) -> float:
        """The tenant's own, else all tenants', else the default. It may well be 0: an embedding has no answer."""
        own = self._values.get((tenant, model))
        return self._values.get(("", model), default) if own is None else own

    def learn(self, key: tuple[str, str], value: float) -> None:
        values = self._values
        before = values.get(key)
        if before is None:
            values[key] = value
        else:
            del values[key]  # to the end
            values[key] = before + LEARNING_RATE * (value - before)
        if len(values) > KEYS_MAX:
            del values[next(iter(values))]


class Estimator:
    """Learned ratios and lengths."""

    def __init__(self) -> None:
        self._tokens_per_byte = _Average()
        self._output_tokens = _Average()

    def estimate(self, tenant: str, model: str, body_bytes: int, output_tokens_max: int | None) -> Estimate:
        """A guess for one request; at least one token each."""
        ratio = self._tokens_per_byte.get(tenant, model, 1.0 / BYTES_PER_TOKEN)
        output = self._output_tokens.get(tenant, model, OUTPUT_TOKENS)
        if output_tokens_max is not None:
            output = min(output, output_tokens_max)
        return Estimate(min(max(1, round(body_bytes * ratio)), PROMPT_TOKENS_MAX), max(1, round(output)))

    def learn_prompt(self, tenant: str, model: str, body_bytes: int, prompt_tokens: int) -> None:
        """An engine said how many tokens a prompt of this size was."""
        if body_bytes > 0 and prompt_tokens > 0:
            # Bodies of a few bytes are mostly braces; a ratio above one token per byte is not text.
            ratio = min(prompt_tokens / body_bytes, 1.0)
            self._tokens_per_byte.learn((tenant, model), ratio)
            self._tokens_per_byte.learn(("", model), ratio)

    def learn_output(self, tenant: str, model: str, output_tokens: int) -> None:
        """An answer was complete at this length."""
        self._output_tokens.learn((tenant, model), float(output_tokens))
        self._output_tokens.learn(("", model), float(output_tokens))
