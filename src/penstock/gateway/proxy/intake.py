"""From a complete request to its journey: parse, identify, address, tie, admit.

Each step is a method that adds to the `Arrival` or refuses it. A large body is parsed in slices of the loop's time; all
other steps are short. Requests made inside (batches) have their caller already, and go the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qs

from penstock.config.model import Settings
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import TOOLS, Request
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.early import EarlyRequests, GoOn
from penstock.gateway.identity.caller import Caller, Sender, Unauthorized
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.own_limits import own_flow
from penstock.gateway.identity.rights import Rights
from penstock.gateway.openai import body as bodies
from penstock.gateway.openai import errors
from penstock.gateway.openai.body import BadBody, Read
from penstock.gateway.openai.errors import Api
from penstock.gateway.openai.fields import NOTHING
from penstock.gateway.openai.routes import MODEL, Route
from penstock.gateway.openai.scan import ONE_STEP_BYTES
from penstock.gateway.openai.splice import Body, Spliced
from penstock.gateway.proxy.arrival import Arrival, Fallback, Means
from penstock.gateway.proxy.journey import QueuedJourney
from penstock.gateway.proxy.model_profiles import PLAIN, profiles
from penstock.gateway.proxy.refusals import Refusals
from penstock.gateway.proxy.target import Target
from penstock.gateway.proxy.ties import RESPONSES_PATH, Affinities
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.endpoints.splits import Split
    from penstock.gateway.kv_cache.locator import Locator
    from penstock.gateway.openai.slices import Slices
    from penstock.gateway.sessions.kept_answers import Keeping
    from penstock.gateway.telemetry.tracing import RequestTrace, Tracer  # needs an extra
    from penstock.http.inflate import Unpacking

logger = logging.getLogger(__name__)

_GROWS: Final = True  # keys of prompts stand for several chunks each
NO_TOOLS_BYTES: Final = len("null")  # or an empty list


class Reached(Protocol):
    """The endpoints that requests may be sent to."""

    @property
    def targets(self) -> Mapping[str, Target]: ...
    @property
    def locator(self) -> Locator | None: ...


class Intake:
    """Admits requests on engines' paths."""

    def __init__(
        self,
        means: Means,
        *,
        refusals: Refusals,
        endpoints: Reached,
        catalog: Catalog,
        callers: Callers,
        affinities: Affinities,
    ) -> None:
        self._means = means
        self._driver = means.driver
        self._refusals = refusals
        self._ids = refusals.ids
        self._endpoints = endpoints
        self._catalog = catalog
        self._callers = callers
        self._affinities = affinities
        self._slices: Slices | None = None  # until a large body comes
        self._unpacking: Unpacking | None = None  # once a client packed a body
        self._early = EarlyRequests(means.driver, endpoints.targets)

    def follow(self, settings: Settings) -> None:
        """Admit new requests by `settings`."""
        self._levels = settings.fairness.levels
        self._by_tenant = self._levels == ("tenant",)
        self._bands = [band.name for band in settings.bands]
        self._asks_usage = settings.accounting.usage == "auto"
        self._body_bytes_max = settings.limits.max_body
        self._profiles = profiles(settings)
        self._early.follow(settings.queue)

    def take(self, exchange: Exchange, sender: Sender, journey: type[QueuedJourney] = QueuedJourney) -> None:
        """Admit a request of `sender` whose body has arrived."""
        encoding = exchange.lookup.get(b"content-encoding")
        coding = "" if encoding is None else self._coding_of(exchange, encoding)
        if coding is None:
            return
        arrival = Arrival(exchange, sender.route, self._ids.of(exchange))
        if coding:
            arrival.inflated = True
            self._in_steps(arrival, self._unpack(arrival, coding, exchange.body), journey)
        else:
            self._parse(arrival, exchange.body, journey)

    def submit(self, exchange: Exchange, route: Route, caller: Caller, journey: type[QueuedJourney]) -> None:
        """Admit a request made inside, as `caller`."""
        arrival = Arrival(exchange, route, self._ids.of(exchange), caller)
        self._parse(arrival, exchange.body, journey)

    def _coding_of(self, exchange: Exchange, encoding: bytes) -> str | None:
        """Return how a body is packed; None: it is refused."""
        from penstock.http.inflate import TAKEN, UnknownPacking, coding_of  # noqa: PLC0415 - few clients pack

        if exchange.repeats(b"content-encoding"):  # several headers are one list
            encoding = b",".join([value for name, value in exchange.headers if name.lower() == b"content-encoding"])
        try:
            return coding_of(encoding)
        except UnknownPacking as unknown:
            extra = [(b"accept-encoding", TAKEN)]
            self._refusals.refuse(exchange, Reason.UNSUPPORTED_ENCODING, str(unknown), extra=extra)
            return None

    # --- parse ------------------------------------------------------------------------------------------------

    def _parse(self, arrival: Arrival, body: bytes, journey: type[QueuedJourney]) -> None:
        """Read what scheduling needs from a body: a small one at once, a large one in slices."""
        exchange = arrival.exchange
        if not body and arrival.route.added:
            self._without_body(arrival, journey)
            return
        kind = exchange.lookup.get(b"content-type")
        if len(body) > ONE_STEP_BYTES or (kind != b"application/json" and bodies.is_multipart(kind)):
            self._in_steps(arrival, self._reading(arrival, body), journey)
            return
        try:
            read = bodies.read(body, pooled=arrival.route.pooled)
        except BadBody as problem:
            self._refuse_body(exchange, problem)
        else:
            self._parsed(arrival, read, journey)

    def _without_body(self, arrival: Arrival, journey: type[QueuedJourney]) -> None:
        exchange, route = arrival.exchange, arrival.route
        try:
            read = bodies.without_body(_one_of(exchange.query, route.field, "models"), pooled=route.pooled)
        except BadBody as problem:
            self._refuse_body(exchange, problem)
        else:
            self._parsed(arrival, read, journey)

    def _unpack(self, arrival: Arrival, coding: str, packed: bytes) -> Generator[None, None, Read]:
        """Unpack a body and read it; its room is its own until then."""
        from penstock.http.inflate import Unpacking  # noqa: PLC0415

        if self._unpacking is None:
            self._unpacking = Unpacking(self._body_bytes_max)
        room, self._unpacking.bytes_max = self._unpacking, self._body_bytes_max
        place = room.enter()
        try:
            body = yield from room.inflate(place, packed, coding, self._body_bytes_max, arrival.exchange.hold)
            return (yield from self._reading(arrival, body))
        finally:
            room.leave(place)

    def _reading(self, arrival: Arrival, body: bytes) -> Generator[None, None, Read]:
        """Read a body of any size, or a form."""
        exchange, pooled, field = arrival.exchange, arrival.route.pooled, arrival.route.field
        content_type = exchange.lookup.get(b"content-type")
        if bodies.is_multipart(content_type):
            from penstock.gateway.openai.forms import read_form  # noqa: PLC0415 - few clients send files

            return (yield from read_form(body, content_type or b"", exchange.target_path, pooled=pooled, field=field))
        if len(body) <= ONE_STEP_BYTES:
            return bodies.read(body, pooled=pooled)
        return (yield from bodies.read_large(bodies.unmarked(body), pooled=pooled))

    def _in_steps(self, arrival: Arrival, steps: Generator[None, None, Read], journey: type[QueuedJourney]) -> None:
        """Take a body's steps between others' tokens, then go on with the request."""
        exchange = arrival.exchange
        exchange.body = b""  # the steps have it

        def failed(failure: Exception) -> None:
            from penstock.http.inflate import BadPacking, InflatesTooFar, TooMuchAtOnce  # noqa: PLC0415

            if isinstance(failure, BadBody):
                self._refuse_body(exchange, failure)
            elif isinstance(failure, BadPacking):
                self._refusals.refuse(exchange, Reason.BAD_REQUEST, str(failure))
            elif isinstance(failure, InflatesTooFar):
                self._refusals.refuse(exchange, Reason.REQUEST_TOO_LARGE, str(failure))
            elif isinstance(failure, TooMuchAtOnce):
                message = "The bodies that are kept are too many bytes together."
                self._refusals.refuse(exchange, Reason.OVERLOAD, message)
            else:
                _broken(exchange, failure)

        if self._slices is None:
            from penstock.gateway.openai.slices import Slices  # noqa: PLC0415 - most bodies are read at once

            self._slices = Slices()
        self._slices.do(
            steps, done=lambda read: self._parsed(arrival, read, journey), failed=failed, gone=lambda: exchange.over
        )

    def _parsed(self, arrival: Arrival, read: Read, journey: type[QueuedJourney]) -> None:
        """Identify, address, then tie and admit, or send at once, a request whose body was read."""
        arrival.peek, arrival.body, arrival.contents = read.peek, read.body, read.contents
        try:
            if arrival.route.field != MODEL and read.peek.text is not None:
                read.peek.model = bodies.named_in(read.body, arrival.route.field)
            if (read.peek.model is None or "id=" in arrival.exchange.query) and self._is_early(arrival, read, journey):
                return
            arrival.named = read.peek.model or self._sole_model()
            arrival.profile = self._profiles.get(arrival.named, PLAIN)
            if arrival.caller is None:
                arrival.caller = self._identify(arrival)
                if arrival.profile.fallback:
                    self._let_fall_back(arrival)
            if self._catalog.splits or arrival.route.api is Api.OLLAMA:
                self._address(arrival)
            else:
                arrival.model = arrival.named
            if arrival.caller.rights is not None:
                _keep_to(arrival.caller.rights, arrival)
        except BadBody as problem:
            self._refuse_body(arrival.exchange, problem)
            return
        except _Refused as refused:
            self._refusals.refuse(arrival.exchange, refused.reason, str(refused))
            return
        if not arrival.route.free:
            self._admit(arrival, journey)
        elif self._driver.draining:
            self._refusals.refuse(arrival.exchange, Reason.DRAINING)
        elif arrival.pinned is not None or not self._early.waits_for_model(
            arrival.model, arrival.exchange, self._going_on(arrival, read, journey)
        ):
            from penstock.gateway.proxy.direct import DirectJourney  # noqa: PLC0415 - few clients tokenize

            DirectJourney(arrival, self._means).begin()

    def _is_early(self, arrival: Arrival, read: Read, journey: type[QueuedJourney]) -> bool:
        """Let a request wait that can't be addressed before engines have listed their models. Raises BadBody."""
        exchange, go_on = arrival.exchange, self._going_on(arrival, read, journey)
        arrival.pinned = pinned = _pinned(exchange.query) if "id=" in exchange.query else None
        if pinned is not None and not arrival.route.free and self._early.waits_for_endpoint(pinned, exchange, go_on):
            return True
        return read.peek.model is None and self._early.waits(self._knows_models, exchange, go_on)

    def _going_on(self, arrival: Arrival, read: Read, journey: type[QueuedJourney]) -> GoOn:
        def go_on(refused_for: Reason | None) -> None:
            if refused_for is None:
                self._parsed(arrival, read, journey)
            else:
                self._refusals.refuse(arrival.exchange, refused_for)

        return go_on

    def _sole_model(self) -> str:
        """The model of a request that names none: the only one."""
        names = self._models()
        if len(names) != 1:
            raise BadBody("The request names no `model`, and not exactly one is served.", "model")
        return names[0]

    def _models(self) -> list[str]:
        """The models served, without aliases and adapters (which have a `parent`)."""
        entries = [entry for entry in self._catalog.entries() if not entry.get("parent")]
        return [name for entry in entries if (name := str(entry["id"])) not in self._catalog.aliases]

    def _knows_models(self) -> bool:
        """Whether any model is known, or every endpoint has reported its models."""
        return bool(self._models()) or self._driver.scheduler.knows("", now=self._driver.now()) is not None

    # --- identify ---------------------------------------------------------------------------------------------

    def _identify(self, arrival: Arrival) -> Caller:
        """The caller, by the key in the head and the body's fields. Raises _Refused."""
        exchange, peek = arrival.exchange, arrival.peek
        user, text = peek.user, peek.text
        if not user and text is not None and (text.metadata is not NOTHING or text.safety_identifier is not NOTHING):
            from penstock.gateway.sessions.session_reader import user_of  # noqa: PLC0415 - few clients name users so

            user = user_of(text)
        sender = exchange.note  # `App.begin` has looked
        assert isinstance(sender, Sender)
        caller = self._callers.caller(
            sender,
            exchange.lookup.get,
            exchange.peer[0],
            user=user,
            service_tier=peek.service_tier,
            priority=peek.priority,
            model_band=arrival.profile.band,
            client=exchange.client,
            now=self._driver.now(),
        )
        if isinstance(caller, Unauthorized):
            raise _Refused(caller.reason, caller.message)
        return caller

    # --- address ----------------------------------------------------------------------------------------------

    def _address(self, arrival: Arrival) -> None:
        """Find the model's name at the endpoints."""
        model = arrival.named
        split = self._catalog.split(model)
        if split is not None:
            model = split.main if len(split.weights) == 1 else self._chosen(split, arrival)
            if model != arrival.named:
                _rename(arrival, model)
        arrival.model = self._served(model) if arrival.route.api is Api.OLLAMA and ":" not in model else model

    def _chosen(self, split: Split, arrival: Arrival) -> str:
        """The model of a split for this request, by its session and the endpoint that it is tied to, if any."""
        catalog, scheduler, now = self._catalog, self._driver.scheduler, self._driver.now()
        home, session = self._affinities.who(arrival.exchange, arrival.body, arrival.peek)
        if (pinned := arrival.pinned) is not None:
            return split.pick(session, lambda name: catalog.lists(pinned, name))
        if (fallback := arrival.fallback) is None:
            fallback = arrival.fallback = Fallback(arrival.named)
        chosen = split.pick(
            session,
            lambda name: scheduler.knows(name, now=now) is not False,
            lambda name: scheduler.works(name, now=now),
            lambda name: name not in fallback.left,
            lambda name: home is not None and catalog.lists(home, name),
            left=arrival.model if arrival.model in fallback.left else None,
        )
        fallback.asks(chosen, tuple([name for name, weight in split.weights.items() if weight and name != chosen]))
        return chosen

    # --- fall back --------------------------------------------------------------------------------------------

    def _let_fall_back(self, arrival: Arrival) -> None:
        """Allow the fallback models of the one asked for, as far as the caller may use them."""
        names, caller = arrival.profile.fallback, arrival.caller
        assert caller is not None
        if caller.rights is not None:
            names = tuple(filter(caller.rights.allows, names))
        if names and arrival.pinned is None:
            arrival.fallback = Fallback(arrival.named, names)

    def _asking(self, journey: type[QueuedJourney]) -> Callable[[Arrival, str], None]:
        return lambda arrival, name: self._ask_instead(arrival, name, journey)

    def _ask_instead(self, arrival: Arrival, name: str, journey: type[QueuedJourney]) -> None:
        """Begin again with another model: the same request, except for the name in its body."""
        fallback = arrival.fallback
        assert fallback is not None
        before = arrival.model
        arrival.named = name
        _rename(arrival, name)
        arrival.profile = self._profiles.get(name, PLAIN)
        self._address(arrival)
        if arrival.caller is not None and arrival.caller.rights is not None:
            _keep_to(arrival.caller.rights, arrival)
        if name != fallback.asked:
            self._means.metrics.fell_back(fallback.asked, name)
        logger.debug("%s: asking %s after %s: %s", arrival.request_id.decode(), arrival.model, before, fallback.why)
        self._admit(arrival, journey)

    def _served(self, model: str) -> str:
        """The name that endpoints list a model by: for Ollama, one without a tag is its latest."""
        scheduler, now = self._driver.scheduler, self._driver.now()
        latest = f"{model}:latest"
        if scheduler.knows(model, now=now) is not True and scheduler.knows(latest, now=now) is True:
            return latest
        return model

    # --- tie and admit ----------------------------------------------------------------------------------------

    def _admit(self, arrival: Arrival, journey: type[QueuedJourney]) -> None:
        """Begin the journey of a request that needs a turn."""
        exchange, caller, body = arrival.exchange, arrival.caller, arrival.body
        assert caller is not None
        search, locator, tracer = None, self._endpoints.locator, self._means.reporting.tracer
        if locator is not None and arrival.pinned is None and not isinstance(body, Spliced):
            search = locator.search(exchange.target_path, body, arrival.model)
        request = self._tied(arrival, caller, 0.0 if search is None else search.wait_s)
        counts = self._asks_usage and arrival.route.tells_usage and arrival.peek.stream
        exchange.body = b""  # the journey has it; a renamed or unpacked one would be held twice
        arrival.band = self._bands[caller.band]
        arrival.asks_usage = bodies.asks_usage(arrival.peek) if counts else None
        arrival.keeping = self._keeping(arrival, caller, request) if exchange.target_path == RESPONSES_PATH else None
        arrival.trace = None if tracer is None else _traced(tracer, exchange, request)
        arrival.ask_instead = None if arrival.fallback is None else self._asking(journey)
        journey(arrival, request, self._means).begin()
        if locator is not None and search is not None:
            locator.begin(request.id, search)

    def _tied(self, arrival: Arrival, caller: Caller, locate_s: float) -> Request:
        """The request as the scheduler knows it, with its ties to endpoints."""
        exchange, route, peek = arrival.exchange, arrival.route, arrival.peek
        own_accounts, also = self._callers.own_accounts, None
        if caller.account in own_accounts.divided:
            also = own_accounts.also(caller.account, caller.key, arrival.model)
        if also is None and self._by_tenant and not caller.part:
            flow, weights = caller.whole_flow, caller.whole_weights
        else:
            own = None if also is None else own_flow(also)
            flow, weights = caller.flow(self._levels, arrival.named, arrival.profile.weight, own)
        session, prefix, home, turn = self._affinities.ties(exchange, arrival.body, peek, arrival.model)
        if home is not None:
            arrival.fallback = None  # the answer it refers to is at that model's endpoint
        falls_back, instead_of = False, ""
        others: tuple[str, ...] = ()
        if (fallback := arrival.fallback) is not None:
            falls_back, others = not fallback.patient, fallback.others
            instead_of = fallback.asked if fallback.asked != arrival.named else ""
        path, text = exchange.target_path, peek.text
        has_tools = text is not None and len(text.tools) > NO_TOOLS_BYTES
        return Request(  # by position: names cost plain Python two dictionaries
            self._ids.unique(arrival.request_id),
            arrival.model,
            caller.band,
            caller.tenant,
            caller.part,
            also or (),
            flow,
            weights,
            len(arrival.body),
            arrival.contents,
            peek.output_tokens_max,
            peek.stream or route.streams or (route.streams_unless and not peek.whole),
            arrival.pinned,
            None if caller.deadline_s is None else self._driver.now() + caller.deadline_s,
            caller.priority,
            arrival.profile.prices,
            locate_s,
            None if caller.rights is None else caller.rights.max_prompt_tokens,
            session,
            prefix,
            self._affinities.cut.chunk_bytes,
            _GROWS,
            caller.time_per_output_token_s,
            home,
            not self._driver.scheduler.divides or _divisible(path, arrival.body),
            falls_back,
            (path, TOOLS) if has_tools else (path,),
            others,
            instead_of,
            turn,
        )

    def _keeping(self, arrival: Arrival, caller: Caller, request: Request) -> Keeping:
        from penstock.gateway.sessions.kept_answers import Keeping  # noqa: PLC0415 - few engines keep answers

        owner = caller.tenant if caller.has_key else None
        return Keeping(self._affinities.responses, owner, request.turn, background=arrival.peek.background)

    def _refuse_body(self, exchange: Exchange, problem: BadBody) -> None:
        self._refusals.refuse(exchange, Reason.BAD_REQUEST, str(problem), param=problem.param)


