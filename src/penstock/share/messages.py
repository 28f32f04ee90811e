"""The protocol between an edge and its decider: facts up; actions and a view of the endpoints down.

Facts name a request by a number that its edge gives it once: clients choose request ids, and may repeat them, so an
action on its way down could meet another request of the same id. Facts about a lease name it too, because the decider
may have taken it back meanwhile.

No body, prompt or key goes up: only sizes, names, counts, and hashes of a prompt's blocks. Times are ages or remaining
spans, never moments, because the clocks of two machines have nothing in common.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from penstock.core.values.actions import Action
from penstock.core.values.catalogue import Failure
from penstock.core.values.located import Source
from penstock.core.values.request import Contents, Request, Turn, Usage
from penstock.core.values.rows import Allowance
from penstock.core.values.settings import Prices
from penstock.core.values.takeover import ServiceGot, Underway

PROTOCOL = 10  # version of this file; both ends need the same


ContentsRow = tuple[int, int, int, int, int, int, int, int]
TurnRow = tuple[str, str, tuple[int, ...], bool]
UsageRow = tuple[int, int, int, bool, int]


class WireRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request between processes: its fields, of which a reader checks every type."""

    id: str
    model: str
    band: int
    tenant: str
    account: str
    also: tuple[str, ...]
    flow: tuple[str, ...]
    weights: tuple[float, ...]
    body_bytes: int
    contents: ContentsRow | None
    output_tokens_max: int | None
    streamed: bool
    pinned: str | None
    deadline_s: float | None
    priority: int
    prices: Prices | None
    locate_s: float
    prompt_tokens_max: int | None
    session: str | None
    prefix: tuple[int, ...]
    prefix_chunk_bytes: int
    prefix_grows: bool
    time_per_output_token_s_max: float | None
    home: str | None
    divisible: bool
    falls_back: bool
    needs: tuple[str, ...]
    others: tuple[str, ...]
    instead_of: str
    turn: TurnRow | None
    only: tuple[str, ...]
    carried: bool

    @staticmethod
    def of(request: Request) -> WireRequest:
        """Returns the row of a request."""
        return WireRequest(*request.row())

    def request(self) -> Request:
        """Returns the request of this row."""
        fields = list(msgspec.structs.astuple(self))
        if self.contents is not None:
            fields[_CONTENTS] = Contents(*self.contents)
        if self.turn is not None:
            fields[_TURN] = Turn(*self.turn)
        return Request(*fields)


_CONTENTS = WireRequest.__struct_fields__.index("contents")
_TURN = WireRequest.__struct_fields__.index("turn")


def usage_of(row: UsageRow | None) -> Usage | None:
    """Returns the usage of a row."""
    return None if row is None else Usage(*row)


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=str.lower):
    """An array that begins with the name."""


class ForScheduler(_Message, frozen=True):
    """For the decider: a fact, or a piece of an announcement."""


class Piece(ForScheduler, frozen=True):
    """A piece of an announcement."""


class OfRequest(ForScheduler, frozen=True):
    """A fact about a request, whether it has a lease or not."""

    number: int


class OfLease(ForScheduler, frozen=True):
    """A fact about a request's lease."""

    number: int
    lease: int


# --- how a link begins --------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """An edge's first message. Protocol and version come first, where every version finds them."""

    protocol: int
    version: str
    name: str  #: for people
    epoch: int  #: the highest that it has followed; 0: none yet
    settings: str  #: hash of its settings; empty: it has none yet
    pid: int = 0
    follows: str = ""  #: the address of the gateway that decided in that epoch


class Welcome(_Message, frozen=True):
    """The decider's first message: the edge is accepted."""

    version: str
    settings: str  #: hash


class NotTaken(_Message, frozen=True):
    """The decider's only message to an edge that it refuses."""

    why: str


# --- announcements: up, after the welcome and before any fact ------------------------------------------------------


class Announcing(Piece, frozen=True):
    """The edge announces all that it holds, from here to `Announced`."""

    bands: list[str]  #: names, highest first: the ranks in its requests mean these


class WaitsHere(Piece, frozen=True):
    """A request is queued here. Its deadline is the time left."""

    number: int
    request: WireRequest
    came_s: float  #: ago
    waited_s: float  #: in queues, all visits
    decided: bool = True  #: a decider let it wait; False: it came while there was none


