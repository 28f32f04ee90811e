"""A sender is known to its connection, and is still found anew with everything that may change who it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.batch.values import MadeKey
from penstock.config.load import from_mapping
from penstock.gateway.endpoints.pool_rules import PoolRules
from penstock.gateway.identity.caller import Caller, Claims, Sender, Unauthorized
from penstock.gateway.identity.callers import Callers, key_hash
from penstock.gateway.identity.tokens.accepted import AcceptedTokens
from penstock.gateway.openai.routes import ROUTES

ROUTE = ROUTES["/v1/chat/completions"]["POST"]
KEY = {"authorization": "Bearer pk-one"}
TEAM: dict[str, Any] = {"name": "team", "keys": [key_hash("pk-one")]}


class Connection:
    """Asks as the gateway does for a connection that brings one head."""

    def __init__(self, callers: Callers, headers: dict[str, str], client: str = "192.0.2.1") -> None:
        self.callers = callers
        self.header = {name.encode(): value.encode() for name, value in headers.items()}.get
        self.client = client
        self.sender: Sender | None = None
        self.found = 0  #: how often its key was looked for

    def ask(self, now: float = 0.0, **body: Any) -> Caller | Unauthorized:
        sender = self.sender
        if sender is None or not self.callers.knows(sender, self.header, now):
            self.found += 1
            key = self.callers.key(self.header, None)
            if isinstance(key, Unauthorized):
                return key
            sender = self.sender = Sender(key, ROUTE, era=self.callers.era, until_s=now + 10.0)
        fields = {"user": None, "service_tier": None, "priority": None, "model_band": None, **body}
        return self.callers.caller(sender, self.header, self.client, client=self.client, now=now, **fields)

    def served(self, now: float = 0.0, **body: Any) -> Caller:
        caller = self.ask(now, **body)
        assert isinstance(caller, Caller), caller
        return caller


def settings(**more: Any) -> Any:
    return from_mapping({"tenants": [TEAM], **more})


def followed(wall: Callable[[], float] = lambda: 0.0, tokens: AcceptedTokens | None = None, **more: Any) -> Callers:
    callers = Callers(wall, tokens)
    callers.follow(settings(**more))
    return callers


def test_the_next_request_has_the_same_caller() -> None:
    connection = Connection(followed(), KEY)
    first = connection.served()
    assert (first.tenant, first.has_key) == ("team", True)
    assert connection.served(9.9) is first
    assert connection.found == 1
    connection.served(10.0)
    assert connection.found == 2, "it is looked at again now and then, so that its name stays"


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"user": "ann"}, ("user", "ann")),
        ({"service_tier": "flex"}, ("band", 2)),
        ({"priority": 7}, ("priority", 7)),
        ({"model_band": 2}, ("band", 2)),
    ],
)
def test_what_the_body_says_counts_for_its_own_request_only(change: dict[str, Any], seen: tuple[str, Any]) -> None:
    connection = Connection(followed(), KEY)
    before = connection.served()
    name, value = seen
    assert getattr(connection.served(**change), name) == value
    after = connection.served()
    assert getattr(after, name) == getattr(before, name) != value
    assert connection.found == 1


def test_a_flag_is_no_number() -> None:
    connection = Connection(followed(), KEY)
    assert connection.served(priority=1).priority == 1
    assert connection.served(priority=True).priority == 0
    assert connection.served(priority=1).priority == 1


def test_an_expired_key_stops_in_its_last_second() -> None:
    wall = [1_800_000_000.0]
    tenant = {**TEAM, "keys": [{"hash": key_hash("pk-one"), "expires": "2027-01-31T18:00:00Z"}]}
    callers = Callers(lambda: wall[0])
    callers.follow(from_mapping({"tenants": [tenant]}))
    connection = Connection(callers, KEY)
    wall[0] = 1_801_418_399.5
    assert connection.served().tenant == "team"
    assert connection.served(0.4).tenant == "team"
    wall[0] = 1_801_418_400.0
    sender = connection.sender
    assert sender is not None
    late = callers.caller(
        sender, connection.header, "", user=None, service_tier=None, priority=None, model_band=None, client="", now=0.5
    )
    assert isinstance(late, Unauthorized), "its body came after that"
    assert isinstance(connection.ask(0.5), Unauthorized)


def test_a_revoked_key_stops_at_once() -> None:
    callers = followed(identity={"made_keys": True}, batch={"data": "unused", "serve": False})
    made = MadeKey(name="ci", hash=key_hash("pk-made"), tenant="team", rights="{}", expires_at=None, created_at=0.0)
    callers.made([made])
    connection = Connection(callers, {"authorization": "Bearer pk-made"})
    assert connection.served().key == "ci"
    callers.made([])
    assert isinstance(connection.ask(), Unauthorized)
    callers.made([made])
    assert connection.served().key == "ci"


def test_a_reload_counts_from_the_next_request_on() -> None:
    callers = followed()
    connection = Connection(callers, KEY)
    assert connection.served().weight == 1.0
    callers.follow(from_mapping({"tenants": [{**TEAM, "weight": 3.0}]}))
    assert connection.served().weight == 3.0
    assert connection.served().has_key
    callers.follow(from_mapping({"tenants": [{**TEAM, "keys": [key_hash("pk-two")]}]}))
    assert isinstance(connection.ask(), Unauthorized)


def test_a_token_is_as_good_as_its_verifier_says() -> None:
    class Judge(AcceptedTokens):
        said: Claims | Unauthorized = Claims("team", "ann", "")

        def judge(self, presented: bytes) -> Claims | Unauthorized | None:
            return self.said

    judge = Judge()
    callers = followed(tokens=judge, identity={"jwt": {"issuer": "https://i", "audience": "a"}})
    connection = Connection(callers, {"authorization": "Bearer eyJ.e30.e30"})
    first = connection.served()
    assert (first.tenant, first.user) == ("team", "ann")
    assert connection.served(0.5) is first
    judge.said = Claims("team", "bob", "")
    assert connection.served().user == "bob", "claims that were read again"
    judge.said = Unauthorized("it has expired")
    assert isinstance(connection.ask(), Unauthorized)


def test_an_address_shares_its_part_with_a_newcomer_at_once() -> None:
    callers = Callers(lambda: 0.0)
    callers.follow(from_mapping({}))
    first, second = (Connection(callers, {"authorization": f"Bearer sk-{n}"}) for n in "ab")
    assert first.served().weight == 1.0
    assert second.served(1.0).weight == 0.5
    assert first.served(1.0).weight == 0.5
    assert first.served(1.0).tenant != second.served(1.0).tenant


def test_an_objectives_band_may_change() -> None:
    bands = [{"name": "interactive", "priority": 1}, {"name": "standard", "priority": 0}]
    callers = followed(bands=bands, default_band="standard", identity={"max_band": "interactive"})
    connection = Connection(callers, {"x-llm-d-inference-objective": "gold"})
    assert connection.served().band == 1
    callers.objectives.know(PoolRules({"gold": 5}))
    assert connection.served().band == 0
