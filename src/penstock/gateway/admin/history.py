"""The last hour in samples a second apart, for the curves.

One ring per curve, 3,600 numbers each, kept as bare ones: as objects they would weigh four times as much. The rings are
made whole at the start, so no memory grows for an hour. A later reader gets the hour thinned: each second of the
last minutes, before that every tenth, as the largest of the ten, so that no spike is lost.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping

from penstock.core.endpoints.roles import Role
from penstock.core.explain.snapshot import EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import SERVING
from penstock.gateway.telemetry.failures import Failures, Kind

SAMPLES_MAX = 3_600
FINE_SAMPLES = 300
COARSE_S = 10
TOKENS_OVER = 10  # samples: streams report their growth in steps, other answers at their ends
RATES = ("sent_per_s", "tokens_per_s", *(f"{kind}_per_s" for kind in Kind))
# NaN, null in JSON, if no stream began; so is `inside` if no engine reports its queue.
TIMES = ("first_token_p50_s", "first_token_p99_s")
CURVES = ("waiting", "inside", "running", "slots", "oldest_s", "kv_max", *RATES, *TIMES)


def inside(snapshot: Snapshot) -> int | None:
    """Return the number of requests queued inside engines; None: no engine reports it."""
    known = [endpoint.engine_waiting for endpoint in snapshot.endpoints if endpoint.engine_waiting is not None]
    return round(sum(known)) if known else None


class History:
    """One sample per tick."""

    def __init__(self) -> None:
        self._rings: dict[str, array[float]] = {name: array("d", bytes(8 * SAMPLES_MAX)) for name in CURVES}
        self._taken = 0  # samples in all: the next one's place in the rings is after as many
        self._last: tuple[float, list[int]] | None = None
        self._tokens: deque[tuple[float, int]] = deque(maxlen=TOKENS_OVER)
        self._rates: dict[str, float] = dict.fromkeys(RATES, 0.0)

    def add(self, snapshot: Snapshot, failures: Failures, now: float, under_way: int = 0) -> None:
        """Take a sample. Rates are over the time since the one before, that of tokens over ten.

        `under_way`: tokens of answers that have not ended, which count from now on.
        """
        sent = sum(endpoint.dispatches_total for endpoint in snapshot.endpoints)
        tokens = under_way + sum([model.prompt_tokens_total + model.output_tokens_total for model in snapshot.models])
        totals = [sent, tokens, *failures.totals.values()]
        if self._last is not None and now > self._last[0]:
            passed_s = now - self._last[0]
            # An endpoint or model that left takes its total along: that is no negative rate.
            deltas = [max(0.0, (total - last) / passed_s) for total, last in zip(totals, self._last[1], strict=True)]
            self._rates = dict(zip(RATES, deltas, strict=True))
            since_s, before = self._tokens[0]
            self._rates["tokens_per_s"] = max(0.0, (tokens - before) / (now - since_s))
        self._tokens.append((now, tokens))
        self._last = (now, totals)
        values = {
            "waiting": float(snapshot.waiting),
            "inside": math.nan if (queued := inside(snapshot)) is None else float(queued),
            "running": float(snapshot.running),
            "slots": float(sum([e.slots for e in answering(snapshot)])),
            "oldest_s": max((band.oldest_wait_s for band in snapshot.bands), default=0.0),
            "kv_max": max((e.kv_usage_believed or 0.0 for e in snapshot.endpoints), default=0.0),
            **self._rates,
            **dict(zip(TIMES, failures.first_tokens_s(now) or (math.nan, math.nan), strict=True)),
        }
        for name, ring in self._rings.items():
            ring[self._taken % SAMPLES_MAX] = round(values[name], 3)
        self._taken += 1

    def latest(self) -> Mapping[str, float]:
        """The last sample; nothing before there is one."""
        return {name: ring[(self._taken - 1) % SAMPLES_MAX] for name, ring in self._rings.items() if self._taken}

    def curves(self) -> dict[str, object]:
        """All curves, oldest first: those of ten seconds, then those of one."""
        samples = {name: self._in_order(ring) for name, ring in self._rings.items()}
        return {
            "coarse_s": COARSE_S,
            "coarse": {name: _coarse(each[:-FINE_SAMPLES]) for name, each in samples.items()},
            "fine": {name: each[-FINE_SAMPLES:] for name, each in samples.items()},
        }

    def _in_order(self, ring: array[float]) -> list[float]:
        """The samples of a ring, oldest first."""
        oldest = self._taken % SAMPLES_MAX if self._taken > SAMPLES_MAX else 0
        return [*ring[oldest : self._taken], *ring[:oldest]]


def answering(snapshot: Snapshot) -> list[EndpointSnapshot]:
    """The endpoints that are there to answer, so that their slots count: nothing new goes to the others."""
    return [e for e in snapshot.endpoints if e.state in SERVING and e.role != Role.PREFILL]


def _coarse(samples: list[float]) -> list[float]:
    skipped = len(samples) % COARSE_S  # the oldest ones, so that groups end where the fine part begins
    return [_largest(samples[at : at + COARSE_S]) for at in range(skipped, len(samples), COARSE_S)]


def _largest(samples: list[float]) -> float:
    return max([sample for sample in samples if not math.isnan(sample)], default=math.nan)
