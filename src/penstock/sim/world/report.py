"""Figures of a run: percentiles, Jain's fairness index, and priced tokens.

A prompt token has the price 1 and a completion token 2, about their cost in an engine's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the value that a `share` of the values do not exceed, interpolated; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def jain(values: Sequence[float]) -> float:
    """Returns Jain's fairness index: 1 if all values are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else math.nan


def ratio(value: float, base: float) -> float:
    return value / base if base else math.nan


def priced(prompt_tokens: float, output_tokens: float) -> float:
    return PROMPT_PRICE * prompt_tokens + OUTPUT_PRICE * output_tokens
