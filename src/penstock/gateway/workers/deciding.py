"""Who decides about a worker's requests? Its gateway's first process, another gateway's, or for a moment nobody.

The first process says which. Its own link carries both then, what it decides and what it is beside: settings, the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.values.actions import Action
from penstock.gateway.workers.link import Link
from penstock.share.edge import Edge
from penstock.share.messages import Down, Frame, Hello, WhoDecides

if TYPE_CHECKING:
    from penstock.config.sections.share import ShareSection
    from penstock.gateway.share.outward import Outward


class DeciderLinks:
    """Where facts go, and whose actions are carried out."""

    def __init__(
        self,
        home: Link[Down],
        edge: Edge,
        *,
        hello: Callable[[int, str], Hello],
        heard: Callable[[Frame[Down]], None],
        act: Callable[[list[Action]], None],
        now: Callable[[], float],
    ) -> None:
        self._home = home
        self._edge = edge
        self._hello = hello
        self._heard = heard
        self._act = act
        self._now = now
        self._outward: Outward | None = None
        self._place = ""  # of this gateway
        self._followed = ""  # the address of whoever was followed last
        self.is_home = False  #: the first process of this gateway decides

    def follow(self, share: ShareSection) -> None:
        """Settings: who else there may be. The first time only, for they need a restart."""
        if not share.enabled or self._outward is not None:
            return
        from penstock.gateway.share.dial import Dialler  # noqa: PLC0415 - one gateway alone needs none of it
        from penstock.gateway.share.outward import Outward  # noqa: PLC0415

        self._place = share.place
        self._outward = Outward(
            Dialler(share),
            self._edge,
            hello=lambda: self._hello(self._edge.epoch, self._followed),
            heard=self._heard,
            act=self._act,
            now=self._now,
            linked=self._is_followed,
        )

    def obey(self, decides: WhoDecides) -> None:
        """The first process says who decides."""
        outside = decides.address or ""
        if self._outward is not None and outside != self._outward.address:
            self._outward.to(outside)
        if self.is_home:
            self.is_home = False
            self._act(self._edge.unlinked(now=self._now()))
        if decides.address == "":
            self.is_home = True
            self._followed = self._place
            self._home.at(decides.epoch)
            self._edge.gateways = decides.gateways or self._edge.gateways
            self._act(self._edge.linked(self._home.say, decides.epoch, now=self._now()))

    def say(self, message: object) -> None:
        """Tell whoever decides; what concerns requests is told by the edge."""
        if self.is_home:
            self._home.say(message)
        elif self._outward is not None:
            self._outward.say(message)

    async def close(self) -> None:
        """Hang up."""
        if self._outward is not None:
            await self._outward.close()

    def _is_followed(self) -> None:
        assert self._outward is not None
        self._followed = self._outward.address
