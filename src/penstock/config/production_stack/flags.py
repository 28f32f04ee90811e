"""The flags of production-stack's router and their meaning here.

The parser, the warnings and docs/coming-from-production-stack.md use this table; a test compares it with the flags of
their parser, chart and proposals.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import groupby

import msgspec

SWITCH = "switch"
TEXT = "text"
WHOLE = "whole number"
NUMBER = "number"


class Fate(Enum):
    """The effect of a flag."""

    SETTING = "setting"  #: it becomes settings
    COMMAND = "command"  #: it is for the command itself, such as the log level
    NOTHING = "nothing"  #: it has no effect here; a warning explains why
    REFUSED = "refused"  #: it is unsupported, and ignoring it would be worse than not starting


class Flag(msgspec.Struct, frozen=True):
    """One flag."""

    name: str
    value: str | tuple[str, ...]  #: its kind of value, or its choices
    becomes: str  #: the settings, if any
    why: str  #: a sentence for the page, and for the warning or the refusal
    fate: Fate = Fate.SETTING
    least: float | None = None  #: of a number


ROUTING = {
    "roundrobin": "round_robin",
    "session": "session",
    "prefixaware": "prefix",
    "kvaware": "kv",
    "load_balanced_kvaware": "load_balanced_kv",
    "loadaware": "predicted_ttft",
    "disaggregated_prefill": "predicted_ttft",
    "disaggregated_prefill_orchestrated": "predicted_ttft",
}
DIVIDED = ("disaggregated_prefill", "disaggregated_prefill_orchestrated")
SESSIONS = ("session", "kvaware", "load_balanced_kvaware")  # that use sessions
PREFER = (*SESSIONS, "prefixaware")  # that wait a little for one endpoint
LOG_LEVELS = {
    "critical": "error",
    "error": "error",
    "warning": "warning",
    "info": "info",
    "debug": "debug",
    "trace": "debug",
}
_GAUGES = "engines' gauges are read every second, because decisions go by them (`observe.interval`)"
_LMCACHE = (
    "there is no LMCache controller inside; PENSTOCK__ROUTING__LOCALITY=lmcache and "
    "PENSTOCK__ROUTING__LMCACHE__CONTROLLER=URL use the engines' own"
)
_PRIORITY = (
    "bands order queued requests by tenant, header or service tier; `admission.engine_priority` passes them to engines"
)
NOT_HERE = {"priority": _PRIORITY}  # choices of theirs that have another name here
_SEMANTIC = "there is no semantic cache, and without its feature gate it does nothing there either"


def _setting(
    name: str, value: str | tuple[str, ...], becomes: str, why: str = "", *, least: float | None = None
) -> Flag:
    return Flag(name, value, becomes, why, least=least)


def _command(name: str, value: str | tuple[str, ...], why: str) -> Flag:
    return Flag(name, value, "", why, Fate.COMMAND)


def _nothing(name: str, value: str | tuple[str, ...], why: str) -> Flag:
    return Flag(name, value, "", why, Fate.NOTHING)


def _refused(name: str, value: str | tuple[str, ...], why: str) -> Flag:
    return Flag(name, value, "", why, Fate.REFUSED)


FLAGS = (
    # the server
    _setting("--host", TEXT, "listen", "without it every interface"),
    _setting("--port", WHOLE, "listen", "without it 8001", least=0),
    _setting("--root-path", TEXT, "root_path", "paths are served with and without it"),
    _command("--log-level", tuple(LOG_LEVELS), "`critical` logs what `error` does, `trace` what `debug` does"),
    _setting("--log-format", ("text", "json"), "log.format"),
    _command("--version", SWITCH, "prints Penstock's version"),
    # engines
    _setting(
        "--service-discovery",
        ("static", "k8s", "external-only"),
        "endpoints, discovery",
        "required, unless `--external-providers-config` is given",
    ),
    _setting("--static-backends", TEXT, "endpoints[].url", "one that is named twice is one endpoint with two models"),
    _setting("--static-models", TEXT, "endpoints[].models", "one for each backend, in the same order"),
    _setting("--static-aliases", TEXT, "models.<alias>.to", "`alias:model`; a model's name may have colons"),
    _setting("--static-model-labels", TEXT, "endpoints[].labels", "one for each backend, as the label `model`"),
    _nothing(
        "--static-model-types", TEXT, "engines are probed without a prompt, so nothing has to be known of their models"
    ),
    _nothing("--static-backend-health-checks", SWITCH, "engines are always probed, and failures always count"),
    _setting(
        "--static-backend-health-check-interval",
        WHOLE,
        "health.probe_interval",
        "without it 5 seconds: a probe costs no tokens here",
        least=1,
    ),
    _nothing(
        "--static-backend-health-check-timeout-seconds", WHOLE, "how long a probe may take is the gateway's own affair"
    ),
    _nothing("--backend-health-check-timeout-seconds", WHOLE, "how long a probe may take is the gateway's own affair"),
    _setting(
        "--k8s-service-discovery-type",
        ("pod-ip", "service-name"),
        "discovery[].kubernetes.selector",
        "both watch the pods with the labels, so each engine behind a Service has slots and a session of its own",
    ),
    _setting("--k8s-port", WHOLE, "discovery[].kubernetes.port", "without it 8000", least=1),
    _setting("--k8s-namespace", TEXT, "discovery[].kubernetes.namespace", "without it `default`"),
    _setting("--k8s-label-selector", TEXT, "discovery[].kubernetes.selector", "required with `k8s`"),
    _nothing("--k8s-watcher-timeout-seconds", WHOLE, "watches are renewed every minute, and lists now and then"),
    _setting("--prefill-model-labels", TEXT, "labels.role: prefill", "with disaggregated prefill only"),
    _setting("--decode-model-labels", TEXT, "labels.role: decode", "with disaggregated prefill only"),
    _setting(
        "--external-providers-config", TEXT, "endpoints, models", "their keys stay in the environment, as `${NAME}`"
    ),
    # routing
    _setting("--routing-logic", tuple(ROUTING), "routing.policy", "required; see above"),
    _setting("--session-key", TEXT, "routing.session", "a header, and a field of the body of the same name"),
    _setting(
        "--imbalanced-threshold",
        TEXT,
        "routing.imbalance_threshold",
        "with `load_balanced_kvaware`; `0` is `policy: least_loaded`",
    ),
    _nothing("--kv-aware-threshold", WHOLE, "a match counts by the work it saves, so there is no threshold"),
    _nothing("--prefix-min-match-length", WHOLE, "a match counts by the work it saves, so there is no threshold"),
    _refused("--priority-header", TEXT, _PRIORITY),
    _refused("--priority-field", TEXT, _PRIORITY),
    _refused("--priority-default", WHOLE, _PRIORITY),
    _refused("--priority-threshold", WHOLE, _PRIORITY),
    _setting(
        "--max-instance-failover-reroute-attempts",
        WHOLE,
        "retry.max_attempts",
        "one more, because the first try counts; without it 3",
        least=0,
    ),
    _nothing("--lmcache-controller-port", WHOLE, _LMCACHE),
    _nothing("--lmcache-controller-reply-port", WHOLE, _LMCACHE),
    _nothing("--lmcache-controller-heartbeat-port", WHOLE, _LMCACHE),
    _nothing("--lmcache-health-check-interval", WHOLE, _LMCACHE),
    _nothing("--lmcache-worker-timeout", WHOLE, _LMCACHE),
    # the queue, as their proposals name it
    _setting("--enable_queue", SWITCH, "queue.enabled", "the queue is on without it, too"),
    _setting("--no-enable_queue", SWITCH, "queue.enabled", "`false`"),
    _setting(
        "--max-wait-time",
        NUMBER,
        "routing.affinity_wait",
        "how long a request waits for the endpoint of its session or cache before it goes to another",
        least=0,
    ),
    _setting("--max-running-requests", WHOLE, "endpoints[].slots", "of each endpoint", least=1),
    _setting("--max-gpu-perc", NUMBER, "admission.max_kv_usage", "a percentage: 95 is `0.95`", least=0),
    _setting("--enable-router-queue", SWITCH, "queue.enabled", "the queue is on without it, too"),
    _setting(
        "--router-max-queued-requests", WHOLE, "queue.max_requests", "without it 10,000; 0: nothing waits", least=0
    ),
    _setting("--router-max-queue-wait-seconds", NUMBER, "queue.max_wait", "without it 60; 0: nothing waits", least=0),
    _setting(
        "--router-waiting-threshold-per-endpoint",
        WHOLE,
        "bands[].max_engine_waiting",
        "of the bands above best effort",
        least=1,
    ),
    _setting("--router-admission-scrape-interval-seconds", NUMBER, "observe.interval", "without it 1", least=0.001),
    # statistics
    _nothing("--engine-stats-interval", WHOLE, _GAUGES),
    _nothing("--request-stats-window", WHOLE, "`vllm:current_qps` is the rate of the last minute"),
    _nothing("--log-stats", SWITCH, "see `penstock status`, `penstock top` and /metrics"),
    _nothing("--log-stats-interval", WHOLE, "see `penstock status`, `penstock top` and /metrics"),
    # the rest
    _refused(
        "--callbacks",
        TEXT,
        "custom code can't run inside: it would delay every stream. Put it into a proxy before Penstock; for order or "
        "routing, write a policy (docs/policies)",
    ),
    _nothing("--request-rewriter", ("noop",), "requests are passed on as they came"),
    _setting("--feature-gates", TEXT, "", "`SemanticCache=true` is refused: answers would be shared between clients"),
    _nothing("--semantic-cache-model", TEXT, _SEMANTIC),
    _nothing("--semantic-cache-dir", TEXT, _SEMANTIC),
    _nothing("--semantic-cache-threshold", NUMBER, _SEMANTIC),
    _setting("--enable-batch-api", SWITCH, "batch.serve", "needs `--file-storage-path`"),
    _setting("--file-storage-path", TEXT, "store.data", "with `--enable-batch-api`"),
    _nothing("--file-storage-class", ("local_file",), "files stand in one folder"),
    _nothing("--batch-processor", ("local",), "batches run in the lowest band"),
    _command("--dynamic-config-yaml", TEXT, "read at the start and followed; flags stand above it"),
    _command("--dynamic-config-json", TEXT, "the same, as JSON"),
    # telemetry
    _nothing("--sentry-dsn", TEXT, "nothing is sent to Sentry: errors are in the log and in /metrics"),
    _nothing("--sentry-traces-sample-rate", NUMBER, "nothing is sent to Sentry"),
    _nothing("--sentry-profile-session-sample-rate", NUMBER, "nothing is sent to Sentry"),
    _setting("--otel-endpoint", TEXT, "tracing.endpoint", "over HTTP: port 4317 becomes 4318"),
    _command("--otel-service-name", TEXT, "the variable `OTEL_SERVICE_NAME`, if that is not set"),
    _setting("--otel-secure", SWITCH, "tracing.endpoint", "`https`"),
)
BY_NAME = {flag.name: flag for flag in FLAGS}


def page() -> str:
    """The table as docs/coming-from-production-stack.md has it; ignored flags follow it by name."""
    lines = ["| flag | becomes | |", "|---|---|---|"]
    shown = [flag for flag in FLAGS if flag.fate is not Fate.NOTHING]
    for (fate, becomes, why), flags in groupby(shown, key=lambda flag: (flag.fate, flag.becomes, flag.why)):
        setting = "**refused**" if fate is Fate.REFUSED else f"`{becomes}`" if becomes else "–"
        lines.append(f"| {_names(flags)} | {setting} | {why} |")
    ignored = _names(flag for flag in FLAGS if flag.fate is Fate.NOTHING)
    return "\n".join([*lines, "", f"Ignored, with a warning that gives the reason: {ignored}."]) + "\n"


def _names(flags: Iterable[Flag]) -> str:
    return ", ".join(f"`{flag.name}`" for flag in flags)
