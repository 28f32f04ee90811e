"""Who is it, and what may it have: keys, names, bands, deadlines, and what hostile callers get out of it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from penstock.config.load import ConfigError, from_mapping
from penstock.core.values.catalogue import Reason
from penstock.gateway.endpoints.pool_rules import PoolRules
from penstock.gateway.identity.caller import Caller, Unauthorized
from penstock.gateway.identity.callers import Callers, key_hash, new_key
from penstock.gateway.identity.name_quota import NameQuota, safe_name

IDLE_S = 600.0

ALICE, BOB, REVOKED = "pk-alice", "sk-an-older-key-of-bob", "pk-revoked"
TENANTS: list[dict[str, object]] = [
    {
        "name": "alice",
        "weight": 2,
        "max_band": "interactive",
        "keys": [key_hash(ALICE), key_hash("pk-alice-2")],
        "limits": {"running": 3},
    },
    {"name": "bob", "keys": [key_hash(BOB)]},
    {"name": "open", "weight": 0.5},
]


def callers(*, tenants: list[dict[str, object]] | None = None, identity: object = None, **more: object) -> Callers:
    made = Callers()
    made.follow(from_mapping({"tenants": TENANTS if tenants is None else tenants, "identity": identity, **more}))
    return made


def ask(
    who: Callers,
    peer: str = "192.0.2.1",
    *,
    body: dict[str, object] | None = None,
    now: float = 0.0,
    **headers: str,
) -> Caller | Unauthorized:
    lookup = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
    key, fields = who.key(lookup.get, lambda _: False), body or {}
    return who.identify(
        key,
        lookup.get,
        peer,
        user=fields.get("user"),
        service_tier=fields.get("service_tier"),
        priority=fields.get("priority"),
        now=now,
    )


def served(
    who: Callers,
    peer: str = "192.0.2.1",
    *,
    body: dict[str, object] | None = None,
    model_band: int | None = None,
    now: float = 0.0,
    **headers: str,
) -> Caller:
    caller = ask(who, peer, body=body, now=now, **headers)
    assert isinstance(caller, Caller), caller
    return caller


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {ALICE}"},
        {"authorization": f"bearer   {ALICE} "},
        {"authorization": ALICE},
        {"x_api_key": ALICE},
        {"authorization": "Bearer sk-elsewhere", "x_api_key": ALICE},
        {"authorization": f"Bearer {REVOKED}", "x_api_key": ALICE},
    ],
)
def test_a_key_is_its_tenant(headers: dict[str, Any]) -> None:
    caller = served(callers(), **headers)
    assert (caller.tenant, caller.weight, caller.has_key) == ("alice", 2.0, True)
    assert caller.tenant_label == "alice"


def test_a_key_that_was_not_made_here_is_known_by_its_hash_too() -> None:
    assert served(callers(), authorization=f"Bearer {BOB}").tenant == "bob"


def test_a_key_wins_over_the_header_that_names_a_tenant() -> None:
    who = callers(identity={"trusted_proxies": ["192.0.2.0/24"]})
    assert served(who, authorization=f"Bearer {BOB}", x_tenant_id="alice").tenant == "bob"


def test_a_required_key_has_no_substitute() -> None:
    who = callers(identity={"require_key": True, "trusted_proxies": ["192.0.2.1"]})
    cases: list[dict[str, Any]] = [
        {},
        {"authorization": "Bearer sk-elsewhere"},
        {"authorization": f"Bearer {REVOKED}"},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer "},
        {"x_api_key": "x" * 60_000},
        {"x_tenant_id": "open"},
    ]
    for headers in cases:
        refused = ask(who, **headers)
        assert isinstance(refused, Unauthorized), headers
        assert refused.reason is Reason.UNAUTHORIZED
        assert "revoked" not in refused.message
    assert served(who, x_api_key=ALICE).tenant == "alice"


def test_an_unknown_key_of_our_own_make_is_refused_even_where_none_is_required() -> None:
    who = callers()
    assert isinstance(ask(who, authorization=f"Bearer {REVOKED}"), Unauthorized)
    assert isinstance(ask(who, authorization=REVOKED), Unauthorized)
    assert isinstance(ask(who, x_api_key=REVOKED), Unauthorized)


@pytest.mark.parametrize("credential", ["Bearer sk-elsewhere", "Basic YTpi", "Bearer", "", f"Bearer {'x' * 50_000}"])
def test_a_credential_that_is_not_ours_makes_a_keyless_caller_and_passes_on(credential: str) -> None:
    caller = served(callers(identity={"distinguish": []}), authorization=credential)
    assert (caller.tenant, caller.has_key) == ("anonymous", False)


def test_without_keys_in_the_settings_no_credential_is_ours() -> None:
    caller = served(callers(tenants=[]), authorization=f"Bearer {REVOKED}", x_tenant_id="team")
    assert (caller.tenant, caller.has_key) == ("team", False)


def test_keys_are_random_and_hashed_as_sha256() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    key = keys.pop()
    assert key_hash(key) == "sha256:" + hashlib.sha256(key.encode()).hexdigest()


# Names


def test_a_client_without_a_key_is_named_by_its_header() -> None:
    who = callers()
    assert served(who, x_tenant_id=" open ").weight == 0.5
    assert served(who, x_tenant_id="nobody-knows").tenant_label == "other"
    assert served(who, x_llm_d_inference_fairness_id="x").tenant == "x"
    assert served(who, x_gateway_inference_fairness_id="y").tenant == "y"
    assert served(who, x_tenant_id="first", x_llm_d_inference_fairness_id="second").tenant == "first"
    assert served(callers(identity={"tenant_header": "X-Team"}), x_team="red", x_tenant_id="blue").tenant == "red"


def test_a_client_without_a_name_is_anonymous_if_clients_are_not_distinguished() -> None:
    who = callers(identity={"distinguish": []})
    for caller in (served(who), served(who, x_tenant_id=""), served(who, x_tenant_id="  ")):
        assert (caller.tenant, caller.weight) == ("anonymous", 1.0)
        assert (caller.user, caller.tenant_label) == ("", "other")


def test_anonymous_and_other_may_have_weight_and_limits() -> None:
    tenants: list[dict[str, object]] = [
        {"name": "anonymous", "weight": 0.1, "max_band": "batch"},
        {"name": "other", "limits": {"queued": 2}},
    ]
    who = callers(tenants=tenants, identity={"max_dynamic": 1})
    caller = served(who)
    assert (caller.weight, caller.band, caller.tenant_label) == (0.1, 2, "anonymous")
    assert [served(who, x_tenant_id=name).account for name in ("a", "b")] == ["anonymous", "other"]


def test_a_keyless_caller_cannot_claim_a_tenant_that_has_keys() -> None:
    caller = served(callers(), x_tenant_id="alice")
    assert (caller.tenant, caller.part) == ("client:192.0.2.1", "anonymous")


@pytest.mark.parametrize(
    ("peer", "tenant"),
    [
        ("10.1.2.3", "alice"),
        ("::ffff:10.1.2.3", "alice"),
        ("fd00::1%eth0", "alice"),
        ("11.0.0.1", "client:11.0.0.1"),
        ("fe80::1", "client:fe80::/64"),
        ("", "anonymous"),
        ("somewhere", "anonymous"),
    ],
)
def test_a_trusted_proxy_may_name_any_tenant(peer: str, tenant: str) -> None:
    who = callers(identity={"trusted_proxies": ["10.0.0.0/8", "fd00::/8"]})
    for _ in range(2):
        assert served(who, peer, x_tenant_id="alice").tenant == tenant


def test_memory_of_peers_is_bounded() -> None:
    who = callers(identity={"trusted_proxies": ["10.0.0.0/8"]})
    for n in range(5_000):
        served(who, f"2001:db8::{n:x}", x_tenant_id="alice")
    assert len(who._trusted_peers) <= 4_096
    assert served(who, "10.0.0.1", x_tenant_id="alice").tenant == "alice"


def test_the_user_comes_from_header_openwebui_body_or_key() -> None:
    who = callers()
    both: dict[str, Any] = {"x_user_id": "h", "x_openwebui_user_id": "w"}
    assert served(who, **both, body={"user": "b"}).user == "h"
    assert served(who, x_openwebui_user_id="w", body={"user": "b"}).user == "w"
    assert served(who, body={"user": "b"}).user == "b"
    assert served(who, authorization=f"Bearer {ALICE}", body={"user": "b"}).user == "b"
    assert served(callers(identity={"user_header": "x-person"}), x_person="p", x_user_id="h").user == "p"
    for strange in (5, None, ["b"], {"a": 1}, True, ""):
        assert served(who, body={"user": strange}).user == ""


def test_each_key_is_a_user_of_its_own() -> None:
    first, again, second = (served(callers(), x_api_key=key).user for key in (ALICE, ALICE, "pk-alice-2"))
    assert first == again != second
    assert ALICE not in first
    assert first.startswith("key:")


# Bounds


def test_tenants_beyond_the_bound_share_one_flow() -> None:
    who = callers(identity={"max_dynamic": 2})
    assert [served(who, x_tenant_id=name).tenant for name in "abcab"] == ["a", "b", "other", "a", "b"]
    assert served(who, x_tenant_id="open").tenant == "open", "listed tenants do not count"
    assert served(who).tenant == "client:192.0.2.1", "neither do clients without a name"


def test_a_name_unseen_for_long_makes_room_and_a_busy_one_keeps_its_flow() -> None:
    who = callers(identity={"max_dynamic": 2})
    served(who, x_tenant_id="a", now=0.0)
    served(who, x_tenant_id="b", now=1.0)
    served(who, x_tenant_id="a", now=IDLE_S - 1)
    assert served(who, x_tenant_id="c", now=IDLE_S).tenant == "other"
    assert served(who, x_tenant_id="c", now=IDLE_S + 1).tenant == "c"
    assert served(who, x_tenant_id="b", now=IDLE_S + 2).tenant == "other"
    assert served(who, x_tenant_id="a", now=IDLE_S + 2).tenant == "a"


def test_a_million_users_of_one_key_are_so_many_flows_and_no_more() -> None:
    names = NameQuota(1_000)
    assert sum(names.admit(n, n / 1_000) for n in range(1_000_000)) == 1_000 + 1_000
    assert len(names) == 1_000


def test_users_beyond_the_bound_share_one_flow_within_their_tenant() -> None:
    who = callers(identity={"max_dynamic": 3})
    seen = [served(who, x_api_key=ALICE, body={"user": f"u{n}"}) for n in range(100)]
    assert {caller.tenant for caller in seen} == {"alice"}
    assert {caller.user for caller in seen} == {"u0", "u1", "u2", "other"}
    assert served(who, x_api_key=BOB, body={"user": "u99"}).user == "u99", "each listed tenant has its own bound"


def test_the_users_of_all_unlisted_tenants_are_bounded_together() -> None:
    who = callers(identity={"max_dynamic": 3})
    users = [served(who, x_tenant_id=tenant, x_user_id=user).user for tenant in "ab" for user in "xy"]
    assert users == ["x", "y", "x", "other"]


def test_a_tenant_name_of_ten_kilobytes_becomes_a_short_one_of_its_own() -> None:
    long, longer = "n" * 10_000, "n" * 10_001
    who = callers()
    names = [served(who, x_tenant_id=name).tenant for name in (long, longer, long)]
    assert names[0] == names[2] != names[1]
    assert all(len(name) < 100 and name.startswith("nnn") for name in names)


@pytest.mark.parametrize(
    "value",
    [
        b"a\x00b",
        b"a\x1b[31mb",
        "a\u202eb".encode(),
        "a\u200fb".encode(),
        b"a\xffb",
        "a\u00adb".encode(),
        "a\nb",
        "\ud800",
    ],
)
def test_control_characters_and_direction_marks_stay_out_of_names(value: bytes | str) -> None:
    name = safe_name(value)
    assert name.isprintable()
    assert "~" in name
    assert name != safe_name("ab")


@pytest.mark.parametrize("name", ["team-a", "überall", "à", "日本", "a b", "x" * 128])
def test_a_name_that_can_be_shown_stays_as_it_is(name: str) -> None:
    assert safe_name(name.encode()) == safe_name(name) == safe_name(f"  {name} ") == name


@effort(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200) | st.text("ab\x00\u202e ", max_size=8))
def test_any_value_gives_a_short_printable_name(value: bytes | str) -> None:
    name = safe_name(value)
    assert len(name) <= 128
    assert name.isprintable()
    assert name == name.strip()
    assert safe_name(name) == name


@effort(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_different_names_stay_different(one: bytes, other: bytes) -> None:
    assert (safe_name(one) == safe_name(other)) == (one.strip() == other.strip())


# Bands, deadlines, priorities

INTERACTIVE, STANDARD, BATCH = 0, 1, 2


@pytest.mark.parametrize(
    ("headers", "tier", "band", "lowered"),
    [
        ({}, None, STANDARD, False),
        ({"x_penstock_band": "batch"}, None, BATCH, False),
        ({"x_penstock_band": "standard"}, None, STANDARD, False),
        ({"x_penstock_band": "interactive"}, None, STANDARD, True),
        ({"x_penstock_band": "urgent"}, None, STANDARD, False),
        ({"x_llm_d_inference_objective": "batch"}, None, BATCH, False),
        ({"x_gateway_inference_objective": "interactive"}, None, STANDARD, True),
        ({"x_llm_d_inference_objective": "my-objective"}, "flex", BATCH, False),
        ({"x_penstock_band": "standard", "x_llm_d_inference_objective": "batch"}, "flex", STANDARD, False),
        ({}, "flex", BATCH, False),
        ({}, "priority", STANDARD, True),
        ({}, "fast", STANDARD, True),
        ({}, "auto", STANDARD, False),
        ({}, ["fast"], STANDARD, False),
        ({}, 7, STANDARD, False),
    ],
)
def test_a_keyless_caller_may_lower_its_band_only(
    headers: dict[str, Any], tier: object, band: int, lowered: bool
) -> None:
    caller = served(callers(), **headers, body={"service_tier": tier})
    assert (caller.band, caller.band_lowered) == (band, lowered)


@pytest.mark.parametrize(
    ("bands", "expected"),
    [
        ([None, None, None], {"top": 0, "one": 0, "zero": 1, "minus": 2, "least": 2}),
        ([100, None, -10], {"top": 0, "one": 1, "zero": 1, "minus": 2, "least": 2}),
        ([2, 1, None], {"top": 0, "one": 1, "zero": 2, "minus": 2, "least": 2}),
    ],
)
def test_an_objective_belongs_to_the_highest_band_whose_number_is_not_above_its_priority(
    bands: list[int | None], expected: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    names = ("interactive", "standard", "batch")
    listed = [{"name": name, "priority": number} for name, number in zip(names, bands, strict=True)]
    who = callers(identity={"max_band": "interactive"}, bands=listed)
    priorities = {"top": 100, "one": 1, "zero": 0, "minus": -1, "least": -(2**31)}
    who.objectives.know(PoolRules(priorities))
    assert {name: served(who, x_llm_d_inference_objective=name).band for name in priorities} == expected
    assert served(who, x_llm_d_inference_objective="unknown").band == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"objective {name}: priority {number} means that it is shed first, but its band batch is not best_effort"
        for name, number in {"minus": -1, "least": -(2**31)}.items()
    ]


def test_an_objective_raises_nobody_above_its_highest_band() -> None:
    who = callers(identity={"max_band": "standard"})
    who.objectives.know(PoolRules({"gold": 5}))
    assert (served(who, x_llm_d_inference_objective="gold").band, served(who).band) == (STANDARD, STANDARD)
    assert served(who, x_api_key=ALICE, x_llm_d_inference_objective="gold").band == INTERACTIVE


def test_a_key_lets_the_band_rise_as_far_as_its_tenant_may() -> None:
    who = callers()
    assert served(who, x_api_key=ALICE, x_penstock_band="interactive").band == INTERACTIVE
    assert served(who, x_api_key=ALICE, x_llm_d_inference_objective="interactive").band == INTERACTIVE
    assert served(who, x_api_key=ALICE, body={"service_tier": "fast"}).band == INTERACTIVE
    assert served(who, x_api_key=ALICE).band == STANDARD, "who asks for nothing gets the default"
    caller = served(who, x_api_key=BOB, x_penstock_band="interactive")
    assert (caller.band, caller.band_lowered) == (STANDARD, True)


def test_the_highest_band_without_a_key_can_be_set() -> None:
    assert served(callers(identity={"max_band": "interactive"}), x_penstock_band="interactive").band == INTERACTIVE
    low = callers(identity={"max_band": "batch"})
    assert (served(low).band, served(low).band_lowered) == (BATCH, False)
    assert served(low, x_penstock_band="standard").band_lowered


def test_the_name_of_a_tenant_alone_does_not_raise_a_band_but_may_lower_it() -> None:
    tenants: list[dict[str, object]] = [
        {"name": "vip", "max_band": "interactive"},
        {"name": "bot", "max_band": "batch"},
    ]
    who = callers(tenants=tenants)
    assert served(who, x_tenant_id="vip", x_penstock_band="interactive").band == STANDARD
    assert served(who, x_tenant_id="bot").band == BATCH


@pytest.mark.parametrize(
    ("headers", "deadline_s"),
    [
        ({}, None),
        ({"x_slo_ttft_ms": "1500"}, 1.5),
        ({"x_llm_d_slo_ttft_ms": " 250.5 "}, 0.2505),
        ({"x_slo_ttft_ms": "900", "x_llm_d_slo_ttft_ms": "300"}, 0.3),
        ({"x_penstock_band": "batch"}, 20.0),
        ({"x_penstock_band": "batch", "x_slo_ttft_ms": "30000"}, 20.0),
        ({"x_penstock_band": "batch", "x_slo_ttft_ms": "10000"}, 10.0),
        *(({"x_slo_ttft_ms": bad}, None) for bad in ("0", "-5", "soon", "inf", "nan", "1e3", "", "9" * 400)),
    ],
)
def test_the_deadline_is_the_shortest_of_header_and_band(headers: dict[str, Any], deadline_s: float | None) -> None:
    bands = [{"name": "standard"}, {"name": "batch", "deadline": "20s"}]
    assert served(callers(tenants=[], bands=bands), **headers).deadline_s == deadline_s


def test_a_time_per_output_token_is_the_shortest_given() -> None:
    who = callers(tenants=[])
    pace: dict[str, Any] = {"x_slo_tpot_ms": "40", "x_llm_d_slo_tpot_ms": " 25.5 "}
    assert served(who, **pace).time_per_output_token_s == 0.0255
    assert served(who, x_llm_d_slo_tpot_ms="0").time_per_output_token_s is None
    assert served(who, x_llm_d_slo_tpot_ms="30").deadline_s is None


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (None, 0),
        (-5, -5),
        (2**63, 2**31 - 1),
        (-(2**63), -(2**31)),
        (10**400, 2**31 - 1),
        (1.5, 0),
        ("1", 0),
        (True, 0),
        ([1], 0),
    ],
)
def test_a_priority_is_a_number_of_32_bits_or_none(value: object, priority: int) -> None:
    assert served(callers(), body={"priority": value}).priority == priority


# The part that all without a key share

KEYED: list[dict[str, object]] = [{"name": "alice", "keys": [key_hash(ALICE)]}, {"name": "open"}]


def test_clients_without_a_key_share_one_part_under_any_name() -> None:
    who = callers(tenants=KEYED, identity={"anonymous": {"weight": 3, "limits": {"running": 5}}})
    for caller in (served(who, x_tenant_id="a"), served(who, x_tenant_id="b", x_user_id="u"), served(who)):
        assert (caller.part, caller.account, caller.weight) == ("anonymous", "anonymous", 3)
    assert served(who, x_tenant_id="a").flow(("tenant",), "m") == ((" anonymous", "a"), (3, 1.0))
    assert served(who, x_tenant_id="open").flow(("tenant",), "m") == (("open",), (1.0,))
    assert served(who, x_api_key=ALICE, x_tenant_id="a").flow(("tenant",), "m") == (("alice",), (1.0,))


@pytest.mark.parametrize(
    ("levels", "flow"),
    [
        (("tenant", "user"), (" anonymous", "a", "u")),
        (("model", "tenant"), ("m", " anonymous", "a")),
        (("user",), (" anonymous", "a/u")),
        (("user", "tenant"), (" anonymous", "u", "a")),
        (("model",), ("m",)),
    ],
)
def test_their_part_begins_where_the_levels_first_say_who_it_is(levels: tuple[str, ...], flow: tuple[str, ...]) -> None:
    caller = served(callers(tenants=KEYED), x_tenant_id="a", x_user_id="u")
    assert caller.flow(levels, "m")[0] == flow


def test_alone_the_anonymous_part_gets_everything() -> None:
    caller = served(callers(tenants=[]), x_tenant_id="a")
    assert (caller.part, caller.flow(("tenant",), "m")) == ("", (("a",), (1.0,)))


def test_names_that_anybody_gives_take_no_room_from_those_that_a_trusted_proxy_gives() -> None:
    who = callers(tenants=KEYED, identity={"max_dynamic": 3, "trusted_proxies": ["10.0.0.1"]})
    for n in range(100):
        served(who, x_tenant_id=f"flood-{n}", x_user_id=f"u{n}")
    named = served(who, "10.0.0.1", x_tenant_id="customer", x_user_id="ann")
    assert (named.tenant, named.user, named.part, named.weight) == ("customer", "ann", "", 1.0)
    assert served(who, "10.0.0.1").part == "anonymous"


def test_a_name_that_is_given_twice_is_refused() -> None:
    who = callers()
    for name in (b"x-tenant-id", b"x-user-id", b"x-gateway-inference-fairness-id"):
        refused = who.key({name: b"a"}.get, lambda asked, name=name: asked == name)  # type: ignore[misc]
        assert isinstance(refused, Unauthorized)
        assert (refused.reason, name.decode() in refused.message) == (Reason.BAD_REQUEST, True)


def test_the_part_is_written_once() -> None:
    anonymous = {"name": "anonymous", "weight": 4, "limits": {"queued": 1}, "max_band": "batch"}
    who = callers(tenants=[*KEYED, anonymous])
    caller = served(who, x_tenant_id="a")
    assert (caller.weight, caller.band, caller.part) == (4, BATCH, "anonymous")
    with pytest.raises(ConfigError, match=r"identity\.anonymous: is given twice, as tenants\[0\] too"):
        from_mapping({"tenants": [anonymous], "identity": {"anonymous": {"weight": 2}}})
