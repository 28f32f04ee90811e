"""Tokens of an identity provider as keys: which are good, whom they name, and what happens without its keys."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from penstock.config.load import from_mapping
from penstock.config.sections.tokens import JwtSection
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.caller import Caller, Claims, Key, Unauthorized
from penstock.gateway.identity.callers import Callers, key_hash
from penstock.gateway.identity.tokens import issuer_keys, verifier
from penstock.gateway.identity.tokens.accepted import AcceptedTokens
from penstock.gateway.identity.tokens.issuer_keys import IssuerKeys, KeysError, read_keys
from penstock.gateway.identity.tokens.verifier import Verifier
from tests.gateway.conftest import Answer, World, chat
from tests.gateway.identity.issuer import AUDIENCE, Issuer, forged, private_key, public_jwk
from tests.gateway.test_shutdown import serving
from tests.patience import WAIT_S

REFETCH_S = 10.0

TEAMS = [{"name": "team-a", "max_band": "interactive"}, {"name": "team-b"}]


async def in_front(world: World, issuer: Issuer, **settings: Any) -> None:
    """An engine, and a gateway that takes tokens of `issuer`."""
    if not world.engines:
        await world.engine()
    own = settings.pop("jwt", {})
    identity = {"jwt": {"issuer": issuer.url, "audience": AUDIENCE, "tenant_claim": "team", **own}}
    await world.gateway(identity={**identity, **settings.pop("identity", {})}, **{"tenants": TEAMS, **settings})


async def ask(world: World, token: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await world.ask(body=chat(), headers={"authorization": f"Bearer {token}", **named})


async def of(world: World, token: str, **headers: str) -> tuple[int, str]:
    """The status, and who the scheduler took the caller for, or why it was refused."""
    answer = await ask(world, token, x_request_id="who", **headers)
    if answer.status != 200:
        return answer.status, answer.error()["message"]
    told = (await world.ask("GET", "/admin/requests/who")).json()["explanation"]
    return answer.status, "/".join(told["flow"])


@pytest.mark.parametrize("key", ["rsa-1", "ec-1"])
@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_a_good_token_is_a_key_of_the_tenant_it_names_and_goes_no_further(
    world: World, key: str, header: str
) -> None:
    async with Issuer("rsa-1", "ec-1") as issuer:
        await in_front(world, issuer)
        token = issuer.token(key, team="team-a")
        answer = await world.ask(
            body=chat(), headers={header: f"Bearer {token}" if header == "authorization" else token}
        )
        assert answer.status == 200
        (seen,) = world.seen()
        assert not {"authorization", "x-api-key", "api-key"} & set(seen.headers)
        assert await world.metric("penstock_tenant_requests_total", tenant="team-a", outcome="completed") == 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"lasts_s": -60}, "it has expired"),
    "not valid yet": ({"nbf": 1e10}, "it is not valid yet"),
    "of another issuer": ({"iss": "https://elsewhere.example"}, "another issuer made it"),
    "for another audience": ({"aud": "shop"}, "it is for another audience"),
    "for nobody": ({"aud": None}, "it lacks"),
    "for ever": ({"exp": None}, "it lacks"),
    "of a key that nobody has": ({"key": "rsa-2"}, "no such key"),
    "signed by another key of that name": ({"key": "rsa-2", "headers": {"kid": "rsa-1"}}, "its signature is wrong"),
    "of a key of another kind": ({"key": "rsa-1", "headers": {"kid": "ec-1"}}, "no such key"),
}


async def test_bad_tokens_are_refused_with_the_reason(world: World) -> None:
    async with Issuer("rsa-1", "ec-1") as issuer:
        await in_front(world, issuer)
        for name, (made, why) in BAD.items():
            status, told = await of(world, issuer.token(**{"team": "team-a", **made}))
            assert (status, why in told) == (401, True), (name, told)
            assert "invalid_api_key" in told
        good = issuer.token(team="team-a")
        head, body, signature = good.split(".")
        other = issuer.token(team="team-b").split(".")[1]
        assert (await of(world, f"{head}.{other}.{signature}"))[0] == 401, "what was signed is not what it says"
        assert (await of(world, f"{head}.{body}."))[0] == 401
        assert (await of(world, good + "x" * 20_000))[0] == 401
        assert (await of(world, "eyJ.e30.e30"))[0] == 401
        assert (await of(world, good)) == (200, "team-a")
        unnamed = issuer.token(team="team-a", headers={"kid": None})
        assert (await of(world, unnamed))[0] == 200, "only one key can be meant"
        assert len(world.seen()) == 2
        refused = await ask(world, issuer.token(lasts_s=-60))
        assert refused.header("x-should-retry") == "false"


async def test_unsigned_tokens_and_those_signed_with_the_public_key_as_secret_are_refused(world: World) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    key: Any = private_key("rsa-1")
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer)
        claims = jwt.decode(issuer.token(team="team-a"), options={"verify_signature": False})
        for algorithm, secret in (("none", b""), ("None", b""), ("HS256", pem), ("HS256", b""), ("RS256", pem)):
            token = forged({"alg": algorithm, "typ": "JWT", "kid": "rsa-1"}, claims, secret)
            assert (await of(world, token))[0] == 401, algorithm
        assert not world.seen()


@pytest.mark.parametrize("algorithms", [["none"], ["HS256"], []])
def test_no_setting_allows_them(algorithms: list[str]) -> None:
    with pytest.raises(Exception, match="algorithms"):
        from_mapping({"identity": {"jwt": {"issuer": "https://i", "audience": "a", "algorithms": algorithms}}})


async def test_clocks_may_be_apart_by_the_leeway(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer)
        assert (await of(world, issuer.token(team="team-a", lasts_s=-10)))[0] == 200
        assert (await of(world, issuer.token(team="team-a", nbf=time.time() + 20)))[0] == 200
        assert (await of(world, issuer.token(team="team-a", lasts_s=-40)))[0] == 401
        assert (await of(world, issuer.token(team="team-a", nbf=time.time() + 50)))[0] == 401


async def test_claims_name_the_tenant_and_the_user(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer, jwt={"tenant_claim": "org.teams"}, fairness={"levels": ["tenant", "user"]})
        assert await of(world, issuer.token(more={"org.teams": "team-b"})) == (200, "team-b/alice")
        assert await of(world, issuer.token(org={"teams": "team-b"}, sub="bob")) == (200, "team-b/bob")
        listed = issuer.token(org={"teams": ["everybody", "team-a", "team-b"]})
        assert await of(world, listed) == (200, "team-a/alice"), "the first that is a tenant here"
        assert await of(world, issuer.token(org={"teams": ["x", "y"]})) == (200, "x/alice"), "a tenant of its own"
        assert await of(world, listed, x_user_id="mallory") == (200, "team-a/alice"), "what is signed is not overruled"
        nobodies: list[object] = [{}, {"teams": ""}, {"teams": []}, {"teams": 7}, {"teams": "anonymous"}, "team-a"]
        for nobody in nobodies:
            assert (await of(world, issuer.token(org=nobody)))[0] == 403, nobody
        assert await of(world, issuer.token(org={"teams": "team-b"}, sub=None), x_user_id="carol") == (
            200,
            "team-b/carol",
        )


async def test_a_band_above_the_tenants_highest_is_lowered_and_reported(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer, jwt={"band_claim": "band"})

        async def band(tenant: str, claimed: str | None, **headers: str) -> str | None:
            return (await ask(world, issuer.token(team=tenant, band=claimed), **headers)).header("x-penstock-band")

        assert await band("team-a", "interactive") == "interactive", "without asking"
        assert await band("team-a", "interactive", x_penstock_band="batch") == "batch"
        assert await band("team-a", "batch", x_penstock_band="interactive") == "batch", "no higher than it says"
        assert await band("team-a", None, x_penstock_band="interactive") == "interactive", "as with a key"
        assert await band("team-a", None) == "standard"
        assert await band("team-b", "interactive") == "standard", "its highest"
        assert await band("stranger", "interactive") == "standard"
        assert await band("team-a", "gold") == "standard", "no such band"


async def test_keys_and_tokens_live_side_by_side(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        tenants = [{"name": "team-a", "keys": [key_hash("pk-mine")]}]
        await in_front(world, issuer, tenants=tenants, identity={"require_key": True})
        assert await of(world, "pk-mine") == (200, "team-a")
        assert await of(world, issuer.token(team="team-a")) == (200, "team-a")
        assert (await of(world, "pk-other"))[0] == 401
        assert (await world.ask(body=chat())).status == 401


async def test_tokens_alone_may_be_all_the_keys_there_are(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer, tenants=[], identity={"require_key": True})
        assert (await of(world, issuer.token(team="team-a")))[0] == 200
        assert (await world.ask(body=chat())).status == 401
        assert (
            await world.ask("GET", "/queue", headers={"authorization": f"Bearer {issuer.token(team='x')}"})
        ).status == 200


async def test_a_key_that_comes_is_found_and_one_that_goes_takes_its_tokens_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "REFETCH_S", 0.0)
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer)
        old, new = issuer.token("rsa-1", team="team-a"), issuer.token("ec-1", team="team-a")
        assert (await of(world, old))[0] == 200
        issuer.keys = [public_jwk("ec-1")]
        first = await ask(world, new)
        assert (first.status, first.error()["code"], first.header("retry-after")) == (503, "identity_unavailable", "1")

        async def status(token: str) -> int:
            return (await ask(world, token)).status

        async with asyncio.timeout(WAIT_S):
            while await status(new) == 503:
                pass
        assert await status(new) == 200
        monkeypatch.setattr(issuer_keys, "REFETCH_S", REFETCH_S)
        assert await status(old) == 401, "although it was good before"


def bare_jwk(name: str, *but: str, **more: object) -> dict[str, Any]:
    """A public key without a name, and without the fields `but`."""
    return {field: value for field, value in public_jwk(name, **more).items() if field not in ("kid", *but)}


async def test_keys_without_names_are_all_tried(world: World) -> None:
    async with Issuer() as issuer:
        issuer.keys = [
            public_jwk("ec-9"),
            bare_jwk("rsa-1", alg="RS256"),
            bare_jwk("rsa-2", "use"),
            bare_jwk("ec-1", use=None, alg=None),
            bare_jwk("ec-2"),
            bare_jwk("rsa-3", alg="RS512"),
            bare_jwk("rsa-4", use="enc"),
        ]
        await in_front(world, issuer)
        for key in ("rsa-1", "rsa-2", "ec-1", "ec-2", "ec-9"):
            nameless = issuer.token(key, team="team-a", headers={"kid": None})
            assert (await of(world, nameless)) == (200, "team-a"), key
            named = issuer.token(key, team="team-a")
            assert (await of(world, named)) == (200, "team-a"), key
        for key in ("rsa-3", "rsa-4", "rsa-5"):
            for headers in ({}, {"kid": None}, {"kid": "ec-9"}):
                token = issuer.token(key, team="team-a", headers=headers)
                status, told = await of(world, token)
                assert (status, "no such key" in told) == (401, True), (key, headers, told)
        taken = issuer.token("ec-1", team="team-a", headers={"kid": "ec-9"})
        assert "its signature is wrong" in (await of(world, taken))[1], "a name that a key has means that key"
        expired = issuer.token("rsa-2", lasts_s=-60, headers={"kid": None})
        assert "it has expired" in (await of(world, expired))[1]


async def test_a_rotated_key_without_a_name_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "REFETCH_S", 0.0)
    async with Issuer() as issuer:
        issuer.keys = [bare_jwk("rsa-1")]
        await in_front(world, issuer)
        issuer.keys = [bare_jwk("rsa-1"), bare_jwk("rsa-2")]
        new = issuer.token("rsa-2", team="team-a", headers={"kid": None})
        assert (await ask(world, new)).status == 503
        async with asyncio.timeout(WAIT_S):
            while (await ask(world, new)).status == 503:
                pass
        assert (await ask(world, new)).status == 200
        assert (await ask(world, issuer.token("rsa-1", team="team-a", headers={"kid": None}))).status == 200


def test_a_token_is_held_against_sixteen_keys_at_most() -> None:
    keys = Known("ec-1")
    keys.fetched({"keys": [bare_jwk("ec-1")] * 60 + [bare_jwk("ec-2")]})
    assert len(keys.fitting(None, "ES256")) == len(keys.fitting("x", "ES256")) == 16
    assert keys.fitting(None, "RS256") == []


async def test_keys_may_be_elsewhere_and_only_configured_algorithms_count(world: World) -> None:
    async with Issuer("rsa-1", "ec-1") as issuer:
        await in_front(world, issuer, jwt={"jwks_url": f"{issuer.url}/keys?all", "algorithms": ["ES256"]})
        assert (await of(world, issuer.token("ec-1", team="team-a")))[0] == 200
        status, told = await of(world, issuer.token("rsa-1", team="team-a"))
        assert (status, "an algorithm that does not count here" in told) == (401, True)
        assert set(issuer.asked) == {"/realm/keys?all"}


async def test_keys_that_grew_too_old_count_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "REFRESH_S", 0.2)
    monkeypatch.setattr(issuer_keys, "STALE_S", 0.6)
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer)
        token = issuer.token(team="team-a")
        async with asyncio.timeout(WAIT_S):
            while len(issuer.asked) < 6:  # twice fetched again: it is younger than that all the time
                assert (await ask(world, token)).status == 200
        await issuer.down()
        assert (await ask(world, token)).status == 200
        async with asyncio.timeout(WAIT_S):
            while (answer := await ask(world, token)).status == 200:
                pass
        assert (answer.status, answer.error()["code"]) == (503, "identity_unavailable")


async def test_while_the_issuer_is_gone_known_keys_count_and_new_ones_can_not_be_judged(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer)
        await issuer.down()
        assert (await of(world, issuer.token(team="team-a")))[0] == 200
        assert (await of(world, issuer.token(team="team-a", sub="another")))[0] == 200


async def test_without_any_keys_tokens_get_a_503_and_keys_of_ours_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "RETRY_S", 0.02)
    issuer = await world.beside(Issuer("rsa-1"))
    await issuer.down()
    await in_front(world, issuer, tenants=[{"name": "team-a", "keys": [key_hash("pk-mine")]}])
    answer = await ask(world, issuer.token(team="team-a"))
    assert (answer.status, answer.error()["code"], answer.header("retry-after")) == (503, "identity_unavailable", "1")
    assert (await of(world, "pk-mine"))[0] == 200
    await issuer.up()
    async with asyncio.timeout(WAIT_S):
        while (await ask(world, issuer.token(team="team-a"))).status == 503:
            pass
    assert (await of(world, issuer.token(team="team-a")))[0] == 200


async def test_a_reload_brings_tokens_and_takes_them_away(world: World) -> None:
    async with Issuer("rsa-1") as issuer:
        await in_front(world, issuer, identity={})
        token = issuer.token(team="team-a")
        assert (await of(world, token))[0] == 200
        asked = len(issuer.asked)
        world.document["identity"]["jwt"]["tenant_claim"] = "sub"
        assert (await world.ask("POST", "/admin/reload")).status == 200
        assert await of(world, token) == (200, "alice")
        assert len(issuer.asked) == asked, "the keys are known"
        del world.document["identity"]["jwt"]
        assert (await world.ask("POST", "/admin/reload")).status == 200
        status, flow = await of(world, token)
        assert (status, flow.split("+")[0]) == (200, " anonymous/client:127.0.0.1"), "a credential of somebody else"


async def test_each_worker_verifies_for_itself(world: World, tmp_path: Path) -> None:
    await world.engine()
    async with Issuer("ec-1") as issuer:
        file = tmp_path / "penstock.yaml"
        file.write_text(f"identity: {{jwt: {{issuer: '{issuer.url}', audience: {AUDIENCE}}}}}")
        async with serving(world, "-c", str(file), "--workers", "2"):
            assert len(issuer.asked) == 6, "two questions of each: the decider, and two workers"
            token, bad = issuer.token("ec-1"), issuer.token("ec-1", aud="shop")
            for _ in range(8):
                assert ((await ask(world, token)).status, (await ask(world, bad)).status) == (200, 401)
            queue = await world.ask("GET", "/queue", headers={"authorization": f"Bearer {token}"})
            assert (queue.status, queue.json()["tenant"]) == (200, "alice"), "which the decider answers"


# --- without sockets --------------------------------------------------------------------------------------------------


def section(**more: Any) -> JwtSection:
    return JwtSection.model_validate({"issuer": "https://i", "audience": "a", **more})


class Known(IssuerKeys):
    """Keys that were fetched at time 0, as `now` goes on."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.time = 0.0
        super().__init__(section(**settings), now=lambda: self.time)
        self.fetched({"keys": [public_jwk(name) for name in names]})

    def fetched(self, document: object) -> None:
        self._take(document)
        self._tried_s = self._now()

    def failed(self) -> None:
        self._failed("gone")
        self._tried_s = self._now()


