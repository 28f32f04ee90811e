"""The kinds that other projects define, as far as deploy/ uses them: what their definitions know, and nothing more.

Read from keda.sh/v1alpha1, monitoring.coreos.com/v1, gateway.networking.k8s.io/v1, inference.networking.k8s.io/v1,
llm-d.ai/v1alpha2, networking.istio.io/v1 and aigateway.envoyproxy.io/v1beta1.
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

_NAME = {"type": "string", "minLength": 1, "maxLength": 253}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_TIMEOUTS = _object(request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"})
_BACKEND = _object(
    "group kind name", group={"const": "inference.networking.k8s.io"}, kind={"const": "InferencePool"}, name=_NAME
)
_POOL_REF = _object("name", group={"const": "inference.networking.k8s.io"}, kind={"const": "InferencePool"}, name=_NAME)

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
                backendRefs=_list({"anyOf": [_object("name port", name=TEXT, port=WHOLE), _BACKEND]}),
                timeouts=_TIMEOUTS,
            )
        ),
    ),
    ("gateway.networking.k8s.io/v1", "GatewayClass"): _object("controllerName", controllerName=TEXT),
    ("gateway.networking.k8s.io/v1", "Gateway"): _object(
        "gatewayClassName listeners",
        gatewayClassName=_NAME,
        listeners=_list(_object("name port protocol", name=_NAME, port=_PORT, protocol={"enum": ["HTTP", "HTTPS"]})),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): _object(
        "selector targetPorts endpointPickerRef",
        selector=_object("matchLabels", matchLabels={**NAMES, "minProperties": 1, "maxProperties": 64}),
        targetPorts={**_list(_object("number", number=_PORT)), "maxItems": 8, "uniqueItems": True},
        appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
        endpointPickerRef=_object(
            "name port",
            group=TEXT,
            kind=TEXT,
            name=_NAME,
            port=_object("number", number=_PORT),
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
    ("llm-d.ai/v1alpha2", "InferenceObjective"): _object(
        "poolRef", poolRef=_POOL_REF, priority={"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    ),
    ("networking.istio.io/v1", "DestinationRule"): _object(
        "host",
        host=TEXT,
        trafficPolicy=_object(
            tls=_object("mode", mode={"enum": ["SIMPLE", "MUTUAL"]}, insecureSkipVerify={"type": "boolean"})
        ),
    ),
    ("aigateway.envoyproxy.io/v1beta1", "AIGatewayRoute"): _object(
        "parentRefs rules",
        parentRefs=_list(_object("name", name=_NAME, kind=TEXT, group=TEXT)),
        rules=_list(
            _object(
                matches=_list(
                    _object(headers=_list(_object("name value", type={"enum": ["Exact"]}, name=TEXT, value=TEXT)))
                ),
                backendRefs=_list(_BACKEND),
                timeouts=_TIMEOUTS,
            )
        ),
    ),
}
