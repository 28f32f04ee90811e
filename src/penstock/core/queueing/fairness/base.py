"""What a fairness policy decides: how service is counted.

The tree serves the flow that got the least, per weight. A policy says what a request counts for; everything else is
the tree's. So a policy is a few lines, and a new one is one file, one page in docs/policies and one line in the
conformance map.
"""

from __future__ import annotations


class FairnessPolicy:
    """How service is counted."""

    uses_flows: bool = True  #: False: all requests stand in one flow, whoever sent them
    by_request: bool = False  #: each request counts the same

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        """Returns what a request counts for, by what it is estimated to use or was seen to use. Never negative."""
        raise NotImplementedError
