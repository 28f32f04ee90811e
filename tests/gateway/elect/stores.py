"""The stores of an election for a test, each a real one but for the API server, with what `share.elect` says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.batch import postgres
from tests.gateway.elect import valkey
from tests.gateway.elect.lease_api import LeaseApi

KINDS = ("kubernetes", "valkey", "postgres")


class Stores:
    """One store of a kind, and how it is stopped and started."""

    def __init__(self, settings: dict[str, Any], stop: Callable[[], None], start: Callable[[], None]) -> None:
        self.settings = settings
        self.stop = stop
        self.start = start


@contextmanager
def store(kind: str) -> Iterator[Stores]:
    if kind == "kubernetes":
        api = LeaseApi()
        settings = {"server": api.url, "token_file": api.token_file, "namespace": "prod", "lease": "gate"}
        try:
            yield Stores({kind: settings}, api.stop, api.start)
        finally:
            api.stop()
    elif kind == "valkey":  # it keeps nothing: what it holds is gone
        with valkey.server() as running:
            yield Stores({kind: {"url": running.url}}, running.stop, running.start)
    else:
        postgres.require()
        with postgres.own_server() as database:
            yield Stores({kind: {"url": database.url}}, database.stop, database.start)
