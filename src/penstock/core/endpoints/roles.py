"""An endpoint's role in disaggregated prefill: prefill, decode or both.

Most endpoints do both. One labelled `role: prefill` computes prompts and hands them over; one labelled `role: decode`
takes them over and answers. If the first also has a `bootstrap_port`, both get the request at once and meet there
(SGLang's form); otherwise the second gets it when the first is done (vLLM's). A request is routed to the endpoint that
computes its prompt; with a prefill endpoint, a decode endpoint is leased too (`dispatch/disaggregation.py`). An
indivisible request goes to an endpoint that does both, or to a decode endpoint, which can compute prompts too, also
while no prefill endpoint is in service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.endpoints.endpoint import Endpoint

LABELS = ("role", "llm-d.ai/role")  # the second is llm-d's label
BOOTSTRAP_LABEL = "bootstrap_port"
PORT_MAX = 65_535
MODELS_MAX = 1_000  # remembered by name: callers may make names up


class Role(StrEnum):
    """An endpoint's part of a request."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


def role_of(labels: Mapping[str, str]) -> Role:
    """Returns the role in an endpoint's labels; an unknown word counts as unlabelled."""
    said = next((labels[name] for name in LABELS if name in labels), "")
    return Role(said) if said in Role.__members__.values() else Role.BOTH


def bootstrap_port_of(labels: Mapping[str, str]) -> int | None:
    """Returns the port at which decode endpoints fetch from a prefill endpoint. None: known after its first answer."""
    said = labels.get(BOOTSTRAP_LABEL, "") if role_of(labels) is Role.PREFILL else ""
    return int(said) if said.isdecimal() and said.isascii() and 0 < int(said[:6]) <= PORT_MAX else None


def one_sided(roles_by_model: Mapping[str, Iterable[Role]]) -> dict[str, str]:
    """Returns a sentence for each model with endpoints of only one role."""
    found: dict[str, str] = {}
    for model, played in sorted(roles_by_model.items()):
        roles = frozenset(played)
        if Role.PREFILL in roles and Role.DECODE not in roles:
            found[model] = "has `role: prefill` endpoints and none with `role: decode`: " + (
                "they are not used" if Role.BOTH in roles else "nothing can be answered"
            )
        elif Role.DECODE in roles and Role.PREFILL not in roles:
            found[model] = "has `role: decode` endpoints and none with `role: prefill`: they compute prompts themselves"
    return found


class Roles:
    """The roles in one pool. `any` is false without roles, and then nothing else is called."""

    def __init__(self) -> None:
        self.any = False
        self._endpoints: tuple[Endpoint, ...] = ()
        self._stages: dict[str, frozenset[Role]] = {}  # by model: the roles that are in service

    def changed(self, endpoints: Iterable[Endpoint]) -> None:
        """Look at the roles again: `endpoints` came, went, or are in or out of service."""
        self._endpoints = tuple(endpoints)
        self.any = any(e.role is not Role.BOTH for e in self._endpoints)
        self._stages.clear()

    def in_service(self, model: str) -> frozenset[Role]:
        """Returns the roles that endpoints in service play for the model."""
        stages = self._stages.get(model)
        if stages is None:
            if len(self._stages) >= MODELS_MAX:
                self._stages.clear()
            stages = frozenset(e.role for e in self._endpoints if e.in_service and e.serves(model))
            self._stages[model] = stages
        return stages

    def computes(self, endpoint: Endpoint, model: str, *, whole: bool) -> bool:
        """True if an endpoint may compute a prompt for the model; `whole`: of a request that is not divided."""
        if endpoint.role is Role.BOTH:
            return True
        if endpoint.role is Role.PREFILL:
            return not whole and Role.DECODE in self.in_service(model)
        return whole or Role.PREFILL not in self.in_service(model)
