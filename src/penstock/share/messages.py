"""What passes between an edge and its decider: facts up, actions down, and a view of what can't be asked each time.

Facts name a request by the number that its edge gave it, once for the edge's life: clients choose the ids of requests,
and choose them again, so an action on its way down could meet another request of the same name. Facts about a lease
name it too, for the decider may have taken it back meanwhile.

No body, no prompt and no key goes up: sizes, names, counts, and hashes of a prompt's blocks. Times are ages or remain
spans, never moments: the clocks of two machines have nothing in common.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from penstock.core.values.actions import Action
from penstock.core.values.catalogue import Failure
from penstock.core.values.located import Source
from penstock.core.values.request import Request, ServiceGot, Underway, Usage
from penstock.core.values.rows import Allowance

PROTOCOL = 4  # of this file: two that differ in it do not talk


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=str.lower):
    """An array, its name in front."""


class ForScheduler(_Message, frozen=True):
    """What the decider takes: a fact, or a piece of an announcement. What kind it is is asked of every message."""


class Piece(ForScheduler, frozen=True):
    """Of an announcement."""


class OfRequest(ForScheduler, frozen=True):
    """A fact about a request, whether it has a lease or not."""

    number: int


class OfLease(ForScheduler, frozen=True):
    """A fact about a request's lease."""

    number: int
    lease: int


# --- how a link begins --------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """An edge's first word. Protocol and version stand in front, where every version finds them."""

    protocol: int
    version: str
    name: str  #: what people call it
    epoch: int  #: the highest it has followed, 0: none yet
    settings: str  #: hash of the settings it has, empty: it has none yet
    pid: int = 0
    follows: str = ""  #: the address of whoever decided in that epoch, among several gateways


class Welcome(_Message, frozen=True):
    """The decider's first word: this edge is one of its own now."""

    version: str
    settings: str  #: hash


class NotTaken(_Message, frozen=True):
    """The decider's only word to an edge that it does not take."""

    why: str


# --- announcements: up, after the welcome and before any fact ------------------------------------------------------


class Announcing(Piece, frozen=True):
    """An edge says all that it holds, from here to `Announced`."""

    bands: list[str]  #: by their names, highest first: ranks in its requests mean these


class WaitsHere(Piece, frozen=True):
    """A request waits here. Its deadline is how long it has left."""

    number: int
    request: Request
    came_s: float  #: ago
    waited_s: float  #: in queues, all visits together


class RunsHere(Piece, frozen=True):
    """A lease goes on here, whoever granted it. Its number stays what it is to this edge."""

    number: int
    request: Request
    came_s: float
    waited_s: float
    underway: Underway


class ServedHere(Piece, frozen=True):
    """What flows got here in the last minute."""

    services: list[ServiceGot]


class Homes(Piece, frozen=True):
    """Where requests went lately, the oldest first."""

    sessions: list[tuple[str, str, str]]  #: model, session, endpoint
    prefixes: list[tuple[str, tuple[int, ...]]]  #: endpoint, keys


class Announced(Piece, frozen=True):
    """That is all, and facts follow."""

    edges: list[str]  #: as `Members` said last: whom to wait for
    gateways: int


# --- facts: up ----------------------------------------------------------------------------------------------------


class Arrived(ForScheduler, frozen=True):
    """A request came. Its deadline is how long it has left."""

    number: int
    request: Request


class FirstToken(OfLease, frozen=True):
    """A stream has begun."""

    well: bool = True  #: it is no error that came


class PassedOn(OfLease, frozen=True):
    """A part of an answer that does not stream has reached its client."""


class Progressed(OfLease, frozen=True):
    """A stream has grown."""

    output_tokens: int


class PromptComputed(OfLease, frozen=True):
    """The prompt of a divided request is computed."""

    usage: Usage | None = None


class Finished(OfLease, frozen=True):
    """The request is answered: the edge has forgotten it."""

    usage: Usage | None = None
    refused: bool = False  #: with an error


class Failed(OfLease, frozen=True):
    failure: Failure
    answering: bool = False
    retry_after_s: float = 0.0


class Cancelled(OfRequest, frozen=True):
    """Nothing more has to be decided about the request: its client is gone, or its answer can't be taken back."""


class FoundBlocks(OfRequest, frozen=True):
    """`located`: the keys of the prompt's token blocks."""

    keys: list[int]
    block_tokens: int


class FoundCached(OfRequest, frozen=True):
    """`cached`: how much of the prompt each endpoint holds."""

    tokens: dict[str, int]
    source: Source


class Following(_Message, frozen=True):
    """The edge reads requests by these settings from here on."""

    settings: str  #: hash


class Moved(ForScheduler, frozen=True):
    """Answers of these endpoints have come further since the last such message."""

    endpoints: list[str]


class Unreachable(_Message, frozen=True):
    """A request that needs no turn found nobody there. `down`: the scheduler is to know at once."""

    endpoint: str
    down: bool = False


class Disowned(_Message, frozen=True):
    """An endpoint says that it lacks a model that it is believed to have."""

    endpoint: str


class LoadHeader(_Message, frozen=True):
    """An answer carried a load header."""

    endpoint: str
    header: bytes


class WherePlaced(ForScheduler, frozen=True):
    """Where do these requests stand in the queue? Asked for all who wait for a sign, at most every tick."""

    numbers: list[int]