def _keep_to(rights: Rights, arrival: Arrival) -> None:
    """Refuse a request beyond its key's rights, or bound its answer; the scheduler checks its prompt."""
    if not rights.allows(arrival.named) and not (
        arrival.model == f"{arrival.named}:latest" and rights.allows(arrival.model)  # Ollama's name of the same
    ):
        raise _Refused(Reason.FORBIDDEN, errors.model_not_allowed(arrival.named))
    if not rights.models and rights.max_output_tokens is None:
        return
    from penstock.gateway.openai.dialects import Asked  # noqa: PLC0415 - few keys have such rights

    asked = Asked(arrival.body if len(arrival.body) else b"{}")
    if rights.models:
        for name in asked.names():
            if not rights.allows(name):
                raise _Refused(Reason.FORBIDDEN, errors.model_not_allowed(name))
    most, peek = rights.max_output_tokens, arrival.peek
    is_known = not arrival.route.added
    if most is None or arrival.route.pooled or arrival.route.free or (peek.text is None and is_known):
        return
    path, inputs = arrival.exchange.target_path, arrival.contents.inputs
    arrival.body, put_in = asked.bound(arrival.body, path, most, inputs, is_known=is_known)
    if put_in:
        peek.output_tokens_max = most // max(1, arrival.contents.answers)


