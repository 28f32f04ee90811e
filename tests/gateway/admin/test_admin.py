"""Who may use /admin: tokens, loopback without tokens, other sites' pages, wrong tokens; and what a wrong call gets."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from penstock.config.load import ConfigError, from_mapping
from penstock.config.model import Settings
from penstock.config.sections.operation import Admin
from penstock.core.values.catalogue import Reason
from penstock.gateway.admin.auth import AdminAuth
from penstock.gateway.identity.origins import PROXY_HEADERS, Origins, is_loopback
from tests.gateway.conftest import World

FAILURES_MAX = 10

LIST = "/admin/endpoints"
TOKENS: dict[str, Any] = {"token": "all-of-it", "read_token": "only-look"}


class Head:
    """A request's head."""

    def __init__(self, peer: str = "10.0.0.1", **headers: str) -> None:
        self.peer = (peer, 1234)
        self.client = peer
        self.brought = False
        self.lookup = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def settings(tokens: dict[str, str], **more: object) -> Settings:
    """With tokens shorter than an operator may set."""
    secrets: dict[str, Any] = {name: SecretStr(token) for name, token in tokens.items()}
    return from_mapping(more).model_copy(update={"admin": Admin.model_construct(**secrets)})


def auth(
    listens_on: str = "127.0.0.1",
    clock: Clock | None = None,
    own: str | None = None,
    more: dict[str, object] | None = None,
    **tokens: Any,
) -> AdminAuth:
    origins = Origins(listens_on=listens_on)
    made = AdminAuth(listens_on=listens_on, now=clock or Clock(), origins=origins, own=own)
    for part in (origins, made):
        part.follow(settings(tokens, **(more or {})))
    return made


def reason(judge: AdminAuth, head: Head, *, writes: bool = True) -> Reason | None:
    denied = judge.denied(head, writes=writes)
    return None if denied is None else denied.reason


def bearer(token: str, peer: str = "10.0.0.1") -> Head:
    return Head(peer, authorization=f"Bearer {token}")


def test_each_token_may_do_what_it_is_for() -> None:
    judge = auth("", None, **TOKENS)
    assert reason(judge, bearer("all-of-it"), writes=True) is None
    assert reason(judge, bearer("all-of-it"), writes=False) is None
    assert reason(judge, bearer("only-look"), writes=False) is None
    assert reason(judge, bearer("only-look"), writes=True) is Reason.FORBIDDEN
    assert reason(judge, bearer("something"), writes=False) is Reason.UNAUTHORIZED
    assert reason(judge, Head(), writes=False) is Reason.UNAUTHORIZED


def test_with_a_reading_token_alone_nobody_may_write() -> None:
    judge = auth(read_token="only-look")
    assert reason(judge, bearer("only-look"), writes=False) is None
    assert reason(judge, bearer("only-look"), writes=True) is Reason.FORBIDDEN
    assert reason(judge, bearer(""), writes=True) is Reason.UNAUTHORIZED


@pytest.mark.parametrize("listens_on", ["", "0.0.0.0", "::", "10.0.0.1", "gateway"])
def test_without_tokens_a_gateway_that_others_reach_is_closed(listens_on: str) -> None:
    assert reason(auth(listens_on), Head(host="127.0.0.1:8080")) is Reason.FORBIDDEN


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_without_tokens_this_machine_looks_at_a_gateway_on_loopback_and_changes_nothing(listens_on: str) -> None:
    assert is_loopback(listens_on)
    judge = auth(listens_on)
    for head in (
        Head("127.0.0.1", host="localhost:8080"),
        Head("::1", host="[::1]:8080", origin="http://[::1]:8080"),
        Head("::ffff:127.0.0.1"),
    ):
        assert reason(judge, head, writes=False) is None
        assert reason(judge, head, writes=True) is Reason.FORBIDDEN


@pytest.mark.parametrize("header", [name.decode() for name in PROXY_HEADERS])
def test_a_proxied_caller_is_not_this_machine(header: str) -> None:
    head = Head("127.0.0.1", host="127.0.0.1:8080", **{header.replace("-", "_"): "127.0.0.1"})
    assert reason(auth(), head, writes=False) is Reason.FORBIDDEN


