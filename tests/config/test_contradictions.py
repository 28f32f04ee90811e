"""Settings that contradict each other are refused; those that are likely a mistake are said."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.effect import effect_warnings, open_warnings, variable_warnings
from penstock.config.load import ConfigError, from_mapping

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"fairness": {"policy": "fcfs", "levels": ["tenant"]}}, "fairness.levels: divides nothing: with `policy: fcfs`"),
    (
        {"bands": [{"name": "standard", "deadline": "90s"}]},
        "bands[0].deadline: is longer than `queue.max_wait` (`60s`)",
    ),
    (
        {"bands": [{"name": "standard", "deadline": "20s", "max_wait": "10s"}]},
        "bands[0].deadline: is longer than `max_wait` (`10s`)",
    ),
    (
        {"batch": {"data": "/tmp", "limits": {"max_line": "2MiB"}}, "limits": {"max_body": "1MiB"}},
        "batch.limits.max_line: is more than `limits.max_body`",
    ),
    (
        {"limits": {"max_connections": 10, "max_connections_per_address": 11}},
        "limits.max_connections_per_address: is more than `limits.max_connections` (10)",
    ),
    (
        {"tenants": [{"name": "a", "limits": {"tokens_per_minute": 11, "tokens_per_day": 10}}]},
        "tenants[0].limits.tokens_per_minute: is more than `tokens_per_day`",
    ),
]


@pytest.mark.parametrize(("document", "words"), REFUSED, ids=[words.partition(":")[0] for _, words in REFUSED])
def test_settings_that_contradict_each_other_are_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(document)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "document",
    [
        {"fairness": {"policy": "fcfs"}},
        {
            "fairness": {"policy": "fcfs", "levels": ["user"]},
            "bands": [{"name": "standard", "fairness": {"policy": "round_robin"}}],
        },
        {"bands": [{"name": "standard", "deadline": "90s", "max_wait": "90s"}]},
        {"limits": {"max_body": "1MiB"}},
    ],
)
def test_settings_that_only_look_so_are_taken(document: dict[str, Any]) -> None:
    from_mapping(document)


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "10.0.0.5:8080"])
def test_an_open_gateway_is_a_warning(listen: str) -> None:
    said = " ".join(open_warnings(from_mapping({"listen": listen})))
    assert f"listen: {listen} is open to the network, and clients without a key are served" in said
    assert "`identity.require_key: true`" in said
    key = {"name": "a", "keys": ["sha256:" + "0" * 64]}
    closed = {"listen": listen, "identity": {"require_key": True}, "tenants": [key]}
    assert list(open_warnings(from_mapping(closed))) == []


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "[::1]:8080", "localhost:8080"])
def test_a_gateway_that_only_this_machine_reaches_is_not(listen: str) -> None:
    assert list(open_warnings(from_mapping({"listen": listen}))) == []


def test_a_short_wait_of_all_requests_turns_sessions_out() -> None:
    sized: dict[str, object] = {"endpoints": [{"url": "http://a", "kv_tokens": 900_000}]}
    short: dict[str, object] = {"queue": {"max_wait": "30s"}}
    (said,) = effect_warnings(from_mapping(sized | short))
    assert said.startswith(
        "queue.max_wait bounds waits for memory, too: a session that waited 30 s turns another one out"
    )
    for meant in (
        short,
        sized,
        sized | {"queue": {"max_wait": 0}},
        sized | {"queue": {"max_wait": "60s"}},
        sized | short | {"sessions": {"memory": "off"}},
        sized | {"bands": [{"name": "standard", "max_wait": "30s"}]},
    ):
        assert not [one for one in effect_warnings(from_mapping(meant)) if "waits for memory" in one]


def test_a_wait_of_hours_may_be_meant_in_milliseconds() -> None:
    (said,) = effect_warnings(from_mapping({"queue": {"max_wait": 60000}}))
    assert said.startswith("queue.max_wait is 16.7 hours: a number without a unit is in seconds; if milliseconds were")
    assert said.endswith("write `60000ms`")
    bands = [{"name": "standard", "max_wait": 30000}, {"name": "batch", "best_effort": True, "max_wait": "24h"}]
    (said,) = effect_warnings(from_mapping({"bands": bands}))
    assert said.startswith("bands[0].max_wait is 8.3 hours")
    assert effect_warnings(from_mapping({"queue": {"max_wait": 60}})) == []


def test_a_variable_with_one_underscore_is_a_warning() -> None:
    env = {
        "PENSTOCK_QUEUE_MAX_WAIT": "20s",
        "PENSTOCK_LISTEN": ":1",
        "PENSTOCK_URL": "x",
        "PENSTOCK_ADMIN_TOKEN": "x",
        "PENSTOCK__QUEUE__MAX_WAIT": "20s",
        "PENSTOCK_OF_MINE": "x",
    }
    assert variable_warnings(env) == [
        "the variable PENSTOCK_LISTEN sets nothing: write PENSTOCK__LISTEN, with two underscores",
        "the variable PENSTOCK_QUEUE_MAX_WAIT sets nothing: write PENSTOCK__QUEUE__MAX_WAIT, with two underscores",
    ]