def _divisible(path: str, body: Body) -> bool:
    from penstock.gateway.proxy.disagg.sequential import divisible  # noqa: PLC0415 - few gateways have roles

    return divisible(path, body)


class _Refused(Exception):  # noqa: N818
    """A refusal other than a bad body."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _pinned(query: str) -> str | None:
    """The endpoint that a query names; None: none."""
    return _one_of(query, "id", "endpoints")


def _one_of(query: str, field: str, what: str) -> str | None:
    """The value of a field of a query, which may name one of `what`; None: it is absent."""
    try:
        named = parse_qs(query, keep_blank_values=True, max_num_fields=bodies.QUERY_FIELDS_MAX).get(field)
    except ValueError:
        raise BadBody("The query has too many fields.") from None
    if named is None:
        return None
    if len(named) != 1:
        raise BadBody(f"The query names several {what} (`{field[:40]}`); one is allowed.", field)
    return named[0]


def _rename(arrival: Arrival, model: str) -> None:
    """Put another model's name where the request has its own."""
    exchange = arrival.exchange
    arrival.body, exchange.query = bodies.renamed(arrival.body, exchange.query, model, arrival.route.field)


def _broken(exchange: Exchange, failure: Exception) -> None:
    """A bug of ours: the client must not hang, and the log gets it."""
    exchange.abort()
    raise failure


def _traced(tracer: Tracer, exchange: Exchange, request: Request) -> RequestTrace:
    parent, state = exchange.lookup.get(b"traceparent"), exchange.lookup.get(b"tracestate")
    return tracer.begin(request, method=exchange.method, path=exchange.target_path, parent=parent, state=state)
