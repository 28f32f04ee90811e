"""Which endpoint keeps which stored answer, and for whom? All processes of a gateway and of a group know it.

Model: a tree. A worker reports to its gateway's first process, that one to the gateway that decides, and news goes
down all other branches. A worker that starts, and a gateway that joins, receive the latest answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.gateway.cluster.member import Member
from penstock.gateway.sessions.kept_answers import Responses
from penstock.share.messages import AnswerMade

SENT_MAX: Final = 10_000  # to a new process, about 1 MB: conversations go on from a recent answer


class SharedAnswers:
    """The answers that the first process of a gateway knows, and the processes to which it reports them."""

    def __init__(self, responses: Responses, members: Callable[[], Iterable[Member]]) -> None:
        self._responses = responses
        self._members = members
        self.tell_decider: Callable[[AnswerMade], None] = lambda _: None  #: in another gateway, if that one decides
        responses.tell = self._made_here

    def heard(self, made: AnswerMade, member: Member | None) -> None:
        """Note what a worker, another gateway, or (None) the decider reports, and pass it on if it is news."""
        if self._responses.note(made.answer, made.endpoint, made.owner, made.session):
            self._pass_down(made, but=member)
            if member is not None:
                self.tell_decider(made)

    def tell(self, say: Callable[[AnswerMade], None]) -> None:
        """Report the latest answers to a newcomer, by `say`."""
        for answer, made in self._responses.latest(SENT_MAX):
            say(AnswerMade(answer, made.endpoint, made.owner, made.session))

    def _made_here(self, answer: str, endpoint: str, owner: str | None, session: str) -> None:
        made = AnswerMade(answer, endpoint, owner, session)
        self._pass_down(made)
        self.tell_decider(made)

    def _pass_down(self, made: AnswerMade, but: Member | None = None) -> None:
        for member in self._members():
            # Workers of other gateways hear of it from their own first process.
            if member is not but and (member.is_ours or member.is_gateway):
                member.say(made)
