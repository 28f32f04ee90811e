"""Locality: the source of knowledge about cached prefixes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.address import PORT_MAX, listen_address
from penstock.config.problems import (
    Document,
    Found,
    Location,
    Refused,
    items_of,
    mapping_of,
    missing_extra,
    problem,
    show,
)
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


class LmCacheSection(Section):
    """LMCache's services, for `locality: lmcache`. One suffices; of two, the longer match counts."""

    coordinator: values.OptionalUrl = setting(None, "Its coordinator, which lists every holder of a chunk.")
    controller: values.OptionalUrl = setting(None, "Its older controller, which names one holder of each chunk.")


def locality_checks(document: Document) -> Found:
    routing = mapping_of(document.get("routing"))
    locality = routing.get("locality") or "history"
    if locality not in ("history", "kv_events", "lmcache"):
        return
    endpoints = [mapping_of(endpoint) for endpoint in items_of(document.get("endpoints"))]
    published = list(_published(document))
    if locality == "kv_events":
        yield from missing_extra(("routing", "locality"), "`kv_events` needs pyzmq", "kv", "zmq")
        if endpoints and not published and not document.get("discovery"):
            yield problem(
                ("routing", "locality"), "is `kv_events`, but no endpoint has any", "give endpoints `kv_events: auto`"
            )
    else:
        for place in published:
            yield problem(place, f"are not listened to with `locality: {locality}`", "write `locality: kv_events`")
    services = mapping_of(routing.get("lmcache"))
    asked = [key for key in LmCacheSection.model_fields if services.get(key) not in (None, "")]
    if locality == "lmcache":
        if not asked:
            hint = "`locality: lmcache` asks one of them"
            yield problem(("routing", "lmcache"), "lacks a coordinator or a controller", hint)
        return
    for key in asked:
        yield problem(
            ("routing", "lmcache", key), f"is not asked with `locality: {locality}`", "write `locality: lmcache`"
        )
    for index, endpoint in enumerate(endpoints):
        if endpoint.get("lmcache_instance"):
            message = f"means nothing with `locality: {locality}`"
            yield problem(("endpoints", index, "lmcache_instance"), message, "write `locality: lmcache`")


def _published(document: Document) -> Iterator[Location]:
    for index, endpoint in enumerate(items_of(document.get("endpoints"))):
        if mapping_of(endpoint).get("kv_events") not in (None, "off", False):
            yield "endpoints", index, "kv_events"
    for index, source in enumerate(items_of(document.get("discovery"))):
        for kind, template in mapping_of(source).items():
            if mapping_of(template).get("kv_events") not in (None, "off", False):
                yield "discovery", index, str(kind), "kv_events"
