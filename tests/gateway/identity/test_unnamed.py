"""Callers without a tenant: what tells them apart, what an inventor of names gets, and how much is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.load import from_mapping
from penstock.gateway.identity.unnamed import told_apart
from tests.gateway.identity.test_callers import ALICE, KEYED, callers, served


def name(who: Any, peer: str = "192.0.2.1", *, user: str | None = None, now: float = 0.0, **headers: Any) -> str:
    return served(who, peer, body={"user": user}, now=now, **headers).tenant


def test_callers_without_a_tenant_are_distinguished_by_address_key_and_user() -> None:
    who = callers(tenants=[])
    assert name(who) == "client:192.0.2.1"
    assert name(who, "192.0.2.2") == "client:192.0.2.2"
    assert name(who, authorization="Bearer sk-one") == "client:192.0.2.1+key:456f1612bd25"
    assert name(who, x_api_key="sk-one") == "client:192.0.2.1+key:456f1612bd25"
    assert name(who, user="ada") == name(who, x_user_id="ada") == "client:192.0.2.1+user:ada"
    assert name(who, user="ada", x_api_key="sk-one") == "client:192.0.2.1+key:456f1612bd25+user:ada"


@pytest.mark.parametrize(
    ("by", "its"),
    [
        (["address"], "client:192.0.2.1"),
        (["key"], "client:+key:456f1612bd25"),
        (["user"], "client:+user:ada"),
        ([], "anonymous"),
    ],
)
def test_each_distinction_can_be_switched_off(by: list[str], its: str) -> None:
    who = callers(tenants=[], identity={"distinguish": by})
    assert name(who, user="ada", x_api_key="sk-one") == its


def test_a_key_of_ours_or_a_name_in_the_header_is_a_tenant_as_ever() -> None:
    who = callers(tenants=KEYED)
    assert name(who, x_api_key=ALICE, user="ada") == "alice"
    assert name(who, x_tenant_id="open", x_api_key="sk-one") == "open"
    assert name(who, x_tenant_id="mine", user="ada") == "mine"


def test_a_key_never_stands_in_a_name() -> None:
    assert "sk-secret" not in name(callers(tenants=[]), authorization="Bearer sk-secret")


def test_nobody_joins_another_clients_flow_by_its_name() -> None:
    for who in (callers(tenants=[]), callers(tenants=[], identity={"trusted_proxies": ["192.0.2.1"]})):
        assert name(who, "192.0.2.1", x_tenant_id="client:192.0.2.9") == "client:192.0.2.1"


def test_addresses_of_one_subscriber_are_one_client() -> None:
    who = callers(tenants=[])
    assert name(who, "2001:db8::1") == name(who, "2001:db8::ffff") == "client:2001:db8::/64"
    assert name(who, "2001:db8:0:1::1") == "client:2001:db8:0:1::/64"
    assert name(who, "::ffff:192.0.2.1") == "client:192.0.2.1"
    assert name(who, "::1") == "client:::1"
    assert name(who, "") == name(who, "a-socket") == "anonymous"


def test_an_address_has_one_share_however_many_keys_and_users_it_invents() -> None:
    who = callers(tenants=[])
    served(who, "192.0.2.2")
    flood = [served(who, body={"user": f"u{n}"}, x_api_key=f"k{n}", now=1.0) for n in range(1_000)]
    assert len({caller.tenant for caller in flood}) == 65, "64 names, and one for the rest"
    again = [served(who, body={"user": f"u{n}"}, x_api_key=f"k{n}", now=2.0).weight for n in range(64)]
    assert sum(again) == pytest.approx(1.0)
    assert served(who, "192.0.2.2", now=2.0).weight == 1.0


def test_names_that_fell_silent_give_their_part_back_within_a_minute() -> None:
    who = callers(tenants=[])
    for n in range(10):
        served(who, body={"user": f"u{n}"}, now=0.0)
    assert served(who, body={"user": "u0"}, now=59.0).weight == pytest.approx(1 / 10)
    assert served(who, body={"user": "u0"}, now=61.0).weight == 1.0


def test_beside_tenants_they_divide_the_common_part() -> None:
    who = callers(tenants=KEYED, identity={"anonymous": {"weight": 3, "limits": {"running": 5}}})
    served(who, body={"user": "ada"})
    caller = served(who, body={"user": "bob"})
    assert caller.flow(("tenant",), "m") == ((" anonymous", "client:192.0.2.1+user:bob"), (3, 0.5))
    assert (caller.account, caller.tenant_label) == ("anonymous", "other")


def test_with_users_as_a_level_the_user_is_no_part_of_the_name() -> None:
    who = callers(tenants=[], fairness={"levels": ["tenant", "user"]})
    flow, weights = served(who, body={"user": "ada"}).flow(("tenant", "user"), "m")
    assert (flow, weights) == (("client:192.0.2.1", "ada"), (1.0, 1.0))


def test_more_addresses_than_may_have_a_flow_are_one_caller() -> None:
    who = callers(tenants=[], identity={"max_dynamic": 3})
    assert [name(who, f"192.0.2.{n}") for n in range(5)] == [
        *("client:192.0.2.0", "client:192.0.2.1", "client:192.0.2.2", "anonymous", "anonymous")
    ]
    assert name(who, "192.0.2.9", x_tenant_id="named") == "named", "names in headers have their own room"
    assert name(who, "192.0.2.4", now=601.0) == "client:192.0.2.4", "a client that left makes room"


def test_files_of_clients_without_a_tenant_stay_common() -> None:
    who = callers(tenants=[])
    caller = served(who, body={"user": "ada"})
    assert who.owner(lambda _: None, "192.0.2.1", caller) == "anonymous"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "by tenant; a caller's tenant is found by the header x-tenant-id, otherwise address + key + user"),
        (
            {"tenants": KEYED, "identity": {"tenant_header": "x-team", "distinguish": ["address"]}},
            "by tenant; a caller's tenant is found by its key, otherwise the header x-team, otherwise address",
        ),
        ({"tenants": KEYED, "identity": {"require_key": True}}, "by tenant; a caller's tenant is found by its key"),
        (
            {"identity": {"distinguish": []}, "fairness": {"levels": ["tenant", "user"]}},
            "by tenant and user; a caller's tenant is found by the header x-tenant-id, otherwise nothing else",
        ),
    ],
)
def test_the_log_states_how_callers_are_distinguished(document: dict[str, object], told: str) -> None:
    assert told_apart(from_mapping(document)) == f"callers take turns {told}"


def test_a_user_is_no_key_and_not_the_rest() -> None:
    who = callers(tenants=[])
    for n in range(64):
        name(who, user=f"u{n}")
    assert name(who, user="one more") == "client:192.0.2.1+other"
    assert name(callers(tenants=[]), user="other") == "client:192.0.2.1+user:other"
    assert name(callers(tenants=[]), user="key:456f1612bd25") != name(callers(tenants=[]), x_api_key="sk-one")
