"""After a hold, does each tenant get its fair share again?

Whatever the hold was (a pause, a limit, endpoints that were away): from `SETTLES_S` after the release, each tenant's
part of the service is within a tenth of its fair share. A released tenant does not catch up at the others' expense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SETTLES_S = 2.0  # what was sent before the release ends meanwhile
WINDOWS_S = (10.0, 20.0, 40.0)  # the first is the strictest: it holds little more than a hundred requests
OFF_MAX = 0.1  # of a fair share


def check_release(
    sent: Iterable[tuple[float, str, float]], released_s: float, shares: Mapping[str, float]
) -> dict[float, dict[str, float]]:
    """Assert that the `shares` of all tenants (their sum is 1) are kept, and return what each got, by window.

    `sent`: when each request was sent, of which tenant, and what it cost.
    """
    since_s, found = released_s + SETTLES_S, dict[float, dict[str, float]]()
    sent = list(sent)
    for window_s in WINDOWS_S:
        got = dict.fromkeys(shares, 0.0)
        for at_s, tenant, cost in sent:
            if since_s <= at_s < since_s + window_s:
                got[tenant] += cost
        total = sum(got.values())
        assert total > 0.0, f"nothing was sent within {window_s} s"
        found[window_s] = {tenant: service / total for tenant, service in got.items()}
        for tenant, share in shares.items():
            part = found[window_s][tenant]
            assert abs(part - share) <= OFF_MAX * share, f"{tenant} got {part:.3f} in {window_s} s, and is due {share}"
    return found
