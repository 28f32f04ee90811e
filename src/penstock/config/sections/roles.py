"""Roles of endpoints in the settings: prefill and decode endpoints come in pairs.

Labels are free and endpoints may be added later, so these are warnings, not errors.
"""

from __future__ import annotations

from penstock.config.model import EndpointSection, Settings
from penstock.core.endpoints.roles import BOOTSTRAP_LABEL, LABELS, Role, bootstrap_port_of, one_sided, role_of

_ANY = ""  # the models that endpoints are asked for


def role_warnings(settings: Settings) -> list[str]:
    """Returns warnings about roles, for `penstock check` and at start."""
    warnings = []
    roles: dict[str, list[Role]] = {}
    for index, endpoint in enumerate(settings.endpoints):
        said = next((endpoint.labels[name] for name in LABELS if name in endpoint.labels), None)
        if said is not None and said not in list(Role):
            warnings.append(
                f"endpoints[{index}].labels.role: `{said}` is none of prefill, decode, both; it counts as both"
            )
        warnings += _meeting_warnings(index, endpoint)
        for model in (_ANY,) if endpoint.models == "auto" else endpoint.models:
            roles.setdefault(model, []).append(role_of(endpoint.labels))
    if settings.discovery:
        return warnings  # discovered endpoints bring labels of their own
    if _ANY in roles:  # these may serve any model, so all roles count together
        roles = {_ANY: [role for played in roles.values() for role in played]}
    for model, what in one_sided(roles).items():
        warnings.append(f"model `{model}` {what}" if model else f"the model {what}")
    return warnings


def _meeting_warnings(index: int, endpoint: EndpointSection) -> list[str]:
    said, where = endpoint.labels.get(BOOTSTRAP_LABEL), f"endpoints[{index}].labels.{BOOTSTRAP_LABEL}"
    if said is not None and bootstrap_port_of(endpoint.labels) is None:
        prefills = role_of(endpoint.labels) is Role.PREFILL
        return [f"{where}: `{said}` is not a port" if prefills else f"{where} means nothing without `role: prefill`"]
    if said is None and role_of(endpoint.labels) is Role.PREFILL and endpoint.engine == "sglang":
        return [f"{where} is missing: SGLang hands prompts over at its `--disaggregation-bootstrap-port` (8998)"]
    return []
