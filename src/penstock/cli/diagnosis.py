"""Examines an endpoint with the code that the gateway uses.

A report lists the features, the engine flag that enables a missing one, and the effect of its absence. A missing
feature is advice; an endpoint that cannot serve as configured is a problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import Enum

import msgspec

from penstock import clock
from penstock.config.address import which_port
from penstock.config.model import EndpointSection
from penstock.core.values.observation import Observation
from penstock.engines.base import Engine, Facts, Model, Priority
from penstock.engines.recognise import ENGINES
from penstock.engines.vllm import VLLM
from penstock.gateway.endpoints import identify
from penstock.gateway.endpoints.factory import trust
from penstock.gateway.endpoints.identify import Listing
from penstock.gateway.endpoints.load_reader import LoadReader
from penstock.gateway.endpoints.probe import PAGE_BYTES_MAX, Ask, ProbeAnswer, asking
from penstock.http.client.pool import Headers, Upstream, UpstreamException, UpstreamTimeouts

AT_ONCE_MAX = 16
MODELS_SHOWN_MAX = 1_000
TRY_WORDS = 600  # longer than any engine's KV block, so that the second prompt is partly cached
TRY_TIMEOUT_S = 60.0

WITHOUT = {
    "metrics": "only Penstock's own requests are counted there; others and the engine's queue are invisible",
    "slots": "its concurrency is learnt, beginning with `admission.slots_initial`",
    "cached_tokens": "cached prompts are charged in full, and locality is not corrected",
    "priority": "`admission.engine_priority` has no effect there",
    "kv_events": "its cached prompts are known from Penstock's own history only",
    "stream_usage": "the field is omitted, and tokens of its streams are counted by their events",
}
NOT_BELIEVED = "a page that does not move while answers do is not trusted: only Penstock's own requests are counted"
NO_ENGINE = (
    "it answers, but not like an engine: it lists no models, and gets single requests only; if it is an engine, write "
    "`engine: openai` and its `models`"
)
MOVES_LOOKS = 4  # SGLang updates its page every 40 steps, within two seconds
MOVES_LOOK_S = 0.5
STANDS_IN = "while all its slots are busy, its queue is unknown"


class FeatureState(Enum):
    """Whether an engine offers one feature."""

    OFFERED = "offered"
    MISSING = "missing"
    UNKNOWN = "unknown"  #: not reported by the engine
    NEVER = "never"  #: unsupported by this kind of engine


class EngineFeature(msgspec.Struct, frozen=True):
    """One feature that an engine may offer."""

    what: str  #: metrics, slots, cached_tokens, priority or kv_events
    state: FeatureState
    detail: str = ""
    flag: str = ""  #: the engine flag that enables it, if it is missing or unknown
    without: str = ""  #: the effect of its absence


class ServedModel(msgspec.Struct, frozen=True):
    """One model or adapter."""

    name: str
    context_tokens: int | None
    adapter_of: str | None


class Report(msgspec.Struct, frozen=True):
    """The result for one endpoint. None or "?": unknown."""

    name: str
    url: str
    problems: list[str]
    engine: str | None = None
    title: str = "?"
    version: str | None = None
    models: list[ServedModel] = []
    slots: int | None = None
    offers: list[EngineFeature] = []


class Doctor:
    """Examines endpoints. `tries`: also send each a few small requests and read their usage."""

    def __init__(self, *, timeout_s: float, tries: bool) -> None:
        self._timeout_s = timeout_s
        self._tries = tries

    async def examine_all(self, endpoints: Sequence[EndpointSection]) -> AsyncIterator[Report]:
        """Yields one report per endpoint, as they finish."""
        free = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(endpoint: EndpointSection) -> Report:
            async with free:
                return await self.examine(endpoint)

        tasks = [asyncio.ensure_future(one(endpoint)) for endpoint in endpoints]
        try:
            for finished in asyncio.as_completed(tasks):
                yield await finished
        finally:
            for task in tasks:
                task.cancel()

    async def examine(self, endpoint: EndpointSection) -> Report:
        """Returns the report on one endpoint; its faults are no exceptions."""
        tls = endpoint.tls
        upstream = Upstream(
            endpoint.url,
            timeouts=UpstreamTimeouts(connect_s=self._timeout_s),
            ssl_context=trust(endpoint.name, tls),
            server_name=None if tls is None else tls.server_name,
        )
        ports: list[Upstream] = []
        key = endpoint.api_key.get_secret_value() if endpoint.api_key is not None else None
        headers: Headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
        ask = asking(upstream, headers, timeout_s=self._timeout_s, bytes_max=PAGE_BYTES_MAX)

        def ask_port(port: int) -> Ask:
            ports.append(upstream.at_port(port))
            return asking(ports[-1], [], timeout_s=self._timeout_s, bytes_max=PAGE_BYTES_MAX)

        try:
            return await self._examine(endpoint, upstream, headers, ask, LoadReader(ask, clock.now, ask_port))
        finally:
            for one in (upstream, *ports):
                one.close()

    async def _examine(
        self, endpoint: EndpointSection, upstream: Upstream, headers: Headers, ask: Ask, reader: LoadReader
    ) -> Report:
        configured = ENGINES.get(endpoint.engine)
        listing, problem = await _listing(ask, configured, endpoint.url)
        if problem is not None:
            return Report(endpoint.name, endpoint.url, [problem])
        found = await identify.which_engine(ask, listing)
        engine = configured or found
        if engine is None:
            return Report(endpoint.name, endpoint.url, ["it stopped answering while it was asked"])
        problems = []
        if configured is not None and found is not None and found is not configured and found.name != "openai":
            problems.append(f"the settings say `engine: {configured.name}`, but it answers as {found.title}")
        if (probe := await ask(engine.probe_path)).status >= 500 or not probe.status:
            problems.append(f"its health probe {engine.probe_path} says: {_said(probe)}")
        facts, _ = await identify.learn_facts(ask, engine)
        models = identify.listed(listing, facts, endpoint.names)
        stranger = models is None and engine.name == "openai" and (configured is None or endpoint.models == "auto")
        problems += [NO_ENGINE] if stranger else _wrong_models(endpoint, models)
        reader.use(engine)
        reading = await reader.full() if reader.reads and facts.tells_load is not False else None
        facts = facts.over(reader.facts)
        page_flag = await _page_flag(ask, engine, probe) if reading is None and not reader.trouble else ""
        if facts.sleeping:
            problems.append("it is asleep: requests for it would fail until it is woken up")
        if facts.paused:
            problems.append("it is paused: requests for it would wait inside it until it is resumed")
        moves: bool | None = None
        counts: bool | None = None
        if self._tries and models:
            facts = facts.over(await _try(upstream, headers, _to_try(endpoint, models)))
            counts = await _counts_streams(upstream, headers, _to_try(endpoint, models))
            if reading is not None and reading.progress is not None:
                moves = await _moves(reader, reading)
        return Report(
            endpoint.name,
            endpoint.url,
            problems,
            engine=engine.name,
            title=engine.title,
            version=facts.version,
            models=[_served(model, facts) for model in (models or [])[:MODELS_SHOWN_MAX]],
            slots=facts.slots if endpoint.slots == "auto" else endpoint.slots,
            offers=[
                *_offers(endpoint, engine, facts, reading, reader, moves=moves, page_flag=page_flag),
                *_stream_usage(told=counts),
            ],
        )


async def _listing(ask: Ask, configured: Engine | None, url: str) -> tuple[Listing, str | None]:
    """Returns an endpoint's models, and the problem with listing them, if any."""
    path = configured.models_path if configured else "/v1/models"
    answer = await ask(path)
    if answer.failure is not None:
        return Listing(None), _said(answer) + which_port(url)
    if answer.status in (401, 403):
        return Listing(None), f"it answers {answer.status}: `api_key` is missing or wrong"
    listing = identify.listing_of(answer)
    if listing.models is None and not listing.absent:
        return listing, f"its model list {path} says: {_said(answer)}{which_port(url)}"
    return listing, None


