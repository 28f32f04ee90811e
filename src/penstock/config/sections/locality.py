"""Locality: the source of knowledge about cached prefixes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.address import PORT_MAX, endpoint_url, listen_address
from penstock.config.problems import Refused, show
from penstock.config.sections.section import Section, setting

_TCP = re.compile(r"tcp://([^/\s]+)", re.ASCII)


def kv_events(value: object) -> str:
    """Returns `off`, `auto`, or the normalised address of KV events."""
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


KvEvents = Annotated[str, BeforeValidator(kv_events), values.ValueKind("`off`, `auto` or `tcp://host:port`")]
Instance = Annotated[str | None, BeforeValidator(values.optional(values.name)), values.ValueKind("name")]
OptionalUrl = Annotated[str | None, BeforeValidator(values.optional(endpoint_url)), values.ValueKind("URL")]


class LmCacheSection(Section):
    """LMCache's services, for `locality: lmcache`. One suffices; of two, the longer match counts."""

    coordinator: OptionalUrl = setting(None, "Its coordinator, which lists every holder of a chunk.")
    controller: OptionalUrl = setting(None, "Its older controller, which names one holder of each chunk.")


Place = tuple[str | int, ...]
Found = Iterator[tuple[Place, str, str | None]]


def contradictions(document: Mapping[str, object]) -> Found:
    """Yields contradictions: location, message, suggestion (or None)."""
    routing = _mapping(document.get("routing"))
    locality = routing.get("locality") or "history"
    if locality not in ("history", "kv_events", "lmcache"):
        return
    endpoints = [_mapping(endpoint) for endpoint in _items(document.get("endpoints"))]
    published = list(_published(document))
    if locality == "kv_events":
        if find_spec("zmq") is None:
            yield ("routing", "locality"), "`kv_events` needs pyzmq", "pip install 'penstock-gateway[kv]'"
        if endpoints and not published and not document.get("discovery"):
            yield ("routing", "locality"), "is `kv_events`, but no endpoint has any", "give endpoints `kv_events: auto`"
    else:
        for place in published:
            yield place, f"are not used with `locality: {locality}`", "write `locality: kv_events`"
    services = _mapping(routing.get("lmcache"))
    asked = [key for key in LmCacheSection.model_fields if services.get(key) not in (None, "")]
    if locality == "lmcache":
        if not asked:
            message = "names neither a coordinator nor a controller"
            yield ("routing", "lmcache"), message, "`locality: lmcache` asks one of them"
        return
    for key in asked:
        yield ("routing", "lmcache", key), f"is not used with `locality: {locality}`", "write `locality: lmcache`"
    for index, endpoint in enumerate(endpoints):
        if endpoint.get("lmcache_instance"):
            message = f"has no effect with `locality: {locality}`"
            yield ("endpoints", index, "lmcache_instance"), message, "write `locality: lmcache`"


def _published(document: Mapping[str, object]) -> Iterator[Place]:
    """Yields the settings that ask for KV events."""
    for index, endpoint in enumerate(_items(document.get("endpoints"))):
        if _mapping(endpoint).get("kv_events") not in (None, "off", False):
            yield "endpoints", index, "kv_events"
    for index, source in enumerate(_items(document.get("discovery"))):
        for kind, template in _mapping(source).items():
            if _mapping(template).get("kv_events") not in (None, "off", False):
                yield "discovery", index, str(kind), "kv_events"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
