"""Operation: who may look at the gateway and change it while it runs?"""

from __future__ import annotations

from penstock.settings import values
from penstock.settings.section import Section, setting


class Admin(Section):
    """Who may look at `/admin` and change things there.

    Where neither token is set, `/admin` is open on a loopback address, and answers 403 on any other.
    """

    token: values.OptionalSecret = setting(
        None, "The token for everything under `/admin`. Sent as `Authorization: Bearer …`. Never logged or shown."
    )
    read_token: values.OptionalSecret = setting(None, "A token that may look, but change nothing.")
