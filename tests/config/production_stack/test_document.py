"""What the flags of production-stack's router become, and how what is wrong with them is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.config.load import ConfigError, Settings, load
from penstock.config.production_stack.document import RouterFlags, load_router, router
from penstock.config.production_stack.text import write

HERE = Path(__file__).parent
STATIC = (
    "--service-discovery static --static-backends http://gpu-0:8000,http://gpu-1:8000 --static-models llama,llama "
    "--routing-logic roundrobin"
)
PODS = "--service-discovery k8s --k8s-label-selector app=vllm --routing-logic roundrobin"
LISTS = [line for line in (HERE / "argument_lists.txt").read_text().splitlines() if not line.startswith("#")]


def made(words: str, **env: str) -> RouterFlags:
    return router(words.split(), env)


def settings(words: str, **env: str) -> Settings:
    return load_router(made(words, **env), env)


def problems(words: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings(words, **env)
    return [problem.line() for problem in caught.value.problems]


@pytest.mark.parametrize("words", LISTS, ids=range(len(LISTS)))
def test_every_argument_list_of_their_values_files_gives_settings(words: str, tmp_path: Path) -> None:
    found = made(words)
    assert found.problems == []
    source = load_router(found, {}).discovery[0].kubernetes
    assert source is not None
    assert source.selector
    file = tmp_path / "printed.yaml"
    file.write_text(write(found.document, found.warnings))
    assert load(str(file), {}) == load_router(found, {})


def test_a_plain_one() -> None:
    found = settings(STATIC)
    assert found.listen == "0.0.0.0:8001"
    assert [(e.url, e.models) for e in found.endpoints] == [
        ("http://gpu-0:8000", ("llama",)),
        ("http://gpu-1:8000", ("llama",)),
    ]
    assert found.routing.policy == "round_robin"
    assert found.log.routing
    assert found.metrics.aliases == ("vllm_router", "production_stack")
    assert found.queue.enabled


def test_one_backend_with_two_models_is_one_endpoint() -> None:
    words = STATIC.replace("gpu-1", "gpu-0").replace("llama,llama", "llama,mistral")
    assert [e.models for e in settings(words).endpoints] == [("llama", "mistral")]


def test_flags_may_have_their_values_behind_an_equals_sign() -> None:
    words = " ".join(STATIC.split()).replace(" http", "=http").replace(" static ", "=static ")
    assert settings(words) == settings(STATIC)


@pytest.mark.parametrize(
    ("logic", "policy"),
    [
        ("roundrobin", "round_robin"),
        ("session --session-key X-User-Id", "session"),
        ("prefixaware", "prefix"),
        ("kvaware", "kv"),
        ("load_balanced_kvaware --imbalanced-threshold 8", "load_balanced_kv"),
        ("loadaware", "predicted_ttft"),
    ],
)
def test_routing_logics(logic: str, policy: str) -> None:
    routing = settings(STATIC.replace("roundrobin", logic)).routing
    assert routing.policy == policy
    assert routing.prefix_chunk == (128 if logic == "prefixaware" else 512)
    if policy == "session":
        assert (routing.session.header, routing.session.body) == ("x-user-id", "X-User-Id")
    if policy == "load_balanced_kv":
        assert routing.imbalance_threshold == 8


@pytest.mark.parametrize("logic", ["disaggregated_prefill", "disaggregated_prefill_orchestrated"])
def test_labels_become_roles(logic: str) -> None:
    roles = "--prefill-model-labels p,q --decode-model-labels d"
    static = settings(STATIC.replace("roundrobin", logic) + f" {roles} --static-model-labels p,d")
    assert [e.labels for e in static.endpoints] == [
        {"model": "p", "role": "prefill"},
        {"model": "d", "role": "decode"},
    ]
    pods = settings(PODS.replace("roundrobin", logic) + f" {roles}")
    found = [source.kubernetes for source in pods.discovery]
    assert [(k.selector, k.labels["role"]) for k in found if k is not None] == [
        ("app=vllm,model in (p,q)", "prefill"),
        ("app=vllm,model in (d)", "decode"),
    ]


def test_labels_are_no_roles_without_disaggregation() -> None:
    words = f"{STATIC} --prefill-model-labels p --decode-model-labels d --static-model-labels p,d"
    assert [e.labels for e in settings(words).endpoints] == [{"model": "p"}, {"model": "d"}]
    assert len(made(words).warnings) == 2


@pytest.mark.parametrize("kind", ["pod-ip", "service-name"])
def test_pods_are_watched_by_their_labels(kind: str) -> None:
    words = f"{PODS} --k8s-service-discovery-type {kind} --k8s-namespace llm --k8s-port 9000"
    source = settings(words).discovery[0].kubernetes
    assert source is not None
    assert (source.selector, source.namespace, source.port) == ("app=vllm", "llm", "9000")


def test_the_engines_key_is_theirs_and_the_callers() -> None:
    """Lent to whoever asks, it would open engines that were closed: so callers have to show it, as before."""
    found = settings(STATIC, VLLM_API_KEY="secret-of-engines")
    assert [e.api_key and e.api_key.get_secret_value() for e in found.endpoints] == ["secret-of-engines"] * 2
    assert found.identity.require_key
    assert len(found.tenants[0].keys) == 1
    assert "secret-of-engines" not in write(made(STATIC, VLLM_API_KEY="secret-of-engines").document)
    source = settings(PODS, VLLM_API_KEY="secret-of-engines").discovery[0].kubernetes
    assert source is not None
    assert source.api_key is not None


def test_external_providers(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(
        "external_providers:\n- name: openai\n  type: openai\n  api_base: https://api.openai.com\n"
        "  api_key_env_var: MY_KEY\n  timeout: 20\n  models:\n  - {id: gpt-5, type: chat, aliases: [best]}\n"
    )
    words = f"--external-providers-config {file} --routing-logic roundrobin"
    found = settings(words, MY_KEY="sk-1")
    endpoint = found.endpoints[0]
    assert (endpoint.name, endpoint.url, endpoint.models) == ("openai", "https://api.openai.com", ("gpt-5",))
    assert endpoint.api_key is not None
    assert endpoint.api_key.get_secret_value() == "sk-1"
    assert found.models["best"].to == "gpt-5"
    assert "timeout" in made(words, MY_KEY="sk-1").warnings[0]
    assert "MY_KEY is not set" in problems(words)[0]
    both = settings(f"{words} {STATIC.replace('--routing-logic roundrobin', '')}", MY_KEY="sk-1")
    assert len(both.endpoints) == 3


def test_unsupported_needs_of_a_provider_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(
        "external_providers:\n- {name: a, type: azure, custom_headers: {api-key: x}, models: []}\n- {nam: b}\n"
    )
    told = problems(f"--external-providers-config {file} --routing-logic roundrobin")
    assert [line.partition(": external_providers")[2][:22] for line in told if "external_providers" in line] == [
        "[0].api_base: is requi",
        "[0].type: `azure`: exp",
        "[0].custom_headers: ca",
        "[0].models: expected a",
        "[1].nam: is unknown (k",
        "[1].name: is required",
        "[1].type: is required",
        "[1].api_base: is requi",
        "[1].models: expected a",
    ]


YAML = """
service_discovery: static
routing_logic: roundrobin
static_models:
  llama: {static_backends: [http://gpu-0:8000, http://gpu-1:8000], static_model_type: chat}
static_aliases: {gpt-4: llama}
"""


def test_a_dynamic_config_stands_below_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text(YAML)
    found = settings(f"--dynamic-config-yaml {file} --port 9000")
    assert [e.url for e in found.endpoints] == ["http://gpu-0:8000", "http://gpu-1:8000"]
    assert found.models["gpt-4"].to == "llama"
    assert found.listen == "0.0.0.0:9000"
    assert made(f"--dynamic-config-yaml {file}").follows == str(file)
    over = settings(f"--dynamic-config-yaml {file} --routing-logic prefixaware")
    assert over.routing.policy == "prefix"


def test_a_dynamic_config_as_json(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.json"
    flat = {
        "service_discovery": "static",
        "routing_logic": "session",
        "session_key": "x-user-id",
        "static_backends": "http://gpu-0:8000",
        "static_models": "llama",
        "static_backend_health_checks": True,
    }
    file.write_text(json.dumps(flat))
    assert settings(f"--dynamic-config-json {file}").routing.policy == "session"


def test_a_dynamic_configs_problems_name_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text(YAML.replace("roundrobin", "random") + "sesion_key: x\nstatic_aliases: {}\n")
    told = problems(f"--dynamic-config-yaml {file}")
    assert any(line.startswith(f"{file}: routing_logic: `random`: expected") for line in told)
    assert f"{file}: sesion_key: is unknown (did you mean `session_key`?)" in told
    assert any("is given twice" in line for line in told)
    assert "cannot be read" in problems("--dynamic-config-yaml /nowhere --routing-logic roundrobin")[0]


def test_every_problem_is_reported_at_once() -> None:
    words = (
        "--service-discovery static --static-backends http://gpu-0:8000,http://gpu-1:8000 --static-models llama "
        "--routing-logic sesion --sesion-key x --port 8001 --port 8002 --callbacks mine.instance --k8s-port x stray "
        "--log-stats=3 --host"
    )
    told = problems(words)
    assert [line.partition(":")[0] for line in told[:9]] == [
        "--sesion-key",
        "--port",
        "`stray`",
        "--log-stats",
        "--host",
        "--routing-logic",
        "--callbacks",
        "--k8s-port",
        "--static-models",
    ]
    assert "did you mean `--session-key`?" in told[0]
    assert "is given twice" in told[1]
    assert "is given no value" in told[4]
    assert "did you mean `session`?" in told[5]
    assert "names 1 for 2 backends" in told[8]


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ("--routing-logic roundrobin", "--service-discovery: is required"),
        (PODS.replace("--routing-logic roundrobin", ""), "--routing-logic: is required"),
        (PODS.replace("roundrobin", "session"), "--session-key: is required"),
        (PODS.replace("--k8s-label-selector app=vllm", ""), "--k8s-label-selector: is required"),
        (PODS.replace("roundrobin", "disaggregated_prefill"), "--prefill-model-labels: is required"),
        (PODS + " --static-backends http://a", "--static-backends: is given, but --service-discovery is k8s"),
        (PODS + " --enable-batch-api", "--enable-batch-api: needs --file-storage-path"),
        (PODS + " --feature-gates SemanticCache=true", "--feature-gates: `SemanticCache=true` is not done here"),
        (PODS + " --imbalanced-threshold 4", "routing.imbalance_threshold: means nothing"),
        (PODS + " --static-aliases gpt", "--static-aliases: `gpt`: expected alias:model"),
        (PODS.replace("roundrobin", "priority"), "--routing-logic: `priority`: expected roundrobin"),
        (PODS + " --priority-header x-request-priority", "--priority-header: bands order queued requests"),
        (PODS + " --port 0x", "--port: `0x` is not a whole number"),
        (PODS + " --port 99999", "listen: `0.0.0.0:99999`: the port has to be"),
        (PODS + " --dynamic-config-yaml a --dynamic-config-json b", "--dynamic-config-json: conflicts with"),
        ("--service-discovery external-only --routing-logic roundrobin", "--external-providers-config: is required"),
        (STATIC.replace("http://gpu-0:8000,", ","), "--static-backends: `,http://gpu-1:8000` has an empty part"),
        (STATIC.replace("gpu-0:8000", "gpu-0:8000/v1"), "endpoints[0].url: `http://gpu-0:8000/v1`"),
    ],
)
def test_contradicting_flags_are_refused_in_words(words: str, at: str) -> None:
    told = problems(words)
    assert any(line.startswith(at) for line in told), told


def test_a_list_that_is_too_short_is_reported_once() -> None:
    assert problems(STATIC.replace("llama,llama", "llama")) == [
        "--static-models: names 1 for 2 backends (one for each, in the same order)"
    ]


def test_a_settings_problem_names_the_flag() -> None:
    assert "(from --root-path)" in problems(f"{STATIC} --root-path a/../b")[0]


def test_the_environment_supplements_flags() -> None:
    """Flags stand above it, as everywhere: an image says in its environment where to listen, a chart by `--port`."""
    env = {
        "PENSTOCK__QUEUE__MAX_WAIT": "20s",
        "PENSTOCK__ROUTING__POLICY": "least_loaded",
        "PENSTOCK__ROUTING__PREFIX_CHUNK": "512",
        "PENSTOCK__LISTEN": ":8080",
        "PENSTOCK__LOG__ROUTING": "off",
    }
    found = settings(STATIC, **env)
    assert (found.queue.max_wait, found.routing.prefix_chunk, found.log.routing) == (20.0, 512, False)
    assert (found.routing.policy, found.listen) == ("round_robin", ":8080")
    assert settings(f"{STATIC} --port 8000", **env).listen == "0.0.0.0:8000"


def test_a_kv_aware_router_may_ask_a_controller_of_lmcache() -> None:
    env = {"PENSTOCK__ROUTING__LOCALITY": "lmcache", "PENSTOCK__ROUTING__LMCACHE__CONTROLLER": "http://lmcache:9100"}
    found = settings(STATIC.replace("roundrobin", "kvaware --lmcache-controller-port 9000"), **env).routing
    assert (found.policy, found.locality, found.lmcache.controller) == ("kv", "lmcache", "http://lmcache:9100")


def test_the_queue_as_their_proposal_names_it() -> None:
    found = settings(
        f"{STATIC} --enable-router-queue --router-max-queued-requests 256 --router-max-queue-wait-seconds 5 "
        "--router-waiting-threshold-per-endpoint 1 --router-admission-scrape-interval-seconds 0.5"
    )
    assert (found.queue.max_requests, found.queue.max_wait) == (256, 5.0)
    assert [band.max_engine_waiting for band in found.bands] == [1, 1, 0]
    assert [band.preemptible for band in found.bands] == [False, False, True], "as without the flag"
    assert found.observe.interval == 0.5


@pytest.mark.parametrize("flag", ["--router-max-queued-requests", "--router-max-queue-wait-seconds"])
def test_a_queue_of_nothing_is_none(flag: str) -> None:
    found = settings(f"{STATIC} --enable-router-queue {flag} 0").queue
    assert (found.max_requests, found.max_wait) == ((0, 60.0) if flag.endswith("requests") else (10_000, 0.0))


def test_the_queue_of_each_endpoint_as_their_first_proposal_names_it() -> None:
    flags = "--enable_queue --max-wait-time 5 --max-running-requests 10 --max-gpu-perc 95"
    found = settings(f"{STATIC.replace('roundrobin', 'session --session-key x')} {flags}")
    assert found.queue.enabled
    assert (found.routing.affinity_wait, found.admission.max_kv_usage) == (5.0, 0.95)
    assert {endpoint.slots for endpoint in found.endpoints} == {10}
    assert not settings(f"{STATIC} --no-enable_queue").queue.enabled
    assert any("waits for no one endpoint" in said for said in made(f"{STATIC} --max-wait-time 5").warnings)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--max-gpu-perc 0.95", "--max-gpu-perc: `0.95`: expected a percentage above 1, at most 100"),
        ("--max-gpu-perc 101", "--max-gpu-perc: `101`: expected a percentage above 1, at most 100"),
        ("--max-running-requests 0", "--max-running-requests"),
        ("--enable_queue --no-enable_queue", "--no-enable_queue: is given, and --enable_queue too"),
    ],
)
def test_a_queue_that_makes_no_sense_is_refused(flags: str, words: str) -> None:
    assert any(words in problem.line() for problem in made(f"{STATIC} {flags}").problems)


def test_a_threshold_of_0_is_the_least_loaded_endpoint_always() -> None:
    found = settings(f"{STATIC.replace('roundrobin', 'load_balanced_kvaware')} --imbalanced-threshold 0").routing
    assert found.policy == "least_loaded"


def test_traces_go_over_http() -> None:
    found = made(f"{STATIC} --otel-endpoint otel-collector:4317 --otel-service-name mine --otel-secure")
    assert load_router(found, {}).tracing.endpoint == "https://otel-collector:4318"
    assert found.environment == {"OTEL_SERVICE_NAME": "mine"}
    assert any("4318" in warning for warning in found.warnings)


def test_flags_with_one_reason_make_one_warning() -> None:
    warnings = made(f"{STATIC} --log-stats --log-stats-interval 10 --engine-stats-interval 15").warnings
    assert len(warnings) == 2
    assert warnings[0].startswith("--log-stats and --log-stats-interval mean nothing here: ")


def test_more_of_them() -> None:
    found = settings(
        f"{STATIC} --root-path /vllm/ --log-format json --max-instance-failover-reroute-attempts 1 --host ::1 "
        "--static-backend-health-check-interval 30 --enable-batch-api --file-storage-path /srv/files"
    )
    assert (found.root_path, found.log.format, found.retry.max_attempts) == ("/vllm", "json", 2)
    assert (found.listen, found.health.probe_interval, found.store.data) == ("[::1]:8001", 30.0, "/srv/files")


def test_a_dollar_sign_is_one() -> None:
    words = STATIC.replace("roundrobin", "session --session-key $key")
    assert settings(words, key="no").routing.session.header == "$key"


def test_dynamic_config_overridden_by_a_flag_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.json"
    file.write_text('{"routing_logic": "kvaware"}')
    found = made(f"{STATIC} --dynamic-config-json {file}")
    assert found.document["routing"] == {"policy": "round_robin"}
    assert found.warnings == [f"what {file} says of --routing-logic is not followed: the command line says it, too"]
