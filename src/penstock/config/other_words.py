"""Other programs' names for settings, and ours.

Such a name is refused like any unknown setting, with our name as suggestion. Names that are settings of ours are not
listed.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.problems import listing

_LITELLM = {
    "model_list": ("endpoints",),
    "litellm_params": ("endpoints[].url", "endpoints[].api_key"),
    "api_base": ("endpoints[].url",),
    "model_name": ("endpoints[].models", "models.<name>.to"),
    "model_group_alias": ("models.<name>.to",),
    "rpm": ("tenants[].limits.requests_per_minute",),
    "tpm": ("tenants[].limits.tokens_per_minute",),
    "rpm_limit": ("tenants[].limits.requests_per_minute",),
    "tpm_limit": ("tenants[].limits.tokens_per_minute",),
    "max_parallel_requests": ("tenants[].limits.running",),
    "general_settings": ("identity", "admin", "limits"),
    "litellm_settings": ("timeouts", "retry"),
    "router_settings": ("routing", "retry", "health"),
    "routing_strategy": ("routing.policy",),
    "master_key": ("admin.token",),
    "virtual_keys": ("tenants[].keys",),
    "num_retries": ("retry.max_attempts",),
    "request_timeout": ("timeouts.first_byte",),
    "stream_timeout": ("timeouts.between_bytes",),
    "allowed_fails": ("health.eject_after",),
    "cooldown_time": ("health.eject_for",),
}
_NGINX = {
    "upstream": ("endpoints",),
    "upstreams": ("endpoints",),
    "proxy_pass": ("endpoints[].url",),
    "max_conns": ("endpoints[].slots",),
    "max_fails": ("health.eject_after",),
    "fail_timeout": ("health.eject_for",),
    "proxy_connect_timeout": ("timeouts.connect",),
    "keepalive_timeout": ("timeouts.client_idle",),
    "proxy_read_timeout": ("timeouts.first_byte", "timeouts.between_bytes"),
    "proxy_next_upstream_tries": ("retry.max_attempts",),
    "client_max_body_size": ("limits.max_body",),
    "limit_req": ("tenants[].limits.requests_per_minute",),
    "limit_conn": ("limits.max_connections_per_address",),
    "worker_processes": ("workers",),
    "worker_connections": ("limits.max_connections",),
    "ssl_certificate": ("tls.cert",),
    "ssl_certificate_key": ("tls.key",),
}
_HAPROXY = {
    "frontend": ("listen",),
    "bind": ("listen",),
    "backend": ("endpoints",),
    "backends": ("endpoints",),
    "servers": ("endpoints",),
    "maxconn": ("endpoints[].slots", "limits.max_connections"),
    "balance": ("routing.policy",),
    "httpchk": ("health.probe_interval",),
}
_PRODUCTION_STACK = {
    "static_backends": ("endpoints[].url",),
    "static_models": ("endpoints[].models",),
    "service_discovery": ("discovery",),
    "k8s_namespace": ("discovery[].kubernetes.namespace",),
    "k8s_label_selector": ("discovery[].kubernetes.selector",),
    "routing_logic": ("routing.policy",),
    "session_key": ("routing.session.header",),
}
_SGLANG = {
    "worker_urls": ("endpoints[].url",),
    "max_concurrent_requests": ("endpoints[].slots",),
    "queue_size": ("queue.max_requests",),
    "queue_timeout_secs": ("queue.max_wait",),
    "max_payload_size": ("limits.max_body",),
    "retry_max_retries": ("retry.max_attempts",),
    "cb_failure_threshold": ("health.eject_after",),
}
_LLM_D = {
    "schedulingProfiles": ("routing.policy",),
    "plugins": ("routing.policy", "fairness.policy", "ordering"),
    "saturationDetector": ("admission",),
    "queueDepthThreshold": ("bands[].max_engine_waiting",),
    "kvCacheUtilThreshold": ("admission.max_kv_usage",),
    "flowControl": ("queue", "bands"),
    "priorityBands": ("bands",),
    "defaultRequestTTL": ("queue.max_wait",),
    "maxBytes": ("queue.max_bytes",),
    "criticality": ("bands",),
}
WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "LiteLLM": _LITELLM,
    "nginx": _NGINX,
    "HAProxy": _HAPROXY,
    "production-stack": _PRODUCTION_STACK,
    "SGLang": _SGLANG,
    "llm-d": _LLM_D,
}
_OURS = {word: (whose, ours) for whose, words in WORDS.items() for word, ours in words.items()}


def ours_for(key: str) -> str | None:
    """Returns a suggestion for another program's name for a setting; None if it is unknown."""
    found = _OURS.get(key) or _OURS.get(key.replace("-", "_"))
    if found is None:
        return None
    whose, ours = found
    return f"{whose}'s name, it seems: here it is {listing([f'`{path}`' for path in ours])}"