def _said(answer: ProbeAnswer) -> str:
    if answer.location:
        return f"a redirect to {answer.location[:200]}: write that address in `url`"
    if answer.failure is None:
        return f"status {answer.status}" if answer.status != 200 else "something unexpected"
    error = answer.failure.error
    return f"{error.kind.value.replace('_', ' ')}: {error.detail}"


def _wrong_models(endpoint: EndpointSection, models: list[Model] | None) -> list[str]:
    if models is None:
        told = "it does not list its models: it may serve any; better name them in `models`"
        return [] if endpoint.models != "auto" else [told]
    if endpoint.models == "auto":
        return [] if models else ["it serves no model now"]
    listed = {model.id for model in models}
    missing = [endpoint.names.get(name, name) for name in endpoint.models if name not in listed]
    return [f"`models` names `{name}`, which it does not serve" for name in missing]


def _served(model: Model, facts: Facts) -> ServedModel:
    parent = model.fields.get("parent")
    return ServedModel(model.id, identify.context_tokens(model, facts), parent if isinstance(parent, str) else None)


async def _moves(reader: LoadReader, before: Observation) -> bool:
    """Returns True if the page's counters have moved since `before`, as they must after an answer."""
    for _ in range(MOVES_LOOKS):
        after = await reader.full()
        if after is not None and not after.same_as(before):
            return True
        await asyncio.sleep(MOVES_LOOK_S)
    return False


def _offers(
    endpoint: EndpointSection,
    engine: Engine,
    facts: Facts,
    reading: Observation | None,
    reader: LoadReader,
    *,
    moves: bool | None,
    page_flag: str,
) -> list[EngineFeature]:
    """Returns an endpoint's features, the most important first."""
    flags = engine.flags
    slots = facts.slots is not None or endpoint.slots != "auto"
    slots_detail = "set" if endpoint.slots != "auto" else "told" if slots else ""
    direction = facts.priority or engine.priority
    kv_known = "kv_events" in flags or facts.kv_events is not None
    return [
        _metrics(engine, facts, reading, reader, moves=moves, page_flag=page_flag),
        _offer("slots", flags, told=True if slots else None, detail=slots_detail),
        _offer("cached_tokens", flags, told=facts.cached_tokens),
        _offer(
            "priority",
            flags,
            told=facts.schedules_priority,
            detail="" if direction is None else "lower first" if direction is Priority.LOWER_FIRST else "higher first",
            has=engine.priority is not None,
        ),
        _offer("kv_events", flags, told=facts.kv_events, detail=facts.kv_events_endpoint or "", has=kv_known),
    ]