def test_keys_that_can_not_be_fetched_again_count_for_so_long() -> None:
    keys = Known("ec-1")
    keys.failed()
    usable: list[bool] = []
    for keys.time in (86_400.0, 86_401.0):
        usable.append(keys.usable)
    keys.fetched({"keys": [public_jwk("ec-1")]})
    assert [*usable, keys.usable] == [True, False, True]


def test_unknown_names_of_keys_cause_a_fetch_in_ten_seconds_and_no_more() -> None:
    keys = Known("ec-1")
    assert not keys.look_again(), "it was just fetched"
    keys.time = REFETCH_S + 1
    assert keys.look_again()
    assert keys.look_again(), "and it is on its way"
    keys._asked.clear()
    keys.fetched({"keys": [public_jwk("ec-1")]})
    assert not keys.look_again()
    keys.failed()
    assert keys.look_again(), "nobody can say that it is unknown"


def test_only_public_keys_for_signatures_are_taken() -> None:
    symmetric = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    sealing = public_jwk("rsa-2", use="enc")
    broken = {"kty": "RSA", "n": "x", "kid": "b"}
    whole = {"keys": [symmetric, sealing, broken, 7, public_jwk("ec-1", alg="ES256"), public_jwk("rsa-1", alg="RS512")]}
    keys = read_keys(whole)
    assert [key.name for key in keys] == ["ec-1", "rsa-1"]
    assert [keys[1].suits(name) for name in ("RS256", "RS512", "PS512", "ES256", "HS256")] == [
        *(False, True, False, False, False)
    ]
    nothings: list[object] = [{"keys": [symmetric]}, {"keys": []}, {"keys": None}, {}, [], None, {"keys": [{}] * 101}]
    for nothing in nothings:
        with pytest.raises(KeysError):
            read_keys(nothing)