class AnswerMade(_Message, frozen=True):
    """An answer that its engine keeps was made there; or (no endpoint) it was deleted. Up, and down to all others."""

    answer: str
    endpoint: str
    owner: str | None = None


class OperatorsSaid(_Message, frozen=True):
    """What operators have said. Between the one that decides and the first processes of other gateways, both ways."""

    number: int  #: grows with each change; of two the higher one holds. 0: nothing was ever said
    document: bytes  #: JSON, whole


class Counted(_Message, frozen=True):
    """What was counted since the last such message: series by family, labels and what to add."""

    series: list[tuple[int, list[str], list[float]]]


class EdgeStanding(_Message, frozen=True):
    """How an edge is, once a second."""

    sent_s: float  #: by the edge's clock; it comes back in `Heard`
    link_s: float  #: how long a message and its answer took, the last time
    lag_s: float  #: how late its loop ran a timer
    cpu_s: float  #: since it started
    connections: int
    requests: int  #: that it holds, waiting ones included
    bodies_bytes: int
    echo_s: float = 0.0  #: `at_s` of the decider's last `Heard`: since then the edge has heard it


# --- actions and the view: down -----------------------------------------------------------------------------------


class Told(_Message, frozen=True):
    """Carry this out."""

    number: int
    action: Action


class Members(_Message, frozen=True):
    """Who is there, whenever that changes: whoever decides next waits for them, and alone is one part of them."""

    edges: list[str]
    gateways: int


class Allowed(_Message, frozen=True):
    """What a tenant with rates has left; comes before the action that makes its headers wanted."""

    account: str
    allowance: Allowance


class EndpointRow(msgspec.Struct, array_like=True, frozen=True):
    """One endpoint, as an edge has to know it to send to it."""

    name: str
    url: str
    engine: str  #: how it speaks, by name
    labels: dict[str, str] = {}
    api_key: str | None = None  #: only between processes of one gateway
    priority: str | None = None  #: how its engine orders by `priority`, if it does
    models: list[str] | None = None  #: None: it has not told yet
    serves_any: bool = False
    proven: bool = True  #: it is taken for an engine
    entries: list[dict[str, object]] = []  #: what it lists of its models, as `/v1/models` shows it
    lmcache_instance: str | None = None
    #: How it cuts prompts into blocks, and adapters of which it has some, as its KV events say; None: nothing is known.
    block_cut: tuple[int, list[str]] | None = None
    key_refused: bool = False  #: it refuses our key
    tls: dict[str, str | bool | None] | None = None  #: which files its certificate is checked by, as the settings say


class Endpoints(_Message, frozen=True):
    """All endpoints there are. Comes before the first action that names a new one."""

    rows: list[EndpointRow]
    divides: bool = False


class Loads(_Message, frozen=True):
    """What changes all the time, in the order of the last `Endpoints`: load for its size, None where nothing may go."""

    loads: list[float | None]
    paced: bool = False


class Places(_Message, frozen=True):
    """Answer to `WherePlaced`: number, position, estimated seconds left, seconds waited."""

    rows: list[tuple[int, tuple[int, float | None, float]]]


class NewSettings(_Message, frozen=True):
    """Follow these from now on."""

    settings: str  #: hash
    document: bytes  #: JSON; only between processes of one gateway
    prefix_seed: int  #: of the keys of prompts' chunks; the same for as long as the first process lives


class NewKeys(_Message, frozen=True):
    """All keys that were made while the gateway runs, beside those of the settings."""

    document: bytes  #: JSON; only between processes of one gateway


class Heard(_Message, frozen=True):
    """An edge's `EdgeStanding` is here; and what the other edges hold, so that limits are those of all together."""

    sent_s: float
    others_connections: int
    others_bodies_bytes: int
    at_s: float = 0.0  #: by the decider's clock; it comes back in `EdgeStanding`. 0: it is not sure that it decides


class WhoDecides(_Message, frozen=True):
    """Who decides from now on, said by a gateway's first process to its own edges. No address: nobody, for now."""

    address: str | None  #: empty: this gateway
    epoch: int
    gateways: int = 0  #: there were at the last look, 0: as the last decider said


class Drain(_Message, frozen=True):
    """The gateway is stopping: let nothing new in."""

    #: Where another gateway decides, and goes on: what still waits here after so long is turned away by the edge.
    queue_s: float | None = None


class Stop(_Message, frozen=True):
    """All is served: end."""


LeaseFact = FirstToken | PassedOn | Progressed | PromptComputed | Finished | Failed
RequestFact = Cancelled | FoundBlocks | FoundCached
Announcement = Announcing | WaitsHere | RunsHere | ServedHere | Homes | Announced
#: What the scheduler is told, or asked.
Fact = Arrived | LeaseFact | RequestFact | Moved | WherePlaced
#: What the edge tells those beside the scheduler.
Aside = Following | Unreachable | Disowned | LoadHeader | AnswerMade | OperatorsSaid | Counted | EdgeStanding
Up = Hello | Announcement | Fact | Aside
Down = (
    Welcome
    | NotTaken
    | Told
    | Members
    | Allowed
    | Endpoints
    | Loads
    | Places
    | AnswerMade
    | OperatorsSaid
    | NewSettings
    | NewKeys
    | Heard
    | WhoDecides
    | Drain
    | Stop
)

M = TypeVar("M")


class Frame(msgspec.Struct, Generic[M], array_like=True, frozen=True):
    """What one turn of a loop had to say."""

    epoch: int
    messages: list[M]