async def _page_flag(ask: Ask, engine: Engine, probe: ProbeAnswer) -> str:
    """Returns advice on a metrics page that is missing or has no gauges; empty: the engine's usual flag."""
    flag = engine.flags.get("metrics", "")
    if not flag or not engine.metrics:
        return ""
    path = engine.metrics[0]
    answer = await ask(path)
    if answer.ok:
        return f"{path} has no gauges: serve a request first; if it still has none, {flag}"
    if answer.absent and (probe.absent or engine is VLLM):  # vLLM always has a page
        return f"forward {path} to the engine: a proxy before it seems to pass only some paths"
    return ""


def _metrics(
    engine: Engine, facts: Facts, reading: Observation | None, reader: LoadReader, *, moves: bool | None, page_flag: str
) -> EngineFeature:
    if reading is None:
        has = facts.tells_load is not False and (engine.series is not None or bool(engine.load_path))
        flags = {"metrics": page_flag} if page_flag else engine.flags
        return _offer("metrics", flags, told=False, detail=reader.trouble, has=has)
    seen = f"{reading.running:g} running, {reading.waiting:g} waiting"
    if reading.kv_usage is not None:
        seen += f", KV {reading.kv_usage:.0%}"
    if reading.kv_capacity_tokens:
        seen += f" of {reading.kv_capacity_tokens:,.0f} tokens"
    if moves is False:
        return EngineFeature(
            "metrics", FeatureState.MISSING, f"{seen}; it does not move though it answers", "", NOT_BELIEVED
        )
    if moves:
        seen += "; believed: it moved when it answered"
    if reader.has_page or engine.load_leads:
        return EngineFeature("metrics", FeatureState.OFFERED, seen)
    return EngineFeature(
        "metrics", FeatureState.MISSING, f"{seen}, by {engine.load_path}", engine.flags["metrics"], STANDS_IN
    )


def _offer(
    what: str, flags: Mapping[str, str], *, told: bool | None, detail: str = "", has: bool = True
) -> EngineFeature:
    if told:
        return EngineFeature(what, FeatureState.OFFERED, detail)
    state = FeatureState.NEVER if not has else FeatureState.UNKNOWN if told is None else FeatureState.MISSING
    return EngineFeature(what, state, detail if has else "", flags.get(what, "") if has else "", WITHOUT[what])


def _stream_usage(*, told: bool | None) -> list[EngineFeature]:
    """Returns whether a stream may be asked for its usage; empty if it was not tried."""
    if told is None:
        return []
    flags = {"stream_usage": "an engine, or a proxy before it, that takes `stream_options.include_usage`"}
    detail = "" if told else "it refuses `stream_options`"
    return [_offer("stream_usage", flags, told=told, detail=detail)]


async def _counts_streams(upstream: Upstream, headers: Headers, model: str) -> bool | None:
    """Returns True if a stream asked for its usage is answered; None if a plain stream is not either."""
    message = {"role": "user", "content": "doctor"}
    asked = {"model": model, "messages": [message], "max_tokens": 1, "stream": True}
    for body in ({**asked, "stream_options": {"include_usage": True}}, asked):
        try:
            answer = await upstream.fetch(
                "POST",
                "/v1/chat/completions",
                headers=[*headers, (b"content-type", b"application/json")],
                body=msgspec.json.encode(body),
                timeout_s=TRY_TIMEOUT_S,
            )
        except UpstreamException:
            return None
        if answer.status == 200:
            return body is not asked
        if answer.status not in (400, 422):
            return None
    return None


def _to_try(endpoint: EndpointSection, models: list[Model]) -> str:
    first = models[0].id if endpoint.models == "auto" else next(iter(endpoint.models))
    return endpoint.names.get(first, first)


async def _try(upstream: Upstream, headers: Headers, model: str) -> Facts:
    """Send the same request twice, one token each; does the second answer report cached tokens?"""
    message = {"role": "user", "content": "doctor " * TRY_WORDS}
    body = msgspec.json.encode({"model": model, "messages": [message], "max_tokens": 1})
    json_headers = [*headers, (b"content-type", b"application/json")]
    for _ in range(2):
        try:
            answer = await upstream.fetch(
                "POST", "/v1/chat/completions", headers=json_headers, body=body, timeout_s=TRY_TIMEOUT_S
            )
            page = msgspec.json.decode(answer.body) if answer.status == 200 else None
        except (UpstreamException, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Facts()
        usage = page.get("usage") if isinstance(page, dict) else None
        if not isinstance(usage, dict):
            return Facts()
        if isinstance(usage.get("prompt_tokens_details"), dict):
            return Facts(cached_tokens=True)
    return Facts(cached_tokens=False)