def test_an_unchanged_key_set_keeps_verified_tokens() -> None:
    keys = Known("ec-1")
    version = keys.version
    keys.fetched({"keys": [public_jwk("ec-1")]})
    assert keys.version == version
    keys.fetched({"keys": [public_jwk("ec-2")]})
    assert keys.version == version + 1


def judge(made: Verifier, token: str) -> Claims | Unauthorized:
    return made.judge(token.encode(), hashlib.sha256(token.encode()).digest())


def signed(key: str = "ec-1", **claims: Any) -> str:
    said = {"iss": "https://i", "aud": ["b", "a"], "sub": "s", "exp": time.time() + 100, **claims}
    return str(jwt.encode(said, private_key(key), algorithm="ES256", headers={"kid": key}))


def test_a_token_is_verified_once_and_looked_up_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time()
    made = Verifier(section(), Known("ec-1"), is_listed=bool, wall=lambda: wall)
    verified: list[str] = []
    decode = jwt.decode

    def counted(token: str, **more: Any) -> Any:
        verified.append(token)
        return decode(token, **more)

    monkeypatch.setattr(jwt, "decode", counted)
    token = signed()
    for _ in range(3):
        claims = judge(made, token)
        assert isinstance(claims, Claims)
        assert (claims.tenant, claims.user, claims.band) == ("s", "s", "")
    assert len(verified) == 1
    wall += 131
    judge(made, token)
    assert len(verified) == 2, "looked at again, and it says itself that it is over"


