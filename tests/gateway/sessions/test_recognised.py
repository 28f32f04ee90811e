"""Many agents at once, of four tenants, without a name: whose turn is each request?"""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random
from typing import Any

from penstock.config.sections.routing import SessionSection
from penstock.core.sessions.recognition import SessionNames
from penstock.core.values.request import Request
from penstock.gateway.openai.body import peek
from penstock.gateway.sessions.session_reader import Turns
from tests.gateway.openai.test_prompt_ends import FORMS

SESSIONS = {"a": 86, "b": 22, "c": 10, "d": 10}
TURNS = 12
WORDS = ["ok", "error: line 7", "3 passed", "no such file", "done"]


class Agent:
    """A session as its client keeps it. Tenants have the same tasks: prompts of two tenants are often equal."""

    def __init__(self, tenant: str, number: int, random: Random) -> None:
        self.tenant = tenant
        self.name = f"{tenant}{number}"
        self._task = f"task {number}"
        self._form = FORMS[("chat", "anthropic", "responses")[number % 3]]
        self._results: list[str] = []
        self._random = random
        self.asked = 0
        self.is_new = True  #: nothing of what it asked before is in its prompt

    def body(self) -> bytes:
        """The prompt of its next turn. Now and then a turn is taken back, asked again, or all is compacted."""
        random, event = self._random, self._random.random()
        self.is_new = self.asked == 0
        if event < 0.02 and self.asked:
            self._task, self._results, self.is_new = f"a summary of {self.name} after {self.asked}", [], True
        elif event < 0.06 and self._results:
            self._results[-1] = "otherwise"
        elif event > 0.05 and self.asked:
            self._results.append(f"{random.choice(WORDS)} {random.randrange(100)}")
        self.asked += 1
        sent: dict[str, Any] = {"model": "m", **self._form(*self._results)}
        return json.dumps(sent, indent=random.choice([None, 1])).replace("mend it", self._task).encode()


def test_turns_are_found_by_prompts_alone_and_never_another_tenants() -> None:
    random = Random(1)
    agents = [Agent(tenant, number, random) for tenant, count in SESSIONS.items() for number in range(count)]
    turns, names = Turns(SessionSection(), 7), SessionNames()
    last: dict[str, tuple[str, str] | None] = {}
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    right = follow_ups = 0
    for step in range(TURNS * len(agents)):
        agent = random.choice(agents)
        found = peek(agent.body())
        assert found.text is not None
        turn = turns.by_prompt(found.text)
        request = Request("r", "m", 0, tenant=agent.tenant, flow=(agent.tenant,), turn=turn)
        session = names.find(request, float(step))
        assert session is not None
        owners[agent.tenant, session[0]].add(agent.name)
        if agent.asked > 1:
            follow_ups += 1
            right += agent.is_new or session == last[agent.name]
            assert not (agent.is_new and session == last[agent.name]), "nothing of the old prompt is left"
        last[agent.name] = session
    assert follow_ups > 1000
    assert right / follow_ups >= 0.98
    assert all(len(agents) == 1 for agents in owners.values())


def test_a_tenants_sessions_are_the_same_whether_others_send_the_same_prompts_or_not() -> None:
    def sessions(tenants: str) -> list[tuple[str, str] | None]:
        turns, names = Turns(SessionSection(), 7), SessionNames()
        found = []
        for number in range(6):
            for tenant in tenants:
                body = peek(json.dumps({"model": "m", **FORMS["chat"](*["ok"] * number)}).encode())
                assert body.text is not None
                request = Request("r", "m", 0, tenant=tenant, flow=(tenant,), turn=turns.by_prompt(body.text))
                session = names.find(request, 0.0)
                if tenant == "a":
                    found.append(session)
        return found

    assert sessions("a") == sessions("bac")
