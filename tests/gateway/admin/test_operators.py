"""Operators with tokens of their own: what they did has their name, and a token is one operator's."""

from __future__ import annotations

import pytest

from penstock.config.load import ConfigError, from_mapping
from tests.gateway.conftest import World

ANNA = {"authorization": "Bearer anna-7f31c09d2b"}
BEN = {"authorization": "Bearer ben-1c55e0aa83"}
OPERATORS = [{"name": "anna", "token": "anna-7f31c09d2b"}, {"name": "ben", "token": "ben-1c55e0aa83"}]


async def test_events_the_log_and_the_sentence_name_the_operator(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.engine()
    await world.gateway(admin={"token": "all-of-it", "operators": OPERATORS})
    with caplog.at_level("INFO"):
        assert (await world.ask("POST", "/admin/pause", headers=ANNA)).status == 200
    assert any("pause (by anna, 127.0.0.1)" in line for line in caplog.messages)
    assert "anna-7f31c09d2b" not in caplog.text
    seen = (await world.ask("GET", "/admin/state", headers=BEN)).json()
    assert seen["headline"].startswith("Paused by an operator (anna, 127.0.0.1, ")
    assert (await world.ask("POST", "/admin/resume", headers=BEN)).status == 200
    whole = {"authorization": "Bearer all-of-it"}
    assert (await world.ask("POST", "/admin/reload", headers=whole)).status == 200
    texts = [event["text"] for event in (await world.ask("GET", "/admin/state", headers=whole)).json()["events"]]
    assert "resume (by ben, 127.0.0.1)" in texts
    assert "pause (by anna, 127.0.0.1)" in texts
    assert any(text.endswith("(by 127.0.0.1)") for text in texts), "the token that is nobody's own names nobody"


async def test_who_somebody_is_is_told_and_a_wrong_token_is_nobody(world: World) -> None:
    await world.engine()
    await world.gateway(admin={"operators": OPERATORS})
    assert (await world.ask("GET", "/admin/access", headers=ANNA)).json() == {"writes": True, "name": "anna"}
    for headers in ({}, {"authorization": "Bearer anna-7f31c09d2c"}):
        assert (await world.ask("GET", "/admin/state", headers=headers)).status == 401
        assert (await world.ask("POST", "/admin/pause", headers=headers)).status == 401
    own = {"authorization": f"Bearer {world.gate.own_token.token}"}
    assert (await world.ask("POST", "/admin/pause", headers=own)).status == 401, "operators' tokens are set"


def test_names_and_tokens_belong_to_one_operator_each() -> None:
    twice = [OPERATORS[0], {"name": "anna", "token": "anna-7f31c09d2b"}]
    with pytest.raises(ConfigError) as told:
        from_mapping({"admin": {"token": "ben-1c55e0aa83", "operators": [*twice, OPERATORS[1]]}})
    lines = str(told.value)
    assert "admin.operators[1].name: 'anna' is given twice" in lines
    assert "admin.operators[1].token: is another one's too" in lines
    assert "admin.operators[2].token: is another one's too" in lines
    assert "7f31c09d2b" not in lines
    with pytest.raises(ConfigError, match=r"admin\.operators\[0\]\.token: is too easily guessed"):
        from_mapping({"admin": {"operators": [{"name": "anna", "token": "short"}]}})
