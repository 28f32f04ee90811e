"""Which of several models gets a request for one name, so that each gets its share by weight?

Smooth weighted round robin: each choice adds every model's weight to its credit, the highest credit wins and pays the
sum. So after any number of requests each model's count is within two of its exact share (a greedy rule's error grows
with the logarithm of the number of models), and choices do not come in runs. A request with a session goes where the
session's name hashes to (weighted rendezvous hashing: the same model in every process, and few sessions move when
weights change); it is charged like any other, so requests without one make up for it.

A model that does not work has no share while another one does. Its sessions go where they hash to among the others, and
come back with it, because nothing is remembered of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

CREDIT_MAX = 100  # in rounds: how far sessions may unbalance a split before the others stop making up for it


class Split:
    """One name that stands for several models. `weights` are at least 0, and not all 0."""

    __slots__ = ("_credits", "weights")

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights = dict(weights)
        self._credits = dict.fromkeys(self.weights, 0)

    @property
    def main(self) -> str:
        """The model with the largest share."""
        return max(self.weights, key=lambda name: self.weights[name])

    def pick(self, session: str | None, *prefers: Callable[[str], bool], left: str | None = None) -> str:
        """Returns the model for the next request, or (`left`) for one that the model `left` could not take.

        Of the models, those have no share that each of `prefers`, in turn, is false of, while it is true of others.
        """
        shares = {name: weight for name, weight in self.weights.items() if weight > 0}
        for prefer in prefers:
            if len(shares) > 1:
                shares = {name: weight for name, weight in shares.items() if prefer(name)} or shares
        whole = sum(shares.values())
        balance = self._credits
        if left is None:
            for name, weight in shares.items():
                balance[name] = min(balance[name] + weight, CREDIT_MAX * whole)
        else:  # its turn was counted, and goes to another model
            balance[left] = min(balance[left] + whole, CREDIT_MAX * whole)
        if session is None:
            chosen = max(shares, key=lambda name: balance[name])
        else:
            chosen = max(shares, key=lambda name: _score(session, name, shares[name]))
        balance[chosen] = max(balance[chosen] - whole, -CREDIT_MAX * whole)
        return chosen


def _score(session: str, name: str, weight: int) -> float:
    digest = hashlib.blake2b(f"{len(name)}:{name}{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return -weight / math.log((int.from_bytes(digest, "big") + 1) / (2**64 + 1))
