"""The kinds that other projects define, as far as the chart uses them: what their definitions know, and nothing more.

Read from keda.sh/v1alpha1, monitoring.coreos.com/v1 and gateway.networking.k8s.io/v1.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NAMES = {"type": "object", "additionalProperties": TEXT}


def _object(required: str = "", **known: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": known}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


_SELECTOR = _object("matchLabels", matchLabels=NAMES)
_SCRAPE = _object(
    "port path",
    port=TEXT,
    path=TEXT,
    interval={
        "type": "string",
        "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
    },
    scheme={"enum": ["http", "https"]},
    tlsConfig=_object(insecureSkipVerify={"type": "boolean"}),
)
_RULE = _object(
    "expr alert",
    alert=TEXT,
    expr=TEXT,
    labels=NAMES,
    annotations=NAMES,
    **{"for": {"type": "string"}},
)

SPECS: dict[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): _object(
        "scaleTargetRef triggers",
        scaleTargetRef=_object("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=WHOLE,
        maxReplicaCount=WHOLE,
        pollingInterval=WHOLE,
        cooldownPeriod=WHOLE,
        advanced=_object(
            horizontalPodAutoscalerConfig=_object(behavior=_object(scaleDown=_object(stabilizationWindowSeconds=WHOLE)))
        ),
        triggers=_list(
            _object("type metadata", type=TEXT, metricType={"enum": ["AverageValue", "Value"]}, metadata=NAMES)
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        "selector endpoints", jobLabel=TEXT, selector=_SELECTOR, endpoints=_list(_SCRAPE)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        "selector podMetricsEndpoints", jobLabel=TEXT, selector=_SELECTOR, podMetricsEndpoints=_list(_SCRAPE)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        "groups", groups=_list(_object("name rules", name=TEXT, rules=_list(_RULE)))
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _object(
        parentRefs=_list(_object("name", name=TEXT, namespace=TEXT, sectionName=TEXT, port=WHOLE)),
        hostnames=_list(TEXT),
        rules=_list(
            _object(
                matches=_list(_object(path=_object(type={"enum": ["PathPrefix", "Exact"]}, value=TEXT))),
                backendRefs=_list(_object("name port", name=TEXT, port=WHOLE)),
                timeouts=_object(
                    request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"},
                ),
            )
        ),
    ),
}
