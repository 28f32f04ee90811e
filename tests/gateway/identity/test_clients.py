"""Whose address a request has: the last that no believed proxy has written itself, never one that is made up."""

from __future__ import annotations

import pytest

from penstock.config.load import from_mapping
from penstock.gateway.identity.clients import Clients
from penstock.http.server.exchange import Header

PROXY, SECOND, CLIENT = "10.0.0.5", "10.0.0.6", "203.0.113.7"


class Asked:
    """A request of which only the head counts."""

    def __init__(self, peer: str, *headers: Header) -> None:
        self.peer = (peer, 1234)
        self.headers = list(headers)


def address(*given: str, peer: str = PROXY, name: str = "X-Forwarded-For", **settings: object) -> str:
    clients = Clients()
    its = {"proxies": [PROXY, SECOND, "fd00::/8"], "header": "x-forwarded-for", **settings}
    clients.follow(from_mapping({"client_address": its}))
    return clients.address(Asked(peer, *((name.encode(), value.encode()) for value in given)))


@pytest.mark.parametrize(
    ("given", "client"),
    [
        ([CLIENT], CLIENT),
        (["198.51.100.9, " + CLIENT], CLIENT),  # the first one is what the client says of itself
        ([f"198.51.100.9, {CLIENT}, {SECOND}"], CLIENT),
        ([f"198.51.100.9, {CLIENT}", SECOND], CLIENT),  # in two lines
        ([CLIENT, f"{SECOND} ,{PROXY}"], CLIENT),
        ([f"{CLIENT}:4711"], CLIENT),
        (["2001:db8::7"], "2001:db8::7"),
        (["[2001:DB8::7]:4711"], "2001:db8::7"),
        (["::ffff:203.0.113.7"], CLIENT),
        (["203.0.113.7, fd00::1"], CLIENT),
        ([f"{SECOND}"], SECOND),  # one of them asks for itself
        ([], PROXY),
        ([""], PROXY),
        (["unknown"], PROXY),
        (["198.51.100.9, unknown"], PROXY),
        ([f"198.51.100.9, unknown, {SECOND}"], SECOND),
        (["198.51.100.9,"], PROXY),
        (["198.51.100.9, evil\" , "], PROXY),
        (["127.0.0.1"], "127.0.0.1"),
        (["fe80::1%eth0"], PROXY),
        (["999.1.1.1"], PROXY),
    ],
)  # fmt: skip
def test_the_client_is_the_last_address_that_is_no_proxys(given: list[str], client: str) -> None:
    assert address(*given) == client


@pytest.mark.parametrize(
    ("given", "client"),
    [
        ([f"for={CLIENT}"], CLIENT),
        ([f"For=198.51.100.9, for={CLIENT};proto=https;by=10.0.0.5"], CLIENT),
        ([f"proto=https; for={CLIENT}"], CLIENT),
        (['for="[2001:db8::7]:4711"'], "2001:db8::7"),
        (['for="203.0.113.7:4711"'], CLIENT),
        ([f"for=198.51.100.9, for={CLIENT}", f"for={SECOND}"], CLIENT),
        (["for=_hidden"], PROXY),
        (["for=unknown"], PROXY),
        ([f'for="198.51.100.9, for={CLIENT}'], CLIENT),  # an open quote hides nothing of what a proxy added
        ([f'for="198.51.100.9, x="y, for={CLIENT}'], CLIENT),
        (["proto=https"], PROXY),
        ([f"xfor={CLIENT}"], PROXY),
        ([CLIENT], PROXY),
    ],
)
def test_forwarded_is_read_in_the_same_way(given: list[str], client: str) -> None:
    assert address(*given, name="Forwarded", header="forwarded") == client


def test_only_the_header_that_is_named_counts() -> None:
    assert address(CLIENT, name="Forwarded") == PROXY
    assert address(CLIENT, header="forwarded") == PROXY


def test_other_peers_are_not_trusted() -> None:
    assert address(CLIENT, peer="198.51.100.9") == "198.51.100.9"
    assert address(CLIENT, proxies=[]) == PROXY


def test_a_long_chain_is_read_so_far() -> None:
    chain = ", ".join([CLIENT, *([SECOND] * 37)])
    assert address(chain) == SECOND
    assert address("a," * 30_000 + CLIENT) == CLIENT
