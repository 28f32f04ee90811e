"""Callers of a group of gateways: which of their requests, each of its own name and sent once, were served?"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from typing import Final

from tests.gateway.conftest import Client, World
from tests.gateway.share.group import GatewayProcess

AGAIN_S: Final = 0.1  # before a caller whose gateway is dead goes to another one
NOTICED_S: Final = 1.0  # an end is noticed so long after a death at the most


class Callers:
    """What became of all that was asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = 0
        self._back_s: dict[str, float] = {}  # gateways that died, and when they were there again
        self.whole: Counter[str] = Counter()  #: by gateway
        self.cut = 0  #: with the gateway that they had come to
        self.lost: list[str] = []  #: at a gateway that lives: broken, refused, or without an end

    def died(self, name: str) -> None:
        """A gateway, or one of its workers, is about to be killed: what fails there from now on fails with it."""
        self._back_s[name] = math.inf

    def is_back(self, name: str) -> None:
        self._back_s[name] = time.monotonic()

    async def ask(self, one: GatewayProcess, *, tokens: int, band: str = "", tenant: str = "") -> float | None:
        """Returns how long it took to the first token; None: there was none."""
        self._asked += 1
        name, sent_s = f"r{self._asked}", time.monotonic()
        headers = {"x-request-id": name, "x-penstock-band": band, "x-tenant-id": tenant}
        headers = {key: value for key, value in headers.items() if value}
        client: Client | None = None
        try:
            client = await one.streaming(name, headers, tokens=tokens)
            answer = await client.begun()
            wait_s = time.monotonic() - sent_s
            while answer.status == 200 and await client.piece():
                pass
        except (OSError, EOFError) as error:  # also when nothing came for half a minute
            if self._back_s.get(one.name, -math.inf) >= sent_s - NOTICED_S:
                self.cut += client is not None
                await asyncio.sleep(AGAIN_S)
            else:
                self.lost.append(f"{name} at {one.name} after {time.monotonic() - sent_s:.1f} s: {error!r}")
            return None
        finally:
            if client is not None:
                client.hang_up()
                self._world.clients.remove(client)
        if answer.status == 200 and client.seen.endswith(b"data: [DONE]\n\n"):
            self.whole[one.name] += 1
        else:
            self.lost.append(f"{name} at {one.name}: status {answer.status}, {client.seen[-80:]!r}")
        return wait_s
