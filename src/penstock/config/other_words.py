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
    "max_budget": ("tenants[].limits.tokens_per_day",),
    "budget_duration": ("tenants[].limits.tokens_per_day",),
    "redis_url": ("share.elect.valkey.url",),
    "redis_host": ("share.elect.valkey.url",),
    "redis": ("share.elect.valkey.url",),
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
_VLLM = {
    "max_num_seqs": ("endpoints[].slots",),
    "gpu_memory_utilization": ("endpoints[].max_kv_usage",),
    "max_model_len": ("tenants[].keys[].max_prompt_tokens",),
    "served_model_name": ("endpoints[].models", "models.<name>.to"),
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
    "vLLM": _VLLM,
    "llm-d": _LLM_D,
}
AT_TOP = {  # names that are settings of ours elsewhere, or that many programs have
    "port": "`listen: 127.0.0.1:PORT`",
    "host": "`listen: HOST:8080`",
    "address": "`listen: HOST:PORT`",
    "timeout": "`queue.max_wait` for the queue, `timeouts` for engines",
    "rate_limit": "`tenants[].limits.requests_per_minute`",
    "rate_limits": "`tenants[].limits`",
    "users": "`tenants`, or `fairness: {levels: [tenant, user]}`",
    "keys": "`tenants[].keys`",
    "api_keys": "`tenants[].keys`",
    "slots": "`endpoints[].slots`",
    "log_level": "`penstock serve --log-level LEVEL`",
    "database_url": "`store.url`",
}
POLICIES = {  # other programs' names for routing policies, and earlier ones of ours
    "least_busy": "least_loaded",
    "least_conn": "least_loaded",
    "leastconn": "least_loaded",
    "least_connections": "least_loaded",
    "least_request": "least_loaded",
    "latency_based_routing": "predicted_ttft",
    "usage_based_routing": "least_loaded",
    "simple_shuffle": "round_robin",
    "roundrobin": "round_robin",
    "random": "least_loaded",
    "p2c": "least_loaded",
    "power_of_two": "least_loaded",
    "lmetric": "predicted_ttft",
    "cache_aware": "prefix",
    "prefixaware": "prefix",
    "kvaware": "kv",
    "loadaware": "predicted_ttft",
    "ip_hash": "session",
    "consistent_hash": "session",
}
_OURS = {word: (whose, ours) for whose, words in WORDS.items() for word, ours in words.items()}


def ours_for(key: str) -> str | None:
    """Returns a suggestion for another program's name for a setting; None if it is unknown."""
    found = _OURS.get(key) or _OURS.get(key.replace("-", "_"))
    if found is None:
        return None
    whose, ours = found
    return f"{whose}'s name, it seems: here it is {listing([f'`{path}`' for path in ours])}"
