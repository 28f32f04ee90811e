"""Writes docs/states.md and the tables of causes and reasons in other pages: `python -m tests.tidy.codes`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import EVENT_MEANINGS, STATE_MEANINGS, TERMINAL, TRANSITIONS, State
from penstock.gateway.openai.errors import Api, error_body
from penstock.gateway.sessions.session_names import BODY, KNOWN

DOCS = Path(__file__).parents[2] / "docs"


def _table(*rows: Iterable[object]) -> str:
    head, *lines = [f"| {' | '.join(map(str, row))} |\n" for row in rows]
    return head + "|---" * (head.count("|") - 1) + "|\n" + "".join(lines)


def causes() -> str:
    return _table(("cause", "meaning", "advice"), *((f"`{c}`", c.sentence, c.advice) for c in Cause))


def errors() -> str:
    """One row for all codes with the same status, header and types."""
    groups: dict[tuple[object, ...], list[str]] = {}
    sent = [reason for reason in Reason if reason.status != 499]
    for reason in sorted(sent, key=lambda reason: (reason.status, str(reason))):
        openai, anthropic, tgi = (
            json.loads(error_body(api, reason, "")) for api in (Api.OPENAI, Api.ANTHROPIC, Api.TGI)
        )
        status = "in the stream" if reason is Reason.STREAM_BROKEN else reason.status
        retry = "yes" if reason.retryable else "no"
        types = openai["error"]["type"], anthropic["error"]["type"], tgi["error_type"]
        groups.setdefault((status, retry, *types), []).append(f"`{reason}`")
    head = ("codes", "status", "retry-after", "OpenAI `type`", "Anthropic `type`", "TGI `error_type`")
    return _table(head, *((", ".join(codes), *cells) for cells, codes in groups.items()))


def states() -> str:
    diagram = [f"    {source} --> {target}: {event}\n" for (source, event), target in TRANSITIONS.items()]
    diagram += [f"    {state} --> [*]\n" for state in State if state in TERMINAL]
    usual = Reason.BAD_REQUEST.advice
    reasons = (
        (f"`{r}`", r.sentence, "" if r.advice == usual else r.advice.format("the endpoint"))
        for r in sorted(Reason, key=lambda r: (r.status, str(r)))
    )
    return f"""\
# The life of a request

Made by `make generated` from `core/values/lifecycle.py` and `core/values/catalogue.py`.

```mermaid
stateDiagram-v2
    [*] --> arrived
{"".join(diagram)}```

{_table(("state", "meaning"), *STATE_MEANINGS.items())}
{_table(("event", "meaning"), *EVENT_MEANINGS.items())}
The causes of a wait are on [the live page](live-page.md#what-a-request-waits-for), the states of an endpoint in
[Discovery](discovery.md#states), the statuses of reasons in [the HTTP contract](behaviour.md#errors).

## Why a request ends without an answer

The message to the caller is the sentence, with *Please try again later.* for 429 and 503.

{_table(("reason", "meaning", "advice to operators"), *reasons)}
## Why a dispatch is retried

{_table(("failure", "meaning"), *((f"`{f}`", f.sentence) for f in Failure))}"""


def names() -> str:
    """One row for each name by which clients tell sessions."""

    def shown(place: str) -> str:
        name = place.removeprefix(BODY)
        return f"{'body ' if name != place else ''}`{name}`" if place else ""

    rows = [(client, *map(shown, places), source) for client, *places, source in KNOWN]
    return _table(("client", "the session", "its sub-agent", "the session above", "source"), *rows)


def made() -> dict[str, str]:
    """Every page with what stands in it now."""
    found = {"states.md": states()}
    tables = (
        ("live-page.md", "causes", causes()),
        ("behaviour.md", "errors", errors()),
        ("sessions.md", "names", names()),
    )
    for page, name, table in tables:
        mark = f"<!-- checked: {name} -->\n"
        before, after = (DOCS / page).read_text().split(mark)
        found[page] = before + mark + table + re.sub(r"^(?:\|.*\n)+", "", after)
    return found


if __name__ == "__main__":
    for page, text in made().items():
        (DOCS / page).write_text(text)
