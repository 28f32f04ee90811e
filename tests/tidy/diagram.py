"""What becomes of a request, in one picture? The picture is drawn from the code's own tables.

`python -m tests.tidy.diagram > docs/diagram.md` writes the page; a test holds it to this, and every word of the
closed lists (reasons, causes, failures, states, policies, engines) has to be on it. Boxes name the file that answers
for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.config.model import DEFAULT_BANDS, Settings
from penstock.config.paths import BUILT_IN, PathKind
from penstock.config.sections.policies import OWN
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import TERMINAL, TRANSITIONS, State
from penstock.core.values.retry import RetryBudget, final_reason, may_retry
from penstock.engines.recognise import ENGINES

INTRODUCTION = """\
# The whole in one picture

<!-- Generated: python -m tests.tidy.diagram > docs/diagram.md -->

What becomes of a request, from the client to an engine and back. Solid arrows are the way of a request, dotted ones are
facts that the scheduler is told. Each box names the file that answers for it, below `src/penstock`.
"""
WIDE = '<div class="wide" markdown>'  # on the site it is as large as it has to be, and scrolls
WORDS_PER_LINE = 4  # in a box: wider boxes make the picture unreadable

#: The file of the package that each box stands for; a test checks that the files exist.
FILES = {
    "door": "gateway/proxy/app.py",
    "who": "gateway/identity/callers.py",
    "direct": "gateway/proxy/direct.py",
    "queue": "core/queueing/queues.py",
    "fairness": "core/queueing/fair_tree.py",
    "ordering": "core/queueing/flow_queue.py",
    "admission": "core/dispatch/admission.py",
    "routing": "core/routing/router.py",
    "lease": "core/endpoints/ledger.py",
    "engine": "engines/base.py",
    "relay": "gateway/proxy/relay.py",
    "retry": "core/values/retry.py",
    "observe": "gateway/endpoints/observer.py",
    "locality": "gateway/kv_cache/locator.py",
    "operators": "gateway/admin/routes.py",
    "batch": "batch/runner.py",
    "discovery": "gateway/endpoints/registry.py",
}


def page() -> str:
    """Returns the page as docs/diagram.md has it."""
    whole, states = [WIDE, "", *_flow(), "", "</div>"], ["## The states of a request", "", *_states()]
    return "\n".join([INTRODUCTION, *whole, "", *states, "", *_lists()]) + "\n"


def _flow() -> Iterable[str]:
    free = sum(kind is PathKind.FREE for kind in BUILT_IN.values())
    settings = Settings.model_fields
    bands = " > ".join(band.name for band in DEFAULT_BANDS)
    levels = " > ".join(settings["fairness"].default.levels)
    yield "```mermaid"
    yield "flowchart TD"
    yield '    client(["client"])'
    yield "    subgraph gateway [Penstock]"
    yield _box("door", "At the door", f"{len(BUILT_IN) - free} paths that are queued, {free} that are not")
    yield _box("who", "Who is it", "key, tenant, user; band, price and share of the model")
    yield _box("direct", "Free", "costs an engine next to nothing: no turn, no lease")
    yield "        subgraph scheduler [One scheduler, told facts, returns actions]"
    yield _box("queue", "The queue, bounded", f"bands, strictly: {bands}")
    yield _box("fairness", "Which flow", f"{_words(OWN['fairness'])}<br/>levels: {levels}")
    yield _box("ordering", "Which of its requests", _words(OWN["ordering"]))
    yield _box("admission", "May it go now", f"else it waits, because of<br/>{_words(Cause)}")
    yield _box("routing", "Where to, chosen last", _words(OWN["routing"]))
    yield _box("lease", "Lease", "a slot, until the last byte; released exactly once")
    yield _box("retry", "It failed", "before the first byte it may be taken back")
    yield "        end"
    yield _box("relay", "Relay", "bytes as they come; usage read as they pass")
    yield _box("observe", "Observer", "gauges, health, models")
    yield _box("locality", "Who holds which prefix", "own history, KV events, LMCache")
    yield _box("discovery", "Which endpoints", "settings, operators, discovery")
    yield _box("operators", "Operators", "pause, drain, bump, cancel, reload")
    yield _box("batch", "Batches", "files of requests, when nobody else wants the engines")
    yield "    end"
    yield _box("engine", "Engines", _words(ENGINES))
    yield "    client --> door --> who --> queue --> fairness --> ordering --> admission --> routing --> lease"
    yield "    lease --> engine"
    yield "    who --> direct --> engine"
    yield "    batch --> queue"
    yield "    engine --> relay --> client"
    yield "    engine --> retry"
    taken_back = [failure for failure in Failure if _taken_back(failure)]
    yield f'    retry -->|"{_words(taken_back)}"| queue'
    yield f'    retry -->|"{_words(dict.fromkeys(final_reason(failure) for failure in Failure))}"| client'
    yield f'    door -->|"{_words(_at_the_door())}"| client'
    yield f'    queue -->|"429: {_words(_too_many())}"| client'
    yield f'    scheduler -->|"{_words(_others())}"| client'
    yield f"    batch -->|{Reason.STORAGE_FULL}| client"
    yield "    engine -.-> observe -.-> admission"
    yield "    engine -.-> locality -.-> routing"
    yield "    relay -.->|first token, growth, end| lease"
    yield "    discovery -.-> scheduler"
    yield "    operators -.-> scheduler"
    yield "```"


def _box(name: str, title: str, text: str) -> str:
    return f'    {name}["<b>{title}</b><br/>{text}<br/><i>{FILES[name]}</i>"]'


def _words(words: Iterable[object]) -> str:
    """Some words, a few on each line."""
    named = [str(word) for word in words]
    lines = [named[at : at + WORDS_PER_LINE] for at in range(0, len(named), WORDS_PER_LINE)]
    return ",<br/>".join(", ".join(line) for line in lines)


def _taken_back(failure: Failure) -> bool:
    return may_retry(failure, attempts=1, attempts_max=3, budget=RetryBudget(1.0))


def _at_the_door() -> list[Reason]:
    """Refusals that follow from the head or the body of a request alone."""
    heads = [reason for reason in Reason if 400 <= reason.status < 499 and reason.status != 429]
    return [*heads, Reason.IDENTITY_UNAVAILABLE]


def _too_many() -> list[Reason]:
    return [reason for reason in Reason if reason.status == 429]


def _others() -> list[Reason]:
    """The remaining refusals: no endpoint to serve the request, drained, cancelled."""
    elsewhere = {*[final_reason(failure) for failure in Failure], Reason.STORAGE_FULL, Reason.IDENTITY_UNAVAILABLE}
    return [reason for reason in Reason if reason.status >= 499 and reason not in elsewhere]


def _states() -> Iterable[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {State.ARRIVED}"
    yield from (f"    {source} --> {target}: {event}" for (source, event), target in TRANSITIONS.items())
    yield from (f"    {state} --> [*]" for state in State if state in TERMINAL)
    yield "```"


def _lists() -> Iterable[str]:
    yield "What each reason is answered with is in [what Penstock does to HTTP](behaviour.md); policies may also come"
    yield "from other packages ([policies](policies/README.md)); [states.md](states.md) has the states as a table."


def missing_files(root: Path) -> list[str]:
    """Returns the files that the picture names but that do not exist under `root`, the package's folder."""
    return [file for file in FILES.values() if not (root / file).exists()]


if __name__ == "__main__":
    sys.stdout.write(page())