def test_a_proxy_that_the_settings_name_is_not_this_machine_either() -> None:
    judge = auth(more={"identity": {"trusted_proxies": ["127.0.0.1"]}})
    assert reason(judge, Head("127.0.0.1"), writes=False) is Reason.FORBIDDEN
    assert reason(judge, Head("127.0.0.2"), writes=False) is None


@pytest.mark.parametrize(
    ("peer", "names"),
    [("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("127.0.0.2", False), ("10.0.0.1", False)],
)
def test_a_refusal_says_which_setting_and_what_to_give(peer: str, names: bool) -> None:
    judge = auth(more={"identity": {"trusted_proxies": ["127.0.0.1"]}})
    denied = judge.denied(Head(peer, x_forwarded_for="10.9.9.9"), writes=False)
    assert denied is not None
    assert (f": {peer} is in `identity.trusted_proxies`. " in denied.message) is names
    assert "Give the admin token (`--token`, `Authorization: Bearer …`)" in denied.message


@pytest.mark.parametrize("peer", ["10.0.0.1", "2001:db8::1", ""])
def test_who_comes_from_elsewhere_to_loopback_was_sent_on(peer: str) -> None:
    assert reason(auth(), Head(peer, host="127.0.0.1:8080"), writes=False) is Reason.FORBIDDEN


def test_a_gateways_own_token_opens_it_and_only_where_none_is_set() -> None:
    def judge(listens_on: str = "127.0.0.1", **tokens: Any) -> AdminAuth:
        return auth(listens_on, own="made-here", **tokens)

    assert reason(judge(), bearer("made-here"), writes=True) is None
    assert reason(judge(), bearer("made-there"), writes=True) is Reason.UNAUTHORIZED
    assert reason(judge(), Head("127.0.0.1"), writes=True) is Reason.UNAUTHORIZED
    assert reason(judge(), Head("127.0.0.1"), writes=False) is None
    assert reason(judge(listens_on="0.0.0.0"), bearer("made-here"), writes=True) is None
    assert reason(judge(listens_on="0.0.0.0"), Head("127.0.0.1"), writes=False) is Reason.FORBIDDEN
    assert reason(judge(token="another-one"), bearer("made-here"), writes=False) is Reason.UNAUTHORIZED
    changed = judge()
    changed.follow(settings({"token": "another-one"}))
    assert reason(changed, bearer("made-here"), writes=False) is Reason.UNAUTHORIZED
    changed.follow(settings({}))
    assert reason(changed, bearer("made-here"), writes=False) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8080"},
        {"host": "evil.example"},
        {"host": "127.0.0.1:8080", "origin": "http://evil.example"},
        {"host": "127.0.0.1:8080", "origin": "null"},
        {"host": "[::1", "origin": "http://["},
        {"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:9090"},
        {"host": "127.0.0.1:8080", "sec_fetch_site": "cross-site"},
    ],
)
def test_a_page_of_another_site_cannot_use_the_open_loopback(headers: dict[str, str]) -> None:
    assert reason(auth(), Head("127.0.0.1", **headers), writes=False) is Reason.FORBIDDEN


def test_many_wrong_tokens_slow_down_the_address_they_come_from_and_never_the_right_one() -> None:
    clock = Clock()
    judge = auth("", clock, token="right")
    for _ in range(FAILURES_MAX):
        denied = judge.denied(bearer("wrong"), writes=False)
        assert denied is not None
        assert (denied.reason, denied.delay_s) == (Reason.UNAUTHORIZED, 0.0)
    for _ in range(3 * FAILURES_MAX):
        denied = judge.denied(bearer("wrong"), writes=False)
        assert denied is not None
        assert (denied.reason, denied.delay_s) == (Reason.OVERLOAD, 1.0)
        assert reason(judge, bearer("right")) is None
    assert reason(judge, bearer("wrong", peer="10.0.0.2")) is Reason.UNAUTHORIZED
    assert denied is not None
    assert denied.retry_after_s is not None
    clock.now += denied.retry_after_s
    assert reason(judge, bearer("wrong")) is Reason.UNAUTHORIZED, "however many there were, it is forgiven as soon"


