"""Routing: the endpoint whose KV cache holds the longest prefix of the prompt, by the configured source.

The same choice as `prefix`, but from another source (`routing.locality`): the engines' KV events, LMCache's look-ups,
or our history if nothing better is configured or known.
"""

from __future__ import annotations

from penstock.core.routing.policies.prefix import PrefixAware


class KvAware(PrefixAware):
    """Longest cached prefix first."""