class RunsHere(Piece, frozen=True):
    """A lease goes on here. It keeps its number, whichever decider granted it."""

    number: int
    request: WireRequest
    came_s: float
    waited_s: float
    underway: Underway


class ServedHere(Piece, frozen=True):
    """The service of flows here in the last minute."""

    services: list[ServiceGot]


class Homes(Piece, frozen=True):
    """The endpoints of recent requests, oldest first."""

    sessions: list[tuple[str, str, str]]  #: model, session, endpoint
    prefixes: list[tuple[str, tuple[int, ...]]]  #: endpoint, keys


class Announced(Piece, frozen=True):
    """The announcement is complete; facts follow."""

    edges: list[str]  #: by the latest `Members`: the edges to wait for


# --- facts: up ----------------------------------------------------------------------------------------------------


class Arrived(ForScheduler, frozen=True):
    """A request came. Its deadline is the time left."""

    number: int
    request: WireRequest


class FirstToken(OfLease, frozen=True):
    """A stream has begun."""

    well: bool = True  #: it is no error


class PassedOn(OfLease, frozen=True):
    """A part of an answer that is not streamed has reached its client."""


class Rerouted(OfLease, frozen=True):
    """A proxy sent the request to another endpoint."""

    endpoint: str


class Progressed(OfLease, frozen=True):
    """A stream has grown."""

    output_tokens: int


class PromptComputed(OfLease, frozen=True):
    """The prompt of a divided request is computed."""

    usage: UsageRow | None = None


class Finished(OfLease, frozen=True):
    """The request is answered, and the edge has forgotten it."""

    usage: UsageRow | None = None
    refused: bool = False  #: with an error


class Failed(OfLease, frozen=True):
    failure: Failure
    answering: bool = False
    retry_after_s: float = 0.0


class Cancelled(OfRequest, frozen=True):
    """The request needs no further decision: its client is gone, or reads the answer already."""

    queued: bool = False  #: here it was, so a dispatch that was on its way is not carried out


class FoundBlocks(OfRequest, frozen=True):
    """`located`: the keys of the prompt's token blocks."""

    keys: list[int]
    block_tokens: int


class FoundCached(OfRequest, frozen=True):
    """`cached`: how much of the prompt each endpoint holds."""

    tokens: dict[str, int]
    source: Source


class Following(_Message, frozen=True):
    """The edge follows these settings from here on."""

    settings: str  #: hash


class Moved(ForScheduler, frozen=True):
    """Answers of these endpoints have grown since the last such message."""

    endpoints: list[str]


class Unreachable(_Message, frozen=True):
    """A request that needs no slot found the endpoint unreachable. `down`: the scheduler has to know at once."""

    endpoint: str
    down: bool = False


class Disowned(_Message, frozen=True):
    """An endpoint reports that it lacks a model that was assumed there."""

    endpoint: str


class LoadHeader(_Message, frozen=True):
    """An answer carried a load header."""

    endpoint: str
    header: bytes


class WherePlaced(ForScheduler, frozen=True):
    """A question for the queue positions of these requests, at most once a tick."""

    numbers: list[int]


class AnswerMade(_Message, frozen=True):
    """An engine keeps this answer, or (no endpoint) it was deleted. Sent up, and down to all others."""

    answer: str
    endpoint: str
    owner: str | None = None
    session: str = ""  #: that one that goes on from it belongs to


class OperatorsSaid(_Message, frozen=True):
    """All orders of operators. Between the decider and the first processes of other gateways, both ways."""

    number: int  #: grows with each change; the higher one holds. 0: no orders yet
    document: bytes  #: JSON, complete


class Counted(_Message, frozen=True):
    """Counts since the last such message: family, labels and amounts to add."""

    series: list[tuple[int, list[str], list[float]]]


class EdgeStanding(_Message, frozen=True):
    """An edge's report, once a second."""

    sent_s: float  #: by the edge's clock; it comes back in `Heard`
    link_s: float  #: the last round trip
    lag_s: float  #: how late its loop ran a timer
    cpu_s: float  #: since it started
    connections: int = 0
    requests: int = 0  #: that it holds, queued ones included
    bodies_bytes: int = 0
    echo_s: float = 0.0  #: `at_s` of the decider's latest `Heard`


