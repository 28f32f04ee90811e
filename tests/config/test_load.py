"""The settings: what is accepted, what is refused, and whether a person is told what to change."""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.cli import check as config_cli
from penstock.config.effect import effect_warnings
from penstock.config.explain import nested, sections
from penstock.config.load import ConfigError, Flags, Settings, config_hash, from_mapping, load, require_endpoints
from penstock.config.problems import listing
from penstock.config.sections.policies import OWN
from penstock.config.sections.roles import role_warnings
from penstock.config.sections.tenancy import TenantKey
from tests.tidy.configuration import reference_markdown

TOLD_MAX = 50
FILE_BYTES_MAX = 4 * 1024 * 1024

ROOT = Path(__file__).parents[2]
NO_ENV: Mapping[str, str] = {}


def check(path: str | None, env: Mapping[str, str]) -> list[str]:
    """A line for each problem; empty if the settings can be used."""
    try:
        load(path, env)
    except ConfigError as error:
        return [problem.line() for problem in error.problems]
    return []


def read(tmp_path: Path, text: str, env: Mapping[str, str] = NO_ENV, flags: Flags | None = None) -> Settings:
    file = tmp_path / "penstock.yaml"
    file.write_text(text, encoding="utf-8")
    return load(str(file), env, flags)


def lines(tmp_path: Path, text: str, env: Mapping[str, str] = NO_ENV, flags: Flags | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, env, flags)
    return [problem.line() for problem in caught.value.problems]


def only_line(tmp_path: Path, text: str, env: Mapping[str, str] = NO_ENV, flags: Flags | None = None) -> str:
    found = lines(tmp_path, text, env, flags)
    assert len(found) == 1, found
    return found[0]


# What is there when nobody says anything


def test_without_a_file_everything_has_its_documented_default() -> None:
    settings = load(None, NO_ENV)
    assert settings == Settings()
    assert settings.listen_address == ("127.0.0.1", 8080)
    assert (settings.queue.max_requests, settings.queue.max_bytes, settings.queue.max_wait) == (10_000, 2**30, 60.0)
    assert [(b.name, b.max_engine_waiting, b.best_effort) for b in settings.bands] == [
        ("interactive", 3, False),
        ("standard", 2, False),
        ("batch", 0, True),
    ]
    assert (settings.default_band, settings.identity.max_band) == ("standard", "standard")
    assert settings.limits.max_body == 64 * 2**20
    assert settings.observe.fast_interval == 0.5
    assert settings.endpoints == ()


def test_tenancy_has_the_defaults_of_the_design() -> None:
    settings = Settings()
    fairness, admission, identity = settings.fairness, settings.admission, settings.identity
    assert (fairness.policy, fairness.levels) == ("weighted_tokens", ("tenant",))
    assert (fairness.prices.prompt, fairness.prices.cached_prompt, fairness.prices.completion) == (1, 0, 2)
    assert (settings.ordering, settings.accounting.usage, settings.tenants) == ("fcfs", "auto", ())
    assert (admission.max_prefill_tokens, admission.max_time_per_output_token) == (16_384, None)
    assert (admission.reserved_slots, admission.engine_priority) == ("auto", False)
    assert (identity.require_key, identity.max_dynamic, identity.trusted_proxies) == (False, 1000, ())
    assert (identity.tenant_header, identity.user_header) == ("x-tenant-id", "x-user-id")
    assert settings.queue.max_tokens == 100_000_000


def test_a_default_band_is_changed_by_its_name_and_the_others_stay(tmp_path: Path) -> None:
    usual = Settings().bands
    for text, env in (
        ("bands: {interactive: {deadline: 30}, batch: {shed_target: 10s}, standard: }", {}),
        ("bands: {interactive: {deadline: 30}}", {"PENSTOCK__BANDS__BATCH__SHED_TARGET": "10s"}),
        ("{}", {"PENSTOCK__BANDS__INTERACTIVE__DEADLINE": "30", "PENSTOCK__BANDS": "{batch: {shed_target: 10s}}"}),
        ("{}", {"PENSTOCK__BANDS": "{interactive: {deadline: 30}, batch: {shed_target: 10s}}"}),
    ):
        interactive, standard, batch = read(tmp_path, text, env).bands
        assert interactive == usual[0].model_copy(update={"deadline": 30.0})
        assert standard == usual[1]
        assert batch == usual[2].model_copy(update={"shed_target": 10.0})
    assert read(tmp_path, "bands: {}").bands == usual
    assert [band.name for band in read(tmp_path, "bands: [{name: standard, deadline: 30}]").bands] == ["standard"]


def test_a_change_of_a_band_that_is_wrong_says_where_it_came_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "bands: {batch: {ceiling: 0.5}}", {"PENSTOCK__BANDS__BATCH__SHED_TARGET": "soon"})
    (wrong,) = [problem.line() for problem in caught.value.problems]
    assert wrong.startswith("bands[2].shed_target: `soon`")
    assert "(from PENSTOCK__BANDS__BATCH__SHED_TARGET)" in wrong


def test_tenants_are_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        f"""
        bands:
          - {{name: high, min_share: 0.5}}
          - {{name: low, min_share: 0.4, deadline: 2s, max_time_per_output_token: 50ms, max_bytes: 1MB,
              max_tokens: 9}}
        default_band: low
        fairness: {{policy: round_robin, levels: [model, tenant, user], prices: {{completion: 0}}}}
        ordering: shortest_first
        admission: {{reserved_slots: 0.25, max_time_per_output_token: 0.1, engine_priority: yes}}
        accounting: {{usage: off}}
        tenants:
          - name: team a
            weight: 2
            max_band: high
            keys: ["{KEY_HASH.upper()}"]
            limits: {{running: 32, queued: 500, queued_bytes: 1MiB, queued_tokens: 9000, requests_per_minute: 600,
                      tokens_per_minute: 2e6}}
          - {{name: anonymous, weight: "0.5", limits: {{running: 1}}}}
          - {{name: überall, keys:, limits:}}
        identity: {{require_key: true, trusted_proxies: [10.0.0.0/8, "::1", 192.168.1.7], tenant_header: X-Team}}
        """,
    )
    low = settings.bands[1]
    assert (low.min_share, low.deadline, low.max_time_per_output_token) == (0.4, 2.0, 0.05)
    assert (low.max_bytes, low.max_tokens) == (1_000_000, 9)
    assert settings.fairness.levels == ("model", "tenant", "user")
    assert (settings.fairness.prices.prompt, settings.fairness.prices.completion) == (1, 0)
    assert (settings.admission.reserved_slots, settings.admission.engine_priority) == (0.25, True)
    team, anonymous, everywhere = settings.tenants
    assert (team.name, team.weight, team.max_band, team.keys) == ("team a", 2.0, "high", (TenantKey(hash=KEY_HASH),))
    assert team.limits.model_dump() == {
        "running": 32,
        "queued": 500,
        "queued_bytes": 2**20,
        "queued_tokens": 9_000,
        "requests_per_minute": 600,
        "tokens_per_minute": 2_000_000,
        "tokens_per_day": None,
        "models": {},
    }
    assert (anonymous.weight, anonymous.max_band, anonymous.limits.running) == (0.5, "", 1)
    assert (everywhere.keys, everywhere.limits.running) == ((), None)
    assert settings.identity.trusted_proxies == ("10.0.0.0/8", "::1/128", "192.168.1.7/32")
    assert settings.identity.tenant_header == "x-team"


@pytest.mark.parametrize(
    ("written", "moment_s"),
    [
        ("2027-01-31", 1_801_440_000.0),  # the end of that day
        ("2027-01-31T18:00:00Z", 1_801_418_400.0),
        ("2027-01-31 18:00", 1_801_418_400.0),
        ("2027-01-31t18:00:00+02:00", 1_801_411_200.0),
        ("1801418400", None),
        ("2027-02-30", None),
        ("31.01.2027", None),
        ("tomorrow", None),
    ],
)
def test_a_key_ends_with_a_day_or_at_a_time(tmp_path: Path, written: str, moment_s: float | None) -> None:
    text = f"tenants: [{{name: a, keys: [{{hash: '{KEY_HASH}', expires: '{written}'}}]}}]"
    if moment_s is None:
        assert "is not a date or time" in only_line(tmp_path, text)
    else:
        assert read(tmp_path, text).tenants[0].keys[0].expires == moment_s


def test_tenants_may_come_from_the_environment() -> None:
    env = {
        "PENSTOCK__TENANTS__0__NAME": "a",
        "PENSTOCK__TENANTS__0__KEYS": f"['{KEY_HASH}']",
        "PENSTOCK__TENANTS__0__LIMITS__RUNNING": "3",
        "PENSTOCK__FAIRNESS__LEVELS": "[tenant, user]",
    }
    settings = load(None, env)
    assert [(t.name, t.keys, t.limits.running) for t in settings.tenants] == [("a", (TenantKey(hash=KEY_HASH),), 3)]
    assert settings.fairness.levels == ("tenant", "user")


def test_defaults_pass_their_own_checks() -> None:
    written = {
        key: value for key, value in Settings().model_dump(mode="json").items() if key not in {"endpoints", "models"}
    }
    assert from_mapping(written) == Settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().queue.max_wait = 1.0