def test_no_more_tokens_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "TOKENS_MAX", 5)
    made = Verifier(section(), Known("ec-1"), is_listed=bool)
    for number in range(8):
        assert isinstance(judge(made, signed(sub=f"s{number}")), Claims)
    assert 0 < len(made._good) <= 5


def test_names_beyond_the_bound_share_a_flow_but_never_files() -> None:
    says = _Says()
    callers = Callers(tokens=says)
    jwt_ = {"issuer": "https://i", "audience": "a"}
    callers.follow(from_mapping({"identity": {"max_dynamic": 1, "jwt": jwt_}}))
    header = {b"authorization": b"Bearer eyJ.e30.e30"}.get
    says.tenant = "first"
    caller = identified(callers, header)
    assert (caller.tenant, caller.has_key) == ("first", True)
    says.tenant = "second"
    caller = identified(callers, header)
    assert caller.tenant == "other"
    assert callers.owner(header, "10.0.0.1", caller) == "second"


def identified(callers: Callers, header: Any) -> Caller:
    key = callers.key(header, lambda _: False)
    assert isinstance(key, Key)
    caller = callers.identify(key, header, "10.0.0.1", now=0.0)
    assert isinstance(caller, Caller)
    return caller


class _Says(AcceptedTokens):
    """Takes everything for a token of this tenant."""

    tenant = ""

    def judge(self, presented: bytes) -> Claims | Unauthorized | None:
        return Claims(self.tenant, "", "")


def test_without_the_library_the_settings_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Exception, match=r"pip install 'penstock-gateway\[jwt\]'"):
        from_mapping({"identity": {"jwt": {"issuer": "https://i", "audience": "a"}}})


def test_before_the_first_keys_tokens_cannot_be_judged() -> None:
    made = Verifier(section(), IssuerKeys(section()), is_listed=bool)
    told = judge(made, signed())
    assert isinstance(told, Unauthorized)
    assert told.reason is Reason.IDENTITY_UNAVAILABLE
