"""Locality: who tells which endpoint holds the prefix of a prompt, and where are they asked?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated

from pydantic import BeforeValidator

from penstock.settings import values
from penstock.settings.address import PORT_MAX, endpoint_url, listen_address
from penstock.settings.problems import Refused, show
from penstock.settings.section import Section, setting

_TCP = re.compile(r"tcp://([^/\s]+)", re.ASCII)


def kv_events(value: object) -> str:
    """`off`, `auto`, or where they are published, in one normal form."""
    if value in ("off", "auto") or value is False:
        return str(value or "off")
    match = _TCP.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1].startswith(("*", ":")):
        raise Refused(f"{show(value)}: expected `off`, `auto` or tcp://HOST:PORT, as it is reached from here")
    try:
        address = listen_address(match[1])
    except Refused:
        address = ":0"
    port = int(address.rpartition(":")[2])
    if address.startswith(":") or not 0 < port < PORT_MAX:
        raise Refused(f"{show(value)}: expected tcp://HOST:PORT, with a port from 1 to {PORT_MAX - 1}")
    return f"tcp://{address}"


KvEvents = Annotated[str, BeforeValidator(kv_events), values.Kind("`off`, `auto` or `tcp://host:port`")]
Instance = Annotated[str | None, BeforeValidator(values.optional(values.name)), values.Kind("name")]
OptionalUrl = Annotated[str | None, BeforeValidator(values.optional(endpoint_url)), values.Kind("URL")]


class LmCache(Section):
    """LMCache's services, with `locality: lmcache`. One is enough; of two, the longer match counts."""

    coordinator: OptionalUrl = setting(None, "Its coordinator, which lists everybody who holds a chunk.")
    controller: OptionalUrl = setting(None, "Its older controller, which names one holder of each chunk.")


def contradictions(
    routing: Mapping[str, object], endpoints: list[Mapping[str, object]]
) -> Iterator[tuple[tuple[str | int, ...], str, str | None]]:
    """Where, what and perhaps what instead: values that are fine one by one, but would do nothing together."""
    locality = routing.get("locality") or "history"
    if locality not in ("history", "kv_events", "lmcache"):
        return
    services = routing.get("lmcache")
    asked = [
        key for key in LmCache.model_fields if isinstance(services, Mapping) and services.get(key) not in (None, "")
    ]
    if locality == "lmcache" and not asked:
        yield (
            ("routing", "lmcache"),
            "names neither a coordinator nor a controller",
            "`locality: lmcache` asks one of them",
        )
    if locality != "lmcache":
        for key in asked:
            yield ("routing", "lmcache", key), f"is not asked with `locality: {locality}`", "write `locality: lmcache`"
    published = [endpoint.get("kv_events") not in (None, "off", False) for endpoint in endpoints]
    if locality == "kv_events" and find_spec("zmq") is None:
        yield ("routing", "locality"), "`kv_events` needs pyzmq", "pip install 'penstock[kv]'"
    if locality == "kv_events" and endpoints and not any(published):
        yield ("routing", "locality"), "is `kv_events`, but no endpoint has any", "give endpoints `kv_events: auto`"
    for index, endpoint in enumerate(endpoints):
        if locality != "kv_events" and published[index]:
            yield (
                ("endpoints", index, "kv_events"),
                f"are not listened to with `locality: {locality}`",
                "write `locality: kv_events`",
            )
        if locality != "lmcache" and endpoint.get("lmcache_instance"):
            message = f"means nothing with `locality: {locality}`"
            yield ("endpoints", index, "lmcache_instance"), message, "write `locality: lmcache`"