# --- actions and the view: down -----------------------------------------------------------------------------------


class Told(_Message, frozen=True):
    """An action to carry out."""

    number: int
    action: Action


class Members(_Message, frozen=True):
    """The members, whenever they change: the next decider waits for them."""

    edges: list[str]


class Allowed(_Message, frozen=True):
    """The allowance left to accounts with rates; comes before the action whose answer shows it."""

    accounts: tuple[str, ...]
    allowance: Allowance


class EndpointRow(msgspec.Struct, array_like=True, frozen=True):
    """One endpoint, as an edge needs it to send requests."""

    name: str
    url: str
    engine: str  #: its make
    labels: dict[str, str] = {}
    api_key: str | None = None  #: only between processes of one gateway
    priority: str | None = None  #: the order of its engine's `priority`, if it has one
    models: list[str] | None = None  #: None: not known yet
    serves_any: bool = False
    proven: bool = True  #: it has answered as an engine
    entries: list[dict[str, object]] = []  #: its models as `/v1/models` shows them
    lmcache_instance: str | None = None
    #: Tokens in a block, and adapters with cached blocks, by its KV events; None: not known.
    block_cut: tuple[int, list[str]] | None = None
    key_refused: bool = False  #: it refuses our key
    tls: dict[str, str | bool | None] | None = None  #: how its certificate is verified, by the settings
    names: dict[str, str] = {}  #: by a model's name, its own name for it, if that is another


class Endpoints(_Message, frozen=True):
    """All endpoints. Comes before the first action that names a new one."""

    rows: list[EndpointRow]
    divides: bool = False


class Loads(_Message, frozen=True):
    """Relative loads, in the order of the latest `Endpoints`; None: not available."""

    loads: list[float | None]
    paced: bool = False
    out: list[str] = []  #: endpoints that take nothing, not even after a moment
    stopped: list[str | None] = []  #: models that operators paused or drained; None: all


class Places(_Message, frozen=True):
    """Answer to `WherePlaced`: number, position, estimated seconds left, seconds waited."""

    rows: list[tuple[int, tuple[int, float | None, float]]]


class NewSettings(_Message, frozen=True):
    """The settings to follow."""

    settings: str  #: hash
    document: bytes  #: JSON; only between processes of one gateway
    prefix_seed: int  #: of the keys of prompts' chunks; constant while the first process lives


class NewKeys(_Message, frozen=True):
    """All issued keys, beside those of the settings."""

    document: bytes  #: JSON; only between processes of one gateway


class NewRules(_Message, frozen=True):
    """The rules of all followed InferencePools' objects for requests."""

    document: bytes  #: JSON, `PoolRules`


class Heard(_Message, frozen=True):
    """Answer to `EdgeStanding`, with what the other edges hold: limits count for all together."""

    sent_s: float
    others_connections: int
    others_bodies_bytes: int
    at_s: float = 0.0  #: by the decider's clock; it comes back in `EdgeStanding`. 0: it may not lead any more


class WhoDecides(_Message, frozen=True):
    """The gateway that decides from now on, from a first process to its workers. No address: none, for now."""

    address: str | None  #: empty: this gateway
    epoch: int


class Leave(_Message, frozen=True):
    """The gateway is about to stop: connections close after an answer, or when they were idle for another `idle_s`."""

    idle_s: float


class Drain(_Message, frozen=True):
    """The gateway is stopping: let nothing new in."""

    #: If another gateway decides and goes on: the edge evicts requests that are queued longer.
    queue_s: float | None = None


class Stop(_Message, frozen=True):
    """All requests have ended: exit."""


LeaseFact = FirstToken | PassedOn | Rerouted | Progressed | PromptComputed | Finished | Failed
RequestFact = Cancelled | FoundBlocks | FoundCached
Announcement = Announcing | WaitsHere | RunsHere | ServedHere | Homes | Announced
#: For the scheduler.
Fact = Arrived | LeaseFact | RequestFact | Moved | WherePlaced
#: For the parts beside the scheduler.
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
    | NewRules
    | Heard
    | WhoDecides
    | Leave
    | Drain
    | Stop
)

M = TypeVar("M")


class Frame(msgspec.Struct, Generic[M], array_like=True, frozen=True):
    """The messages of one turn of a loop."""

    epoch: int
    messages: list[M]