@pytest.mark.parametrize("text", ["", "# nothing\n", "queue:\nendpoints:\nmodels:\nbands:\ntls:\n", "---\n"])
def test_nothing_written_means_defaults(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Settings()


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        listen: "[::1]:0"
        endpoints:
          - url: HTTPS://GPU-0.example/engine/
            engine: vllm
            models: [qwen-32b, "7"]
            slots: 64
            api_key: ${ENGINE_KEY:-}
            labels: {zone: no, rack: 12}
          - {url: http://gpu-1, name: second, api_key: "$${not}a${KEY}"}
        models: {gpt-4o: {to: qwen-32b}}
        queue: {enabled: off, max_requests: 0, max_bytes: 10MB, max_wait: 1.5m, drain_timeout: 0}
        bands:
          - {name: high, ceiling: 1}
          - {name: low, ceiling: 0.5, max_wait: 1h, max_requests: 10, max_engine_waiting: 0, best_effort: yes}
        default_band: low
        metrics: {aliases: [vllm_router]}
        """,
        {"KEY": "sesame"},
    )
    first, second = settings.endpoints
    assert (first.url, first.name, first.slots) == ("https://gpu-0.example/engine", "gpu-0.example:443", 64)
    assert (first.models, first.api_key) == (("qwen-32b", "7"), None)
    assert first.labels == {"zone": "no", "rack": "12"}
    assert (second.url, second.name, second.slots, second.models) == ("http://gpu-1", "second", "auto", "auto")
    assert second.api_key is not None
    assert second.api_key.get_secret_value() == "${not}asesame"
    assert settings.models["gpt-4o"].to == "qwen-32b"
    assert (settings.queue.enabled, settings.queue.max_bytes, settings.queue.max_wait) == (False, 10_000_000, 90.0)
    assert (settings.bands[1].max_wait, settings.bands[0].max_wait) == (3600.0, None)
    assert settings.identity.max_band == "low", "it follows default_band unless it is given"
    assert settings.listen_address == ("::1", 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("7", 7), ("0.25", 0.25), ("'3'", 3), ("1e1", 10)],
)
def test_durations_become_seconds(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, f"queue: {{max_wait: {text}}}").queue.max_wait == seconds


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("64MiB", 64 << 20),
        ("1GiB", 1 << 30),
        ("10MB", 10**7),
        ("64KB", 64_000),
        ("0.5KiB", 512),
        ("9", 9),
        ("3 B", 3),
    ],
)
def test_sizes_become_bytes(tmp_path: Path, text: str, n_bytes: int) -> None:
    assert read(tmp_path, f"limits: {{max_body: {text}}}").limits.max_body == n_bytes


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        (":8080", ("", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("[127.0.0.1]:80", ("127.0.0.1", 80)),
        ("host-1.local:65535", ("host-1.local", 65535)),
    ],
)
def test_listen_is_split(listen: str, address: tuple[str, int]) -> None:
    assert from_mapping({"listen": listen}).listen_address == address


# What is refused, and how

KEY_HASH = "sha256:" + "0123456789abcdef" * 4

ROUTING = listing(OWN["routing"])
WRONG_VALUES = {
    "listen: '8080'": "listen: `8080`: expected `host:port` (write `127.0.0.1:8080`)",
    "listen: 8080": "listen: `8080` has no host (write `127.0.0.1:8080`, or `:8080` for every interface)",
    "listen: localhost": "listen: `localhost`: expected `host:port` (write `localhost:8080`)",
    "listen: http://a:1": "listen: `http://a:1` is a URL; expected `host:port` (write `a:1`)",
    "listen: ::1:80": "listen: `::1:80`: an IPv6 address needs brackets (write `[::1]:80`)",
    "listen: a:70000": "listen: `a:70000`: the port has to be a number from 0 (choose a free one) to 65535",
    "listen: 'a b:1'": "listen: `a b:1`: expected a host name or an IP address before the port",
    "listen: '[256.0.0.1]:1'": "listen: `[256.0.0.1]:1`: expected a host name or an IP address before the port",
    "listen: '[gpu-0]:1'": "listen: `[gpu-0]:1`: expected a host name or an IP address before the port",
    "listen: 256.0.0.1:1": "listen: `256.0.0.1:1`: expected a host name or an IP address before the port",
    "listen: true": "listen: expected `host:port`, found `true`",
    "endpoints: http://a": "endpoints: expected a list, found `http://a` (begin each item with `- `)",
    "endpoints: [http://a]": "endpoints[0]: expected a mapping (`key: value`), found `http://a`",
    "endpoints: [{}]": "endpoints[0].url: is required",
    "endpoints: [{url: gpu-0:8000}]": (
        "endpoints[0].url: `gpu-0:8000` is not a URL with a host (write `http://gpu-0:8000`)"
    ),
    "endpoints: [{url: ftp://a}]": "endpoints[0].url: `ftp://a`: expected a URL with http://, https:// or unix:/path",
    "endpoints: [{url: 'http://'}]": "endpoints[0].url: `http://` is not a URL with a host",
    "endpoints: [{url: 'http://[::1'}]": "endpoints[0].url: `http://[::1` is not a URL with a host",
    "endpoints: [{url: 'http://a b'}]": (
        "endpoints[0].url: `http://a b` is not a URL: expected ASCII characters without spaces"
    ),
    "endpoints: [{url: http://a:0}]": ("endpoints[0].url: `http://a:0`: the port has to be a number from 1 to 65535"),
    "endpoints: [{url: http://a:x}]": ("endpoints[0].url: `http://a:x`: the port has to be a number from 1 to 65535"),
    "endpoints: [{url: 'http://a?b'}]": "endpoints[0].url: `http://a?b`: a URL here has no query and no fragment",
    "endpoints: [{url: 'http://a#b'}]": "endpoints[0].url: `http://a#b`: a URL here has no query and no fragment",
    "endpoints: [{url: http://user:pw@a}]": (
        "endpoints[0].url: credentials in a URL are not used (give the engine's key as `api_key`)"
    ),
    "endpoints: [{url: http://a/x/v1/}]": (
        "endpoints[0].url: `http://a/x/v1/`: Penstock appends the whole path, `/v1` included (write `http://a/x`)"
    ),
    "endpoints: [{url: http://a, name: 'a b'}]": (
        "endpoints[0].name: `a b` is not a name: expected at most 128 printable characters without spaces, "
        "quotes or commas"
    ),
    "endpoints: [{url: http://a, engine: vlm}]": (
        "endpoints[0].engine: `vlm`: expected auto, vllm, sglang, tgi, llamacpp, trtllm, lmdeploy, ollama or openai "
        "(did you mean `vllm`?)"
    ),
    "endpoints: [{url: http://a, models: m}]": (
        "endpoints[0].models: `m`: expected `auto`, a list of names, or `{ours: theirs}` (write it as a list: [NAME])"
    ),
    "endpoints: [{url: http://a, models: []}]": (
        "endpoints[0].models: expected `auto`, a list of names, or `{ours: theirs}`, found an empty list"
    ),
    "endpoints: [{url: http://a, models: {}}]": (
        "endpoints[0].models: expected `auto`, a list of names, or `{ours: theirs}`, found an empty mapping"
    ),
    "endpoints: [{url: http://a, models: {m: }}]": (
        "endpoints[0].models: the engine's name for `m`: expected text, found nothing"
    ),
    "endpoints: [{url: http://a, models: {m: [a, b]}}]": (
        "endpoints[0].models: the engine's name for `m`: expected text, found a list"
    ),
    "endpoints: [{url: http://a, models: {m: 4}}]": (
        "endpoints[0].models: the engine's name for `m`: expected text, found `4` (put it in quotes)"
    ),
    "endpoints: [{url: http://a, models: {m: ' '}}]": (
        "endpoints[0].models: the engine's name for `m`: ` ` is not a model's name: expected 1 to 256 characters"
    ),
    "endpoints: [{url: http://a, models: {'': m}}]": (
        "endpoints[0].models: an empty text is not a model's name: expected 1 to 256 characters"
    ),
    "endpoints: [{url: http://a, models: [{m: x}]}]": (
        "endpoints[0].models: expected a name, found a mapping (write `models: {ours: theirs}`, without the dash)"
    ),
    "{models: {m: {to: b}}, endpoints: [{url: http://a, models: {m: x}}]}": (
        "models.m: an alias cannot have the name of a model that endpoints[0] lists"
    ),
    "endpoints: [{url: http://a, models: [4]}]": ("endpoints[0].models: expected text, found `4` (put it in quotes)"),
    "endpoints: [{url: http://a, slots: 0}]": (
        "endpoints[0].slots: `0`: expected `auto` or a whole number of 1 or more"
    ),
    "endpoints: [{url: http://a, slots: true}]": (
        "endpoints[0].slots: `true`: expected `auto` or a whole number of 1 or more"
    ),
    "endpoints: [{url: http://a, api_key: 5}]": "endpoints[0].api_key: expected text (put it in quotes)",
    "endpoints: [{url: http://a, api_key: a b}]": (
        "endpoints[0].api_key: expected visible ASCII characters without spaces, at most 4096"
    ),
    "endpoints: [{url: http://a, labels: {zone: [1]}}]": "endpoints[0].labels.zone: expected text, found a list",
    "endpoints: [{url: http://a}, {url: 'http://A:80/'}]": ("endpoints[1].url: is the same as that of endpoints[0]"),
    "endpoints: [{url: http://a, name: x}, {url: http://b, name: x}]": (
        "endpoints[1].name: is the same as that of endpoints[0] (give each a `name` of its own)"
    ),
    "endpoints: [{url: http://a/x}, {url: http://a/y}]": (
        "endpoints[1].name: is the same as that of endpoints[0] (give each a `name` of its own)"
    ),
    "models: {a: b}": "models.a: expected a mapping (`key: value`), found `b`",
    "models: {'': {to: b}}": ("models[``]: an empty text is not a model's name: expected 1 to 256 characters"),
    "models: {a: {}}": "models.a: says nothing (give `to`, `split`, `band`, `weight`, `prices` or `fallback`)",
    "models: {a: {fallback: [b, a]}}": "models.a.fallback[1]: `a` is the model itself (name another one)",
    "models: {a: {to: b, fallback: [b]}}": "models.a.fallback[0]: `b` is the model itself (name another one)",
    "models: {a: {fallback: [b, c, b]}}": "models.a.fallback[2]: `b` is asked before already, as `b`",
    "models: {a: {fallback: [b, c]}, c: {to: b}}": "models.a.fallback[1]: `c` is asked before already, as `b`",
    "{models: {a: {fallback: [smal]}}, endpoints: [{url: http://e, models: [small]}]}": (
        "models.a.fallback[0]: `smal` is neither a model that an endpoint lists nor an alias of one (did you mean "
        "`small`?)"
    ),
    "models: {a: {fallback: [b, c, d, e, f, g, h, i, j]}}": ("models.a.fallback: has 9 items; expected 0 to 8"),
    "models: {a: {to: b}, b: {to: c}}": "models.a.to: `b` is itself an alias or a split (name the engine's model)",
    "{models: {a: {to: b}}, endpoints: [{url: http://e, models: [a]}]}": (
        "models.a: an alias cannot have the name of a model that endpoints[0] lists"
    ),
    "models: {a: {band: gold}}": "models.a.band: is `gold`, which is none of the bands (interactive, standard, batch)",
    "models: {a: {weight: 2}}": (
        "models.a.weight: divides nothing: `fairness.levels` does not name `model` (write `levels: [tenant, model]`)"
    ),
    "{models: {a: {weight: 0}}, fairness: {levels: [model]}}": "models.a.weight: `0`: expected more than 0",
    "models: {a: {prices: {prompt: -1}}}": "models.a.prices.prompt: `-1`: expected at least 0",
    "models: {a: {prices: {prompt: 0, completion: 0}}}": (
        "models.a.prices: are all 0: at least one kind of token has to cost something"
    ),
    "{models: {a: {prices: {prompt: 2}}}, fairness: {policy: round_robin}}": (
        "models.a.prices: mean nothing with `fairness.policy: round_robin`, which counts no tokens "
        "(write `policy: weighted_tokens`)"
    ),
    "endpoints: [{url: http://a, price: -1}]": "endpoints[0].price: `-1`: expected at least 0",
    "endpoints: [{url: http://a, max_kv_usage: 1.5}]": "endpoints[0].max_kv_usage: `1.5`: expected at most 1",
    "endpoints: [{url: http://a, max_prefill_tokens: 0}]": "endpoints[0].max_prefill_tokens: `0`: expected at least 1",
    "endpoints: [{url: http://a, max_time_per_output_token: 0}]": (
        "endpoints[0].max_time_per_output_token: `0`: expected more than 0"
    ),
    "endpoints: [{url: http://a, max_engine_waiting: -1}]": (
        "endpoints[0].max_engine_waiting: `-1`: expected at least 0"
    ),
    "routing: {price_weight: -1}": "routing.price_weight: `-1`: expected at least 0",
    "routing: {policy: session, price_weight: 2s}": (
        "routing.price_weight: `session` compares no times: with it only `inf` and `0` mean something "
        "(write `policy: predicted_ttft`)"
    ),
    "bands: [{name: standard, fairness: fair}]": (
        "bands[0].fairness.policy: `fair`: expected weighted_tokens, round_robin or fcfs"
    ),
    "bands: [{name: standard, ordering: lifo}]": (
        "bands[0].ordering: `lifo`: expected fcfs, deadline or shortest_first"
    ),
    "queue: 5": "queue: expected a mapping (`key: value`), found `5`",
    "queue: {max_wiat: 1}": "queue.max_wiat: unknown setting (did you mean `max_wait`?)",
    "queue: {heartbeat_after: -1s}": "queue.heartbeat_after: `-1s`: expected at least 0",
    "queue: {enabled: 1}": "queue.enabled: `1` is not true or false",
    "queue: {max_requests: -1}": "queue.max_requests: `-1`: expected at least 0",
    "queue: {max_requests: true}": "queue.max_requests: `true` is not a whole number",
    "queue: {max_requests: 1.5}": "queue.max_requests: `1.5` is not a whole number",
    "queue: {max_requests: many}": "queue.max_requests: `many` is not a whole number",
    "queue: {max_bytes: 3 QB}": (
        "queue.max_bytes: `3 QB` is not a size (write bytes, or a unit: 64KB, 64KiB, 10MB, 1GiB)"
    ),
    "queue: {max_bytes: true}": (
        "queue.max_bytes: `true` is not a size (write bytes, or a unit: 64KB, 64KiB, 10MB, 1GiB)"
    ),
    "queue: {max_bytes: -1}": "queue.max_bytes: `-1`: expected at least 0",
    "queue: {max_wait: 20 sec}": (
        "queue.max_wait: `20 sec` is not a duration (write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d)"
    ),
    "queue: {max_wait: true}": (
        "queue.max_wait: `true` is not a duration (write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d)"
    ),
    "queue: {max_wait: null}": (
        "queue.max_wait: nothing is not a duration (write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d)"
    ),
    "queue: {max_wait: inf}": (
        "queue.max_wait: `inf` is not a duration (write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d)"
    ),
    "queue: {max_wait: -5s}": "queue.max_wait: `-5s`: expected at least 0",
    "queue: {max_wait: 1e99}": "queue.max_wait: `1e+99` is longer than ten years",
    "bands: []": "bands: has 0 items; expected 1 to 8",
    "bands: [{name: standard}, {name: standard}]": "bands[1].name: is the same as that of bands[0]",
    "bands: [{name: standard}, {name: a b}]": (
        "bands[1].name: `a b` is not a band's name: expected letters, digits, `-`, `_` and `.`, at most 64"
    ),
    "bands: [{name: standard, max_engine_waiting: -1}]": "bands[0].max_engine_waiting: `-1`: expected at least 0",
    "bands: [{name: standard, ceiling: 0}]": "bands[0].ceiling: `0`: expected more than 0",
    "bands: [{name: standard, ceiling: 1.1}]": "bands[0].ceiling: `1.1`: expected at most 1",
    "bands: [{name: standard, max_wait: -1s}]": "bands[0].max_wait: `-1s`: expected at least 0",
    "bands: [{name: standard, max_requests: -1}]": "bands[0].max_requests: `-1`: expected at least 0",
    "bands: [{name: standard, min_share: 1}]": "bands[0].min_share: `1`: expected less than 1",
    "bands: [{name: standard, shed_target: 5s}]": (
        "bands[0].shed_target: sheds requests, and this band is not for best effort "
        "(set `best_effort: true` too, or leave it out)"
    ),
    "bands: [{name: standard, min_share: -0.1}]": "bands[0].min_share: `-0.1`: expected at least 0",
    "bands: [{name: standard, min_share: 0.5}, {name: b, min_share: 0.5}, {name: c, min_share: 0.5}]": (
        "bands[1].min_share: with those before it, the minimum shares reach 1; expected less than 1 over all bands"
    ),
    "bands: [{name: standard, deadline: 0}]": "bands[0].deadline: `0`: expected more than 0",
    "bands: [{name: standard, max_time_per_output_token: 0}]": (
        "bands[0].max_time_per_output_token: `0`: expected more than 0"
    ),
    "bands: [{name: standard, max_bytes: -1}]": "bands[0].max_bytes: `-1`: expected at least 0",
    "bands: [{name: standard, max_tokens: -1}]": "bands[0].max_tokens: `-1`: expected at least 0",
    "default_band: standrad": (
        "default_band: is `standrad`, which is none of the bands (interactive, standard, batch) "
        "(did you mean `standard`?)"
    ),
    "bands: {urgent: {deadline: 3}}": (
        "bands.urgent: is none of the default bands (interactive, standard, batch) "
        "(for others list all, highest first: `bands: [{name: …}, …]`)"
    ),
    "bands: {interctive: {deadline: 3}}": (
        "bands.interctive: is none of the default bands (interactive, standard, batch) (did you mean `interactive`?)"
    ),
    "bands: {batch: 3}": "bands[2]: expected a mapping (`key: value`), found `3`",
    "bands: {name: interactive, deadline: 3}": "bands: expected a list, found a mapping",
    "bands: [{name: interactive, deadline: 30}]": (
        "default_band: is by default `standard`, which is none of the bands (interactive) "
        "(a list replaces all bands; to change one and keep the others, write `bands: {interactive: {…}}`)"
    ),
    "bands: [{name: fast}]": "default_band: is by default `standard`, which is none of the bands (fast)",
    "identity: {max_band: gold}": (
        "identity.max_band: is `gold`, which is none of the bands (interactive, standard, batch)"
    ),
    "identity: {band_header: 'x y'}": "identity.band_header: `x y` is not a header's name",
    "identity: {require_key: true}": (
        "identity.require_key: no tenant has a key, so no client could be served (`penstock keys new NAME` makes one)"
    ),
    "identity: {user_header: Cookie}": (
        "identity.user_header: `Cookie` carries secrets, and names are shown and logged"
    ),
    "identity: {tenant_header: x-api-key}": (
        "identity.tenant_header: `x-api-key` carries secrets, and names are shown and logged"
    ),
    "identity: {require_key: perhaps}": "identity.require_key: `perhaps` is not true or false",
    "identity: {tenant_header: ''}": "identity.tenant_header: an empty text is not a header's name",
    "identity: {max_dynamic: 0}": "identity.max_dynamic: `0`: expected at least 1",
    "identity: {max_dynamic: 1000000000}": "identity.max_dynamic: `1000000000`: expected at most 100000",
    "identity: {trusted_proxies: 10.0.0.1}": (
        "identity.trusted_proxies: expected a list, found `10.0.0.1` (begin each item with `- `)"
    ),
    "identity: {trusted_proxies: [10.0.0.1/33]}": (
        "identity.trusted_proxies[0]: `10.0.0.1/33` is not an IP address or a network such as 10.0.0.0/8"
    ),
    "identity: {trusted_proxies: [proxy.local]}": (
        "identity.trusted_proxies[0]: `proxy.local` is not an IP address or a network such as 10.0.0.0/8"
    ),
    "identity: {trusted_proxies: [10.0.0.1/8]}": (
        "identity.trusted_proxies[0]: `10.0.0.1/8` is an address within a network (write `10.0.0.0/8`)"
    ),
    "identity: {trusted_proxies: [10]}": (
        "identity.trusted_proxies[0]: expected an IP address or a network such as 10.0.0.0/8, found `10`"
    ),
    "fairness: {policy: weighted_token}": (
        "fairness.policy: `weighted_token`: expected weighted_tokens, round_robin or fcfs "
        "(did you mean `weighted_tokens`?)"
    ),
    "fairness: {levels: []}": "fairness.levels: has 0 items; expected 1 to 4",
    "fairness: {levels: [tenant, user, model, tenant, user]}": "fairness.levels: has 5 items; expected 1 to 4",
    "fairness: {levels: [user, tenant, user]}": (
        "fairness.levels[2]: is the same as fairness.levels[0] (name each level once)"
    ),
    "fairness: {levels: [tenants]}": (
        "fairness.levels[0]: `tenants`: expected tenant, user or model (did you mean `tenant`?)"
    ),
    "fairness: {levels: tenant}": ("fairness.levels: expected a list, found `tenant` (begin each item with `- `)"),
    "fairness: {prices: {prompt: -1}}": "fairness.prices.prompt: `-1`: expected at least 0",
    "fairness: {prices: {prompt: 0, completion: 0}}": (
        "fairness.prices: are all 0: at least one kind of token has to cost something"
    ),
    "fairness: {prices: {input: 1}}": (
        "fairness.prices.input: unknown setting (known here: prompt, cached_prompt, completion)"
    ),
    "ordering: lifo": "ordering: `lifo`: expected fcfs, deadline or shortest_first",
    "accounting: {usage: on}": "accounting.usage: `on`: expected auto or off",
    "tenants: {a: {}}": "tenants: expected a list, found a mapping",
    "tenants: [{}]": "tenants[0].name: is required",
    "tenants: [{name: ''}]": (
        "tenants[0].name: an empty text is not a tenant's name: expected 1 to 128 printable characters, "
        "with no space at either end"
    ),
    "tenants: [{name: ' a'}]": "tenants[0].name: ` a` is not a tenant's name",
    f"tenants: [{{name: {'n' * 129}}}]": f"tenants[0].name: `{'n' * 60}…` is not a tenant's name",
    'tenants: [{name: "a\\u202eb"}]': "tenants[0].name: expected at most 4096 printable characters",
    "tenants: [{name: 7}]": "tenants[0].name: expected text, found `7` (put it in quotes)",
    "tenants: [{name: a}, {name: b}, {name: a}]": "tenants[2].name: is the same as that of tenants[0]",
    "tenants: [{name: a, weight: 0}]": "tenants[0].weight: `0`: expected more than 0",
    "tenants: [{name: a, weight: -2}]": "tenants[0].weight: `-2`: expected more than 0",
    "tenants: [{name: a, weight: inf}]": "tenants[0].weight: `inf` is not a number",
    "tenants: [{name: a, weight: 1e-9}]": "tenants[0].weight: `1e-09`: expected a weight from 1e-06 to 1e+06",
    "tenants: [{name: a, weight: 1e9}]": "tenants[0].weight: `1e+09`: expected a weight from 1e-06 to 1e+06",
    "tenants: [{name: a, max_band: interactiv}]": (
        "tenants[0].max_band: is `interactiv`, which is none of the bands (interactive, standard, batch) "
        "(did you mean `interactive`?)"
    ),
    "tenants: [{name: a, limits: {running: 0}}]": "tenants[0].limits.running: `0`: expected at least 1",
    "tenants: [{name: a, limits: {queued: -1}}]": "tenants[0].limits.queued: `-1`: expected at least 1",
    "tenants: [{name: a, limits: {queued_bytes: 0}}]": "tenants[0].limits.queued_bytes: `0`: expected at least 1",
    "tenants: [{name: a, limits: {requests_per_minute: 0.5}}]": (
        "tenants[0].limits.requests_per_minute: `0.5` is not a whole number"
    ),
    "tenants: [{name: a, limits: {token_per_minute: 5}}]": (
        "tenants[0].limits.token_per_minute: unknown setting (did you mean `tokens_per_minute`?)"
    ),
    f"tenants: [{{name: a, keys: ['{KEY_HASH}']}}, {{name: b, keys: ['{KEY_HASH.upper()}']}}]": (
        "tenants[1].keys[0]: is the same as tenants[0].keys[0] (a key has one tenant)"
    ),
    f"tenants: [{{name: anonymous, keys: ['{KEY_HASH}']}}]": (
        "tenants[0].keys: `anonymous` stands for clients without a key"
    ),
    f"tenants: [{{name: a, keys: [{{hash: '{KEY_HASH}', name: ci}}, {{hash: '{KEY_HASH[:-1]}0', name: ci}}]}}]": (
        "tenants[0].keys[1].name: is the same as that of tenants[0].keys[0]"
    ),
    "tenants: [{name: a, keys: [{models: [m]}]}]": "tenants[0].keys[0].hash: is required",
    f"tenants: [{{name: a, keys: [{{hash: '{KEY_HASH}', name: 'a b'}}]}}]": (
        "tenants[0].keys[0].name: `a b` is not a name: expected at most 128 printable characters without spaces, "
        "quotes or commas"
    ),
    f"tenants: [{{name: a, keys: [{{hash: '{KEY_HASH}', models: []}}]}}]": (
        "tenants[0].keys[0].models: has 0 items; expected 1 to 100"
    ),
    f"tenants: [{{name: a, keys: [{{hash: '{KEY_HASH}', expires: 2027}}]}}]": (
        "tenants[0].keys[0].expires: `2027` is not a date or time "
        "(write 2027-01-31 (the end of that day) or 2027-01-31T18:00:00Z)"
    ),
    "tenants: [{name: a, keys: [sesame]}]": (
        "tenants[0].keys[0]: is not a key's hash: expected `sha256:` and 64 hexadecimal digits "
        "(`penstock keys hash` prints the hash of a key)"
    ),
    "admission: {slots_initial: 0}": "admission.slots_initial: `0`: expected at least 1",
    "admission: {max_kv_usage: 0}": "admission.max_kv_usage: `0`: expected more than 0",
    "admission: {max_kv_usage: 1.01}": "admission.max_kv_usage: `1.01`: expected at most 1",
    "admission: {max_kv_usage: high}": "admission.max_kv_usage: `high` is not a number",
    "admission: {engine_priority: 2}": "admission.engine_priority: `2` is not true or false",
    "admission: {max_prefill_tokens: 0}": "admission.max_prefill_tokens: `0`: expected at least 1",
    "admission: {max_time_per_output_token: 0s}": ("admission.max_time_per_output_token: `0s`: expected more than 0"),
    "admission: {reserved_slots: 1}": (
        "admission.reserved_slots: `1`: expected `auto` or a share of at least 0 and less than 1"
    ),
    "admission: {reserved_slots: some}": (
        "admission.reserved_slots: `some`: expected `auto` or a share of at least 0 and less than 1"
    ),
    "routing: {policy: leastloaded}": (
        f"routing.policy: `leastloaded`: expected {ROUTING} (did you mean `least_loaded`?)"
    ),
    "routing: {locality: lmcache}": (
        "routing.lmcache: lacks a coordinator or a controller (`locality: lmcache` asks one of them)"
    ),
    "routing: {lmcache: {controller: http://a:9000}}": (
        "routing.lmcache.controller: is not asked with `locality: history` (write `locality: lmcache`)"
    ),
    "routing: {locality: lmcache, lmcache: {coordinator: a:9300}}": (
        "routing.lmcache.coordinator: `a:9300` is not a URL with a host (write `http://a:9300`)"
    ),
    "routing: {locality: kv_events}\nendpoints: [{url: http://a}]": (
        "routing.locality: is `kv_events`, but no endpoint has any (give endpoints `kv_events: auto`)"
    ),
    "endpoints: [{url: http://a, kv_events: auto}]": (
        "endpoints[0].kv_events: are not listened to with `locality: history` (write `locality: kv_events`)"
    ),
    "discovery: [{dns: {name: vllm, port: 80, kv_events: auto}}]": (
        "discovery[0].dns.kv_events: are not listened to with `locality: history` (write `locality: kv_events`)"
    ),
    "endpoints: [{url: http://a, lmcache_instance: e1}]": (
        "endpoints[0].lmcache_instance: means nothing with `locality: history` (write `locality: lmcache`)"
    ),
    "routing: {locality: kv_events}\nendpoints: [{url: http://a, kv_events: 'tcp://*:5557'}]": (
        "endpoints[0].kv_events: `tcp://*:5557`: expected `off`, `auto` or tcp://HOST:PORT, as it is reached from here"
    ),
    "routing: {locality: kv_events}\nendpoints: [{url: http://a, kv_events: 'tcp://a'}]": (
        "endpoints[0].kv_events: `tcp://a`: expected tcp://HOST:PORT, with a port from 1 to 65534"
    ),
    "routing: {policy: [1]}": f"routing.policy: a list: expected {ROUTING}",
    "routing: {imbalance_threshold: 0}": ("routing.imbalance_threshold: `0`: expected `inf` or a number, more than 0"),
    "routing: {imbalance_threshold: 4}": (
        "routing.imbalance_threshold: means nothing with `policy: predicted_ttft` (write `policy: load_balanced_kv`)"
    ),
    "routing: {policy: kv, affinity_escape: 1}": (
        "routing.affinity_escape: means nothing with `policy: kv` (write `policy: predicted_ttft`)"
    ),
    "routing: {policy: least_loaded, affinity_wait: 1}": (
        "routing.affinity_wait: means nothing with `policy: least_loaded`, which prefers no endpoint"
    ),
    "routing: {policy: round_robin, prefix_chunk: 128}": (
        "routing.prefix_chunk: means nothing with `policy: round_robin`, which compares no prompts"
    ),
    "routing: {policy: round_robin, prefix_group: 8}": (
        "routing.prefix_group: means nothing with `policy: round_robin`, which compares no prompts"
    ),
    "routing: {prefix_group: 33}": "routing.prefix_group: `33`: expected at most 32",
    "routing: {prefix_chunk: 16}": "routing.prefix_chunk: `16`: expected at least 64",
    "routing: {affinity_wait: 1m}": "routing.affinity_wait: is not shorter than `queue.max_wait` (`60s`)",
    "routing: {affinity_wait: -1}": "routing.affinity_wait: `-1`: expected at least 0",
    "routing: {policy: session, session: {header: null}}": (
        "routing.session: names no source of a session (give a header, a cookie or a field of the body)"
    ),
    "routing: {policy: session, affinity_wait: 1, session: {strict: true}}": (
        "routing.affinity_wait: means nothing with `session.strict`, which waits for as long as it takes"
    ),
    "routing: {policy: kv, session: {strict: true}}": (
        "routing.session.strict: means nothing with `policy: kv` (write `policy: session`)"
    ),
    "routing: {session: {names: [{}]}}": (
        "routing.session.names[0]: names a session by a header or by a field of the body: exactly one of both"
    ),
    "routing: {session: {names: [{header: x-a, body: a}]}}": (
        "routing.session.names[0]: names a session by a header or by a field of the body: exactly one of both"
    ),
    "routing: {session: {names: [{header: Authorization}]}}": (
        "routing.session.names[0]: `authorization` tells no session"
    ),
    "routing: {session: {names: [{body: job, parent: messages}]}}": (
        "routing.session.names[0]: `messages` tells no session"
    ),
    "routing: {session: {names: [{header: x-a, parent: 'a b'}]}}": (
        "routing.session.names[0].parent: `a b` is not a header's name"
    ),
    "routing: {session: {names: [{header: x-a, parent: X-A}]}}": (
        "routing.session.names[0].parent: is the session's own name"
    ),
    "routing: {session: {names: [{header: x-a}, {header: X-A}]}}": "routing.session.names[1]: `x-a` is there twice",
    "routing: {session: {names: [{header: 'a b'}]}}": "routing.session.names[0].header: `a b` is not a header's name",
    "routing: {session: {cookie: 'a b'}}": "routing.session.cookie: `a b` is not a cookie's name",
    "routing: {locality: other}": "routing.locality: `other`: expected history, kv_events or lmcache",
    "routing: {policy: prefix, locality: lmcache, lmcache: {coordinator: 'http://a:9'}}": (
        "routing.locality: `prefix` goes by our own history alone (write `policy: kv`)"
    ),
    "routing: {policy: round_robin, locality: lmcache, lmcache: {coordinator: 'http://a:9'}}": (
        "routing.locality: `round_robin` does not use cached prefixes (write `policy: kv`)"
    ),
    "retry: {max_attempts: 0}": "retry.max_attempts: `0`: expected at least 1",
    "retry: {budget: 1.5}": "retry.budget: `1.5`: expected at most 1",
    "retry: {budget: -0.1}": "retry.budget: `-0.1`: expected at least 0",
    "health: {eject_for: 1m}": "health.eject_for: `eject_for` (`1m`) is longer than `eject_for_max` (`30s`)",
    "health: {eject_for_max: 0.5}": ("health.eject_for_max: `eject_for` (`1s`) is longer than `eject_for_max` (`0.5`)"),
    "health: {panic_threshold: 2}": "health.panic_threshold: `2`: expected at most 1",
    "health: {eject_after: 0}": "health.eject_after: `0`: expected at least 1",
    "timeouts: {connect: 0}": "timeouts.connect: `0`: expected more than 0",
    "timeouts: {first_byte: -1s}": "timeouts.first_byte: `-1s`: expected more than 0",
    "limits: {max_connections: 0}": "limits.max_connections: `0`: expected at least 1",
    "limits: {max_body: 0}": "limits.max_body: `0`: expected more than 0",
    "observe: {fast_interval: 2s}": ("observe.fast_interval: `fast_interval` (`2s`) is longer than `interval` (`1s`)"),
    "metrics: {aliases: [other]}": "metrics.aliases[0]: `other`: expected vllm_router",
    "tls: {cert: /nowhere/cert.pem}": "tls.key: is missing, but `tls.cert` is given (HTTPS needs both)",
    "max_wait: 5s": "max_wait: unknown setting (did you mean `queue.max_wait` or `bands[].max_wait`?)",
    "discovery: [{}]": "discovery[0]: is empty: expected one of dns, file or kubernetes",
    "discovery: [{dns: a}]": "discovery[0].dns.port: is required with `type: address` (write `dns: a:8000`)",
    "discovery: [{dns: 'a b:1'}]": "discovery[0].dns.name: `a b` is not a host name",
    "discovery: [{file: a, dns: b:1}]": "discovery[0]: has dns and file: expected one of dns, file or kubernetes",
    "discovery: [{file: ''}]": "discovery[0].file.path: an empty text is not the name of a file",
    "discovery: [{file: {env: [A]}}]": "discovery[0].file.path: is required",
    "discovery: [{kubernetes: {}}]": "discovery[0].kubernetes: expected one of `service`, `selector` and `pool`",
    "discovery: [{kubernetes: {service: a, selector: b=c}}]": (
        "discovery[0].kubernetes: expected one of `service`, `selector` and `pool`"
    ),
    "discovery: [{kubernetes: {service: a, token_file: /dev/null}}]": (
        "discovery[0].kubernetes.token_file: is given, but `server` is not (in a cluster none of them is needed)"
    ),
    "discovery: [{kubernetes: {service: a, pool: b}}]": (
        "discovery[0].kubernetes: expected one of `service`, `selector` and `pool`"
    ),
    "discovery: [{kubernetes: {pool: b, port: 1, server: 'http://a'}}]": (
        "discovery[0].kubernetes.port: is not used with `pool`, which has target ports of its own"
    ),
    "models: {a: {split: {b: 1}, to: c}}": "models.a.split: is given beside `to` (give one of them)",
    "models: {a: {split: {b: 0, c: 0}}}": "models.a.split: gives no model a share",
    "models: {a: {split: {b: -1}}}": "models.a.split.b: `-1`: expected at least 0",
    "models: {a: {split: {b: 0.5}}}": "models.a.split.b: `0.5` is not a whole number",
    "models: {a: {split: {b: 1}}, b: {to: c}}": "models.a.split.b: is itself an alias or a split",
    "models: {a: {to: b}, b: {split: {c: 1}}}": "models.a.to: `b` is itself an alias or a split",
    "bands: [{name: a, priority: 1}, {name: standard}, {name: c, priority: 0}]": (
        "bands[2].priority: makes it 0, not less than the 0 of the band before it"
    ),
    "bands: [{name: a, priority: 0}, {name: standard}]": "bands[1].priority: makes it 0, not less than the 0",
    "bands: [{name: standard, priority: 1.5}]": "bands[0].priority: `1.5` is not a whole number",
    "discovery: [{kubernetes: {service: a, port: 70000}}]": (
        "discovery[0].kubernetes.port: `70000`: the port has to be a number from 1 to 65535"
    ),
    "discovery: [{kubernetes: {service: a, server: 'http://a', ca_file: /nowhere}}]": (
        "discovery[0].kubernetes.ca_file: cannot read `/nowhere`: no such file or directory"
    ),
    "queue: {ordering: fcfs}": "queue.ordering: unknown setting "
    "(did you mean `ordering` at the top level or `bands[].ordering`?)",
    "queue: {min_share: 1}": "queue.min_share: unknown setting (did you mean `bands[].min_share`?)",
    "queue: {max_tokens: -1}": "queue.max_tokens: `-1`: expected at least 0",
    "ordring: fcfs": "ordring: unknown setting (did you mean `ordering`?)",
    "retry: {colour: 1}": "retry.colour: unknown setting (known here: max_attempts, budget)",
    "queue: {max_wait: 1, max_wait: 2}": "queue.max_wait: is given twice, in line 1 and in line 1",
    "listen: a:1\nlisten: a:2": "listen: is given twice, in line 1 and in line 2",
    "<<: {listen: ':1'}": "[`<<`]: unknown setting",
}


@pytest.mark.parametrize("text", WRONG_VALUES)
def test_a_wrong_value_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    assert any(line.startswith(WRONG_VALUES[text]) for line in lines(tmp_path, text)), lines(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tenants: [{name: a, weight: '0'}]", "tenants[0].weight: `0`: expected more than 0"),
        ("tenants: [{name: a, weight: '0.0'}]", "tenants[0].weight: `0.0`: expected more than 0"),
        ("queue: {max_requests: 5%}", "queue.max_requests: `5%` is not a whole number"),
        ("queue: {max_requests: '12.50'}", "queue.max_requests: `12.50` is not a whole number"),
    ],
)
def test_a_number_is_suggested_only_if_the_setting_may_have_it(tmp_path: Path, text: str, line: str) -> None:
    assert lines(tmp_path, text) == [line]


def test_each_wrong_value_is_reported_once(tmp_path: Path) -> None:
    several = {text for text in WRONG_VALUES if len(lines(tmp_path, text)) != 1}
    assert several == {"tls: {cert: /nowhere/cert.pem}"}, "its file is missing too"


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    text = """
        endpoints: [{url: http://a}, {url: nothing at all}, {url: http://a}]
        queue: {max_wait: -1, max_rquests: 1}
        bands: [{name: x}, {name: x}]
        health: {eject_for: 1h}
        journal: there
    """
    paths = {line.partition(": ")[0] for line in lines(tmp_path, text)}
    assert paths == {
        "endpoints[1].url",
        "endpoints[2].url",
        "queue.max_wait",
        "queue.max_rquests",
        "bands[1].name",
        "default_band",
        "health.eject_for",
        "journal",
    }


def test_of_very_many_problems_some_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    told = lines(tmp_path, "queue:\n" + "".join(f"  setting-{at}: 1\n" for at in range(500)))
    assert len(told) == TOLD_MAX + 1
    assert told[-1] == f"settings: {500 - TOLD_MAX} more problems, not shown"


def test_too_many_bands_are_refused(tmp_path: Path) -> None:
    bands = ", ".join(f"{{name: b{n}}}" for n in range(9))
    assert lines(tmp_path, f"default_band: b0\nbands: [{bands}]") == ["bands: has 9 items; expected 1 to 8"]


def test_tls_needs_both_files_readable(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("pem")
    tls = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    assert from_mapping({"tls": tls}).tls.cert == tls["cert"]
    with pytest.raises(ConfigError, match=r"cannot read .*: no such file or directory"):
        from_mapping({"tls": tls | {"key": str(tmp_path / "gone.pem")}})


def test_a_gateway_without_endpoints_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"no endpoints: give --endpoint URL or endpoints: in the file"):
        require_endpoints(Settings())
    require_endpoints(load(None, NO_ENV, Flags(endpoints=("http://a",))))


# The file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not UTF-8 text (byte 0)"),
        (b"x" * (FILE_BYTES_MAX + 1), "is larger than 4 MiB: this is not a settings file"),
    ],
)
def test_an_unreadable_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(str(file), NO_ENV)
    assert [problem.line() for problem in caught.value.problems] == [f"{file}: {message}"]
    assert caught.value.unreadable


@pytest.mark.parametrize(
    ("path", "message"),
    [("/nowhere/p.yaml", "no such file or directory"), ("/", "is a directory"), ("a\0b", "not the name of a file")],
)
def test_a_missing_file_or_a_directory_is_one_line(path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(path, NO_ENV)
    (problem,) = caught.value.problems
    assert message in problem.line()
    assert caught.value.unreadable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "expected a mapping of settings"),
        ("hello", "expected a mapping of settings"),
        ("a: [1", "is not YAML in line 1: a `[` or `{`, begun in line 1, is not closed, or a comma is missing"),
        ("a: 1\n b: 2", "is not YAML in line 2: a second `: ` in a line, or an indentation too deep"),
        ("a: 1\n---\nb: 2", "is not YAML in line 2: a second document begins (`---`)"),
        ("a: \x01", "is not YAML: it has a control character at position 3"),
        ("? [a]\n: 1", "a key has to be text"),
        ("endpoints: [{api_key: *sesame}]", "means an alias; put the value in quotes"),
        ("endpoints: [{api_key: !sesame x}]", "means a tag; put the value in quotes"),
        ("endpoints: [{api_key: !!python/none x}]", "means a tag; put the value in quotes"),
        ("[" * 5_000, "is nested too deeply"),
        ("a: &a {b: *a}", "too many or too deeply nested values"),
    ],
)
def test_a_file_without_settings_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    line = only_line(tmp_path, text)
    assert message in line
    assert "sesame" not in line


def test_the_design_example_is_understood(tmp_path: Path) -> None:
    """Flow style with a variable in it, which plain YAML would refuse."""
    text = "admin: {token: ${PENSTOCK_ADMIN_TOKEN:-}, read_token: null}"
    admin = read(tmp_path, text, {"PENSTOCK_ADMIN_TOKEN": "open-sesame"}).admin
    assert (admin.token and admin.token.get_secret_value(), admin.read_token) == ("open-sesame", None)
    assert read(tmp_path, text).admin.token is None


def test_an_alias_bomb_is_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 12))
    assert "too many or too deeply nested values" in only_line(tmp_path, bomb)


def test_anchors_can_be_used(tmp_path: Path) -> None:
    settings = read(tmp_path, "timeouts: {connect: &t 7s, first_byte: *t}")
    assert settings.timeouts.first_byte == 7.0


# ${VAR}


def test_variables_are_filled_in_anywhere_in_a_value(tmp_path: Path) -> None:
    text = """
        queue: {max_wait: ${WAIT}, max_requests: ${MANY:-12}, enabled: "${ON}"}
        endpoints: [{url: "http://${HOST}:8000", labels: {price: "$$5", plain: $x, empty: '${NONE:-}'}}]
    """
    settings = read(tmp_path, text, {"WAIT": "20s", "ON": "false", "HOST": "gpu-0", "MANY": ""})
    assert (settings.queue.max_wait, settings.queue.max_requests, settings.queue.enabled) == (20.0, 12, False)
    assert settings.endpoints[0].url == "http://gpu-0:8000"
    assert settings.endpoints[0].labels == {"price": "$5", "plain": "$x", "empty": ""}


def test_a_variables_content_is_never_parsed_as_yaml(tmp_path: Path) -> None:
    settings = read(tmp_path, "endpoints: [{url: http://a, labels: {x: ${X}}}]", {"X": "}], listen: [${Y}"})
    assert settings.endpoints[0].labels["x"] == "}], listen: [${Y}"


def test_an_unset_variable_is_reported_with_its_path(tmp_path: Path) -> None:
    assert lines(tmp_path, "endpoints: [{url: ${HOST}}]\nqueue: {max_wait: ${W}}") == [
        "endpoints[0].url: the environment variable HOST is not set (set it, or write ${HOST:-default})",
        "queue.max_wait: the environment variable W is not set (set it, or write ${W:-default})",
    ]


@pytest.mark.parametrize("text", ["${", "${}", "${1}", "${A-b}", "${A"])
def test_a_broken_reference_is_reported(tmp_path: Path, text: str) -> None:
    assert "listen: `${` does not begin a variable" in only_line(tmp_path, f'listen: "{text}"', {"A": "x"})


def test_a_variable_in_a_key_or_a_comment_means_nothing(tmp_path: Path) -> None:
    assert only_line(tmp_path, "# ${HIDDEN}\n${KEY}: 1", {"KEY": "listen"}).startswith("[`${KEY}`]: unknown setting")


# The environment and the flags


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    env = {
        "PENSTOCK__QUEUE__MAX_WAIT": "20s",
        "penstock__queue__enabled": "no",
        "PENSTOCK__RETRY": "{budget: 0.5}",
        "PENSTOCK__MODELS": "gpt-4o: {to: qwen}",
        "PENSTOCK__ENDPOINTS__0__SLOTS": "4",
        "PENSTOCK__ENDPOINTS__1__URL": "http://b",
        "PENSTOCK__ENDPOINTS__0__API_KEY": "*12345",
        "PENSTOCK__BANDS__1__MAX_WAIT": "5",
        "PENSTOCK__LIMITS__MAX_BODY": "1MiB",
        "PENSTOCK__METRICS__ALIASES": "[vllm_router]",
        "PENSTOCK_URL": "http://elsewhere",
        "PENSTOCK_ADMIN_TOKEN": "x",
    }
    text = "{queue: {max_wait: 1s, max_requests: 7}, retry: {max_attempts: 2}, endpoints: [{url: http://a}]}"
    settings = read(tmp_path, text, env)
    assert (settings.queue.max_wait, settings.queue.enabled, settings.queue.max_requests) == (20.0, False, 7)
    assert (settings.retry.max_attempts, settings.retry.budget) == (2, 0.5)
    assert settings.models["gpt-4o"].to == "qwen"
    assert [(e.url, e.slots) for e in settings.endpoints] == [("http://a", 4), ("http://b", "auto")]
    key = settings.endpoints[0].api_key
    assert key is not None
    assert key.get_secret_value() == "*12345"
    assert [(b.name, b.max_wait) for b in settings.bands][1] == ("standard", 5.0)
    assert settings.limits.max_body == 2**20


def test_items_of_a_list_come_in_the_order_of_their_numbers() -> None:
    env = {f"PENSTOCK__ENDPOINTS__{n}__URL": f"http://e{n}" for n in range(12)}
    assert [e.url for e in load(None, env).endpoints] == [f"http://e{n}" for n in range(12)]


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        (
            "PENSTOCK__QUEUE__MAX_WIAT",
            "1",
            "queue.max_wiat: unknown setting (from PENSTOCK__QUEUE__MAX_WIAT) (did you mean `max_wait`?)",
        ),
        (
            "PENSTOCK__QUEUE__MAX_WAIT",
            "-1",
            "queue.max_wait: `-1`: expected at least 0 (from PENSTOCK__QUEUE__MAX_WAIT)",
        ),
        (
            "PENSTOCK__FAIRNESS__PRICES__PROMPT",
            "-1",
            "fairness.prices.prompt: `-1`: expected at least 0 (from PENSTOCK__FAIRNESS__PRICES__PROMPT)",
        ),
        (
            "PENSTOCK__QUEUE____X",
            "1",
            "PENSTOCK__QUEUE____X: is not a setting's name (write PENSTOCK__SECTION__KEY)",
        ),
        ("PENSTOCK__", "1", "PENSTOCK__: is not a setting's name (write PENSTOCK__SECTION__KEY)"),
        ("PENSTOCK__BANDS__7__NAME", "x", "PENSTOCK__BANDS__7__NAME: there is no item `7`: the list has 3"),
        ("PENSTOCK__BANDS__A__NAME", "x", "PENSTOCK__BANDS__A__NAME: there is no item `a`: the list has 3"),
        (
            "PENSTOCK__QUEUE__ENABLED__X",
            "1",
            "queue.enabled: a mapping is not true or false (from PENSTOCK__QUEUE__ENABLED__X)",
        ),
        (
            "PENSTOCK__ENDPOINTS__0__NAME",
            "x",
            "endpoints[0].url: is required (from PENSTOCK__ENDPOINTS__0__NAME)",
        ),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, line: str) -> None:
    assert check(None, {variable: value}) == [line]


def test_a_variable_with_broken_yaml_is_named_but_not_shown() -> None:
    (line,) = check(None, {"PENSTOCK__ENDPOINTS": "[{url: http://a, api_key: *sesame"})
    assert line.startswith("PENSTOCK__ENDPOINTS: is not YAML")
    assert "sesame" not in line


def test_a_later_source_repairs_an_earlier_mistake(tmp_path: Path) -> None:
    text = "{listen: ${UNSET}, queue: {max_wait: -1}, endpoints: [{url: x}]}"
    env = {"PENSTOCK__QUEUE__MAX_WAIT": "3"}
    assert lines(tmp_path, text, env, Flags(listen=":1", endpoints=("http://a",))) == [
        "listen: the environment variable UNSET is not set (set it, or write ${UNSET:-default})"
    ]


def test_flags_override_everything(tmp_path: Path) -> None:
    flags = Flags(endpoints=("http://a", "http://b"), listen=":9", slots=8, routing="round_robin", no_queue=True)
    text = "{endpoints: [{url: http://c}], queue: {max_requests: 5}}"
    settings = read(tmp_path, text, {"PENSTOCK__LISTEN": ":1", "PENSTOCK__QUEUE__ENABLED": "true"}, flags)
    assert [(e.url, e.slots) for e in settings.endpoints] == [("http://a", 8), ("http://b", 8)]
    assert (settings.listen, settings.routing.policy) == (":9", "round_robin")
    assert (settings.queue.enabled, settings.queue.max_requests) == (False, 5)


def test_the_slots_flag_is_for_endpoints_that_say_auto(tmp_path: Path) -> None:
    text = "endpoints: [{url: http://a, slots: 2}, {url: http://b, slots: auto}, {url: http://c}]"
    settings = read(tmp_path, text, flags=Flags(slots=9))
    assert [e.slots for e in settings.endpoints] == [2, 9, 9]


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, NO_ENV, Flags(endpoints=("gpu",), listen="x", slots=0, routing="best"))
    assert [problem.line() for problem in caught.value.problems] == [
        "listen: `x`: expected `host:port` (from --listen) (write `x:8080`)",
        "endpoints[0].url: `gpu` is not a URL with a host (from --endpoint) (write `http://gpu`)",
        "endpoints[0].slots: `0`: expected `auto` or a whole number of 1 or more (from --slots)",
        f"routing.policy: `best`: expected {ROUTING} (from --routing)",
    ]


# Secrets

PLACES_FOR_A_SECRET = [
    "listen: ${S}",
    "endpoints: ${S}",
    "endpoints: [${S}]",
    "endpoints: [{url: ${S}}]",
    "endpoints: [{url: 'http://u:${S}@a'}]",
    "endpoints: [{url: http://a, name: '${S} \"'}]",
    "endpoints: [{url: http://a, engine: ${S}, models: ${S}, slots: ${S}}]",
    "endpoints: [{url: http://a, models: ['', ${S}]}]",
    "endpoints: [{url: http://a, api_key: '${S} ${S}', labels: ${S}}]",
    "{models: {a: {to: ${S}}, zzzz-secret: {to: b}, b: {to: c}}, queue: ${S}}",
    "queue: {enabled: ${S}, max_requests: ${S}, max_bytes: ${S}, max_wait: ${S}}",
    "{admission: {max_kv_usage: ${S}}, retry: {max_attempts: '-${S}', budget: '7${S}'}}",
    "{bands: [{name: ${S}}, {name: ${S}}], default_band: ${S}, identity: {max_band: ${S}, band_header: ${S}}}",
    "{default_band: ${S}, identity: {max_band: ${S}}, routing: {policy: ${S}}, metrics: {aliases: ${S}}}",
    "tenants: [{name: '${S} ', weight: '-${S}', max_band: ${S}, keys: ${S}, limits: {running: ${S}}}]",
    "tenants: [{name: a, keys: [${S}, 'x${S}']}, {name: b, max_band: ${S}, limits: {queued_bytes: 'x${S}'}}]",
    "{fairness: {policy: ${S}, levels: [${S}], prices: {prompt: ${S}}}, ordering: ${S}, accounting: {usage: ${S}}}",
    "identity: {require_key: ${S}, tenant_header: '${S} ', max_dynamic: ${S}, trusted_proxies: [${S}]}",
    "admission: {reserved_slots: ${S}, max_prefill_tokens: ${S}, max_time_per_output_token: ${S}}",
    "{tls: {cert: '/nowhere/${S}', key: ${S}}, health: {eject_for: ${S}}, observe: {fast_interval: ${S}}}",
]


@pytest.mark.parametrize(
    "secret", ["zzzz-secret", "-987654", "987654s", "98765432", "http://zzzz:8000/v1", "zzzz:8000"]
)
@pytest.mark.parametrize("text", PLACES_FOR_A_SECRET)
def test_no_message_shows_a_variables_content(tmp_path: Path, text: str, secret: str) -> None:
    try:
        settings = read(tmp_path, text, {"S": secret})
    except ConfigError as error:
        told = "".join(traceback.format_exception(error)) + repr(error.__context__)
        told = told.replace("models.zzzz-secret", "")
        for part in (secret, "zzzz", "98765"):
            assert part not in told
    else:
        assert secret.lower() in repr(settings) or "987654" in repr(settings), "it was simply acceptable"


def test_an_api_key_is_in_no_message_and_no_repr() -> None:
    (line,) = check(None, {"PENSTOCK__ENDPOINTS": "[{url: http://a, api_key: 'open sesame'}]"})
    assert "sesame" not in line
    settings = from_mapping({"endpoints": [{"url": "http://a", "api_key": "sesame\n"}]})
    assert "sesame" not in repr(settings)
    assert "sesame" not in str(settings.model_dump())
    assert settings.endpoints[0].api_key is not None
    assert settings.endpoints[0].api_key.get_secret_value() == "sesame"


@pytest.mark.parametrize(
    "text",
    [
        "tenants: [{name: a, keys: [KEY]}]",
        "tenants: [{name: a, keys: KEY}]",
        "tenants: [{name: a, keys: ['sha256:KEY']}]",
        "tenants: [{name: a, keys: [[KEY]]}]",
        "tenants: [{name: a, max_band: KEY}]",
        "tenants: [KEY]",
        "tenants: KEY",
        "tenants: [{name: a, KEY: 1}]",
        "identity: {trusted_proxies: [KEY]}",
    ],
)
def test_a_key_written_into_the_settings_is_not_shown(tmp_path: Path, text: str) -> None:
    line = only_line(tmp_path, text.replace("KEY", "pk-Se_same-0123456789"))
    assert "same" not in line
    assert "0123" not in line


# The hash, the command, the reference


def test_the_hash_distinguishes_settings_but_not_spellings() -> None:
    def hashed(**endpoint: object) -> str:
        return config_hash(from_mapping({"endpoints": [{"url": "http://a", **endpoint}]}))

    assert config_hash(Settings()) == config_hash(from_mapping({"queue": {"max_wait": "1m"}}))
    assert config_hash(Settings()) != config_hash(from_mapping({"queue": {"max_wait": "2m"}}))
    assert len({hashed(), hashed(api_key="x"), hashed(api_key="y"), hashed(slots=4)}) == 4
    assert config_hash(Settings()).isalnum()


def run_check(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    config_cli.add_arguments(parser)
    return config_cli.run(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.upper().startswith("PENSTOCK__"):
            monkeypatch.delenv(variable)


def test_check_says_ok_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("endpoints: [{url: http://a}]")
    assert run_check(str(file)) == 0
    assert capsys.readouterr().out.startswith("ok: 1 endpoint, 3 bands, routing predicted_ttft, queue on, config ")
    assert run_check(str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "problems": []}


def test_check_prints_a_line_per_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("queue: {max_wiat: 1, max_wait: -1}")
    assert run_check(str(file)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == check(str(file), NO_ENV)
    assert run_check(str(file), "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"]
    assert {
        "path": "queue.max_wiat",
        "message": "unknown setting",
        "suggestion": "did you mean `max_wait`?",
    } in answer["problems"]


def test_check_has_its_own_exit_code_for_a_file_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check(str(tmp_path / "gone.yaml")) == 2
    assert "no such file or directory" in capsys.readouterr().err


def test_every_setting_is_explained() -> None:
    for prefix, section in sections():
        assert section.__doc__, prefix
        for key, field in section.model_fields.items():
            assert field.description or nested(field.annotation), prefix + key


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert reference_markdown() == written, "run: python -m tests.tidy.configuration > docs/configuration.md"


# Anything at all

KEYS = sorted({key for _, section in sections() for key in section.model_fields})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["auto", "20s", "64MiB", "http://a:1", "standard", ":80", "-1", "1e400", "9" * 5_000, "[::1]:5"])
    | st.sampled_from([10**400, "x" * 9_000, "http://[", "http://a:99999", "http://\u0130", "\ud800", "${", "²"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)


def sectioned(section: type[object]) -> st.SearchStrategy[dict[str, object]]:
    """Documents with the right keys at the right places and anything in them."""
    fields: dict[str, st.SearchStrategy[object]] = {}
    for key, field in section.model_fields.items():  # type: ignore[attr-defined]
        inner = nested(field.annotation)
        fields[key] = VALUES if inner is None else VALUES | sectioned(inner) | st.lists(sectioned(inner), max_size=3)
    return st.fixed_dictionaries({}, optional=fields)


@effort(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), VALUES, max_size=6) | sectioned(Settings))
def test_any_document_gives_settings_or_a_config_error(document: dict[str, object]) -> None:
    try:
        settings = from_mapping(document)
    except ConfigError as error:
        for problem in error.problems:
            assert problem.line().isprintable()
            assert "pydantic" not in problem.line()
    else:
        assert config_hash(settings)


@effort(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=60) | st.text("{}[]:,-&*!|>'\"%@`$#\n ab1?", max_size=40),
    st.dictionaries(
        st.text("aAbB_01", max_size=8).map(lambda name: f"PENSTOCK__{name}"), st.text(max_size=10), max_size=2
    ),
)
def test_any_file_and_any_environment_give_settings_or_a_config_error(
    tmp_path: Path, text: str, env: dict[str, str]
) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    for line in check(str(file), env):
        assert line.isprintable()


# --- roles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "warning"),
    [
        ("{url: http://a, labels: {role: prefill}}", "the model has `role: prefill` endpoints and none"),
        ("{url: http://a, models: [m], labels: {role: decode}}", "model `m` has `role: decode` endpoints and none"),
        ("{url: http://a, labels: {role: prefil}}", "endpoints[0].labels.role: `prefil` is none of"),
        (
            "{url: http://a, labels: {role: prefill, bootstrap_port: 0}}",
            "endpoints[0].labels.bootstrap_port: `0` is no",
        ),
        ("{url: http://a, labels: {bootstrap_port: 1}}", "endpoints[0].labels.bootstrap_port means nothing without"),
        ("{url: http://a, engine: sglang, labels: {role: prefill}}", "endpoints[0].labels.bootstrap_port is missing"),
    ],
)
def test_check_warns_of_roles_that_do_not_come_together(
    endpoints: str, warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"endpoints: [{endpoints}]")
    assert run_check(str(file)) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("ok: 1 endpoint")
    assert printed.err.startswith(f"warning: {warning}")
    assert run_check(str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0].startswith(warning)


def test_pairs_and_endpoints_without_roles_are_nothing_to_warn_of() -> None:
    pair = [{"url": f"http://{role}", "labels": {"role": role}} for role in ("prefill", "decode")]
    assert role_warnings(from_mapping({"endpoints": pair})) == []
    meets = {"engine": "sglang", "labels": {"role": "prefill", "bootstrap_port": 8998}}
    assert role_warnings(from_mapping({"endpoints": [pair[0] | meets, pair[1]]})) == []
    assert role_warnings(from_mapping({"endpoints": [{"url": "http://a"}]})) == []


# --- without effect -----------------------------------------------------------------------------------------------

ONE: dict[str, object] = {"endpoints": [{"url": "http://a", "slots": 2}]}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"queue": {"enabled": False, "max_requests": 5}, "ordering": "deadline"}, "queue.max_requests, ordering"),
        ({"queue": {"enabled": False}, "bands": [{"name": "standard", "ceiling": 0.5}]}, "bands[0].ceiling"),
        (
            {"queue": {"enabled": False}, "tenants": [{"name": "a", "limits": {"queued": 3}}]},
            "tenants[0].limits.queued",
        ),
        ({"bands": [{"name": "standard", "min_share": 0.2}]}, "bands[0].min_share does nothing"),
        (
            {"bands": [{"name": "standard", "best_effort": True, "shed_target": "40s"}]},
            "bands[0].shed_target sheds no queued request",
        ),
        ({"bands": [{"name": "standard", "max_tokens": 200_000_000}]}, "`queue.max_tokens` is lower"),
        ({"bands": [{"name": "standard", "ceiling": 0.3}]}, "bands[0].ceiling of endpoints[0] is less than one"),
        ({"admission": {"slots_initial": 8}}, "admission.slots_initial does nothing"),
        ({"admission": {"reserved_slots": 0.4}}, "0.4 of 2 slots is less than one"),
        ({"admission": {"reserved_slots": 0.5}, "fairness": {"policy": "fcfs"}}, "there are no shares"),
        ({"fairness": {"policy": "round_robin", "prices": {"prompt": 2}}}, "fairness.prices do nothing"),
        ({"fairness": {"policy": "fcfs"}, "tenants": [{"name": "a", "weight": 2}]}, "tenants[0].weight does nothing"),
        ({"queue": {"heartbeat_after": "90s"}}, "queue.heartbeat_after does nothing"),
        ({"retry": {"max_attempts": 1, "budget": 0.5}}, "retry.budget does nothing"),
        ({"retry": {"max_attempts": 5, "budget": 0}}, "retry.max_attempts does nothing"),
        ({"timeouts": {"first_byte": "30ms"}}, "timeouts.first_byte is 30 ms: slower answers fail"),
        ({"endpoints": [{"url": "http://a:443"}]}, "endpoints[0].url: http:// at port 443, which is the other one's"),
        ({"endpoints": [{"url": "https://a:80/x"}]}, "endpoints[0].url: https:// at port 80, which is"),
        ({"tracing": {"sample": 0.5}}, "tracing.sample does nothing"),
        ({"client_address": {"header": "forwarded"}}, "client_address.header does nothing"),
        (
            {
                "cors": {"origins": ["*"]},
                "identity": {"require_key": True},
                "tenants": [{"name": "a", "keys": ["sha256:" + "1" * 64]}],
            },
            "cors.origins: any web page may use",
        ),
        ({"batch": {"keep": "2h"}}, "these do nothing: batch.keep"),
        ({"batch": {"data": "/tmp", "claim_timeout": "20s"}}, "batch.claim_timeout does nothing"),
    ],
)
def test_settings_without_effect_are_warnings(document: dict[str, object], words: str) -> None:
    warnings = effect_warnings(from_mapping(ONE | document))
    assert len(warnings) == 1
    assert words in warnings[0]


def test_defaults_cause_no_warnings() -> None:
    assert effect_warnings(from_mapping({})) == []
    assert effect_warnings(from_mapping(ONE | {"queue": {"enabled": False}})) == []


def test_a_share_beyond_the_ceiling_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bands\[1\]\.min_share: is more than the band's `ceiling` \(0\.5\)"):
        from_mapping({"bands": [{"name": "standard"}, {"name": "batch", "ceiling": 0.5, "min_share": 0.6}]})