async def test_the_gateway_asks_for_the_token_before_it_reads_a_body(world: World) -> None:
    await world.gateway(admin=TOKENS)
    assert (await world.ask("GET", LIST)).status == 401
    head = b"POST %b HTTP/1.1\r\nhost: a\r\nauthorization: Bearer nonsense\r\ncontent-length: 999\r\n\r\n"
    wrong = await (await world.client(head % LIST.encode())).answer()
    assert (wrong.status, wrong.error()["code"]) == (401, "unauthorized")
    reader = {"authorization": "Bearer only-look"}
    assert (await world.ask("GET", LIST, headers=reader)).json() == {"endpoints": []}
    refused = await world.ask("POST", LIST, {"url": "http://127.0.0.1:1"}, reader)
    assert (refused.status, refused.error()["code"]) == (403, "forbidden")
    added = await world.ask("POST", LIST, {"url": "http://127.0.0.1:1"}, {"authorization": "bearer all-of-it"})
    assert added.status == 201


async def test_a_gateway_that_listens_everywhere_without_tokens_answers_403(world: World) -> None:
    await world.gateway(listen="0.0.0.0:0")
    assert [(await world.ask("GET", path)).status for path in (LIST, "/admin/", "/admin/what")] == [403, 403, 403]


async def test_a_missing_path_has_an_error_in_the_usual_shape(world: World) -> None:
    await world.gateway()
    assert (await world.ask("GET", "/admin/nothing")).error()["code"] == "path_not_found"
    other = await world.ask("PUT", LIST)
    assert (other.status, other.header("allow")) == (405, "GET, POST")
    for method, path in (("DELETE", LIST + "/x"), ("POST", LIST + "/x/drain"), ("POST", LIST + "/a%2Fb/slots")):
        answer = await world.ask(method, path, b"{}" if method == "POST" else b"")
        assert (answer.status, answer.error()["code"]) == (404, "endpoint_not_found")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "The body is not JSON."),
        (b"[]", "The body has to be a JSON object."),
        (b"{}", "url: is required"),
        (b'{"url": "gpu-0"}', "url: `gpu-0` is not a URL with a host"),
        (b'{"url": "http://a", "slotz": 3}', "slotz: unknown setting (did you mean `slots`?)"),
        (b'{"url": "http://a", "slots": 0}', "slots: `0`: expected `auto` or a whole number of 1 or more"),
    ],
)
async def test_a_wrong_endpoint_is_refused_in_the_words_of_the_settings(
    world: World, body: bytes, message: str
) -> None:
    await world.gateway()
    answer = await world.ask("POST", LIST, body)
    assert answer.status == 400
    assert message in answer.error()["message"]


def test_an_ipv6_caller_has_no_more_tries_for_having_more_addresses() -> None:
    judge = auth("", token="right")
    for n in range(FAILURES_MAX):
        assert reason(judge, bearer("wrong", peer=f"2001:db8::{n:x}%eth0")) is Reason.UNAUTHORIZED
    assert reason(judge, bearer("wrong", peer="2001:db8::ffff")) is Reason.OVERLOAD
    assert reason(judge, bearer("wrong", peer="2001:db8:0:1::1")) is Reason.UNAUTHORIZED
    for _ in range(FAILURES_MAX):
        assert reason(judge, bearer("wrong", peer="::ffff:10.0.0.9")) is Reason.UNAUTHORIZED
    assert reason(judge, bearer("wrong", peer="10.0.0.9")) is Reason.OVERLOAD


async def test_no_answer_of_admin_can_be_taken_for_a_page(world: World) -> None:
    await world.gateway(admin={"read_token": "only-look"})
    look = {"authorization": "Bearer only-look"}
    for path, headers in ((LIST, look), ("/admin/state", look), ("/admin/what", look), (LIST, {})):
        answer = await world.ask("GET", path, headers=headers)
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("content-type") == "application/json"


def test_a_token_that_may_look_is_not_the_one_that_may_do_everything() -> None:
    with pytest.raises(ConfigError, match=r"admin\.read_token: is the same as `admin\.token`"):
        from_mapping({"admin": {"token": "one-and-the-same", "read_token": "one-and-the-same"}})
