"""The interface of a fairness policy: how service is counted.

The tree serves the flow that got the least, per weight. A policy returns the cost of a request; everything else is the
tree's. So a policy is a few lines, and a new one is one file, one page in docs/policies and one line in the conformance
map.
"""

from __future__ import annotations


class FairnessPolicy:
    """How service is counted."""

    uses_flows: bool = True  #: False: all requests are one flow
    by_request: bool = False  #: each request counts the same

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        """Returns the cost of a request by its estimated or actual use. Never negative."""
        raise NotImplementedError
