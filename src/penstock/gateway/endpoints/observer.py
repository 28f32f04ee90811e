"""Polling the engines. Probes, model lists and gauges, asked for again and again.

There are two loops per endpoint, so that a hanging metrics page never delays the health probe. The queries and parsers
are values in `engines/`; `identify.py` finds the engine's kind and models, again after every restart; `load_reader.py`
reads its load. Gauges are read every `interval`, and every `fast_interval` while requests wait for an endpoint near its
limit, or it is in doubt whether it works. An endpoint at rest, without work of ours or others', is read at every second
`interval`, and its silence is noticed earlier, so a frozen one is shown as soon as any other.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

import msgspec

from penstock.config.address import which_port
from penstock.core.endpoints.health import Presence
from penstock.engines.base import Engine, Facts, Model
from penstock.engines.openai import OPENAI
from penstock.gateway.endpoints import identify
from penstock.gateway.endpoints.identify import Listing
from penstock.gateway.endpoints.load_reader import LoadReader
from penstock.gateway.endpoints.probe import (
    LATE_S,
    LIST_BYTES_MAX,
    NO_ANSWER,
    PAGE_BYTES_MAX,
    Ask,
    ProbeAnswer,
    Prober,
    asking,
)
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import Upstream, UpstreamException, UpstreamTimeouts

logger = logging.getLogger(__name__)

FACTS_TRIES_MAX = 5  # vLLM's first `/server_info` takes seconds on a busy machine, the second one milliseconds
PAGE_LATE_S, REST_LATE_S = 0.5, 0.25  # then the engine is probed: a page may be slow or missing on a healthy engine
LOADING_S = 60.0  # some engines list no model while they load one; an empty list that lasts longer is the answer
SILENT_S, REST_SILENT_S = 1.2, 0.6  # of a probe; behind a pause of 1 or 2 s a frozen engine is shown within 3 s
REST_PAUSES = 2  # intervals between readings of an endpoint at rest; the core takes a reading for old after three
ROUNDED_S = 0.002  # a timer of the loop may fire so much too early, which would be another pause of nearly nothing
DOWN_PROBE_S = 0.5  # a dead endpoint is probed more often than a live one: to see its return is worth a cheap connect
UNPROVEN = (
    "it lists no models and gives no sign of an engine, so it is tried with one request at a time until it answers one"
    " well; if it is an engine, write `engine: openai` and its `models`"
)
REFUSES_KEY = (
    "it refuses the gateway's key, so it gets only requests that no other endpoint serves: write the engine's key in"
    " `endpoints[].api_key`"
)
GONE = (Presence.DOWN, Presence.LOADING)


class ObserveSettings(msgspec.Struct, frozen=True):
    """How often an endpoint is asked, and how long an answer may take; in seconds."""

    interval_s: float = 1.0
    fast_interval_s: float = 0.5
    probe_interval_s: float = 5.0
    timeout_s: float = 2.0


class Observer:
    """Polls one endpoint and reports to the scheduler.

    `engine` is the configured one, None if it is to be found out. `asks_models` is False if the settings name the
    models; `on_models` is called with each list of the endpoint.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        driver: Driver,
        settings: ObserveSettings,
        *,
        engine: Engine | None,
        asks_models: bool,
        on_models: Callable[[str, list[Model]], None],
    ) -> None:
        self._name = name
        self._target = target
        self._driver = driver
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._configured = engine
        self._asks_models = asks_models
        self._on_models = on_models
        self._ask = asking(target.upstream, target.own_headers(), timeout_s=settings.timeout_s)
        self._ask_list = asking(
            target.upstream, target.own_headers(), timeout_s=settings.timeout_s, bytes_max=LIST_BYTES_MAX
        )
        self._ask_page = asking(
            target.upstream, target.own_headers(), timeout_s=settings.timeout_s, bytes_max=PAGE_BYTES_MAX
        )
        self._reader = LoadReader(self._ask_page, driver.now, self._ask_port)
        self._ports: dict[int, Upstream] = {}  # other ports of the same host, for an engine's page
        self._full_due_s = 0.0
        self._probes = target.upstream.unpooled()  # a kept connection may answer while new ones are refused
        self._probe_ask = self._watched(asking(self._probes, target.own_headers(), timeout_s=settings.timeout_s))
        self._prober = Prober(settings.timeout_s)
        self.looked = asyncio.Event()  #: set when the first probe is over, with or without an answer
        self._poked = asyncio.Event()
        self._look = asyncio.Event()  # set when the engine became known, or requests begin to wait: read gauges again
        self._met = False  # the engine became known since the gauges were last read
        self._idle = False  # the last reading showed no request at all
        self._told: list[str] | None = None  # the models last reported by the endpoint
        self._empty_s: float | None = None  # since when its list is empty
        self._adapters: frozenset[str] = frozenset()  # of the models last reported to the scheduler
        self._contexts: dict[str, int] = {}  # the context lengths last reported to the scheduler
        self._told_slots: int | None = None  # last reported to the scheduler
        self._told_keeps = True  # prefixes; as well
        self._vouched: tuple[bool, bool] | None = None  # last reported to the scheduler; and if the engine shows it
        self._refused: bool | None = None  # whether the engine refused our key when it was asked for its models
        self._told_refused = False  # what the scheduler was told of that last
        self._said_refused = False  # logged: the engine refuses our key
        self._page_trouble = ""  # the last logged trouble of the metrics page
        self._list_trouble = ""  # the last logged trouble of the model list
        self.engine: Engine | None = None  #: None until it is known
        self.facts = Facts()
        self._facts_tries = 0  # how often all facts are still asked for, because a question got no answer
        self._silent = False  # it has left a question unanswered
        self._is_new = True  # the engine's kind is unknown, or it has restarted since
        target.heard_load = self._heard
        target.unreachable = self.poke
        target.disowned = self.ask_again
        if engine is not None:
            self._use(engine)

    async def run(self) -> None:
        """Ask the endpoint until cancelled, then close the connections made for asking."""
        self._driver.wakes.add(self._look.set)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forever(self._probe, self._probe_pause))
                group.create_task(self._forever(self._read_gauges, self._gauges_pause))
        finally:
            self._driver.wakes.discard(self._look.set)
            for upstream in (self._probes, *self._ports.values()):
                upstream.close()

    def pace(self, settings: ObserveSettings, timeouts: UpstreamTimeouts) -> None:
        """Follow new `settings` from the next pause on, and new `timeouts` at once."""
        self._settings = settings
        for upstream in (self._probes, *self._ports.values()):
            upstream.retime(timeouts)

    def retrust(self, context: ssl.SSLContext) -> None:
        """Make new connections with another TLS `context`."""
        for upstream in (self._probes, *self._ports.values()):
            upstream.retrust(context)

    def poke(self) -> None:
        """A request could not reach the endpoint: probe it now, and often until it is back, maybe as another engine."""
        self._is_new = True
        self._target.forget()
        self._poked.set()

    def ask_again(self) -> None:
        """The endpoint reported a missing model, or refused our key: ask for its models now."""
        if self._asks_models or self._driver.scheduler.refuses_key(self._name) is not self._said_refused:
            self._poked.set()

    async def _forever(self, ask: Callable[[], Awaitable[None]], pause: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await ask()
            except UpstreamException:
                logger.debug("%s did not answer %s", self._name, ask)
            except Exception:
                logger.exception("observing %s failed", self._name)
            await pause()

    async def _pause(self, until: asyncio.Event, pause_s: float) -> None:
        timer = self._loop.call_later(pause_s + ROUNDED_S, until.set)
        try:
            await until.wait()
        finally:
            timer.cancel()
        until.clear()

    # --- alive ------------------------------------------------------------------------------------------------

    def _watched(self, ask: Ask) -> Ask:
        """Returns the same function, which also reports a silent endpoint: one that leaves a probe unanswered.

        That is shown within seconds. Slow is not hung, so whether it is used goes by its requests and by `Prober`.
        """

        async def watched(path: str) -> ProbeAnswer:
            asked_s, silent_s = self._driver.now(), REST_SILENT_S if self._rests else SILENT_S
            timer = self._loop.call_later(silent_s, self._unanswered, asked_s, asked_s + silent_s)
            try:
                answer = await ask(path)
            finally:
                timer.cancel()
            if answer.status or (answer.failure is not None and answer.failure.error.kind not in NO_ANSWER):
                self._tell_silent(silent=False)
            return answer

        return watched

    def _unanswered(self, asked_s: float, due_s: float) -> None:
        """Report the endpoint as silent, unless this process was late itself, or an answer has progressed meanwhile."""
        if self._driver.now() < due_s + LATE_S and self._driver.scheduler.moved_s(self._name) < asked_s:
            self._tell_silent(silent=True)

    def _tell_silent(self, *, silent: bool) -> None:
        if silent is not self._silent:
            self._silent = silent
            said = "leaves questions unanswered" if silent else "answers again"
            logger.log(logging.WARNING if silent else logging.INFO, "endpoint %s %s", self._name, said)
            self._driver.tell(
                self._driver.scheduler.endpoint_changed(self._name, silent=silent, now=self._driver.now())
            )
            self._changed()

    async def _probe_pause(self) -> None:
        self.looked.set()
        pause_s = self._settings.probe_interval_s
        unsure = self._prober.presence is not Presence.UP or self._prober.silent
        if unsure or self._is_new or self._said_refused or (self._asks_models and (self._told is None or self._loads)):
            pause_s = min(DOWN_PROBE_S, pause_s)
        await self._pause(self._poked, pause_s)

    async def _probe(self) -> None:
        scheduler, prober = self._driver.scheduler, self._prober
        before, asked_s = prober.presence, self._driver.now()
        answer = await self._probe_ask((self.engine or OPENAI).probe_path)
        if answer.ok and (self.facts.may_rest or self._facts_tries):
            await self._learn_facts()
        presence = prober.judged(answer, asked_s=asked_s, now=self._driver.now(), moved_s=scheduler.moved_s(self._name))
        if before is not Presence.UP and presence is Presence.UP:
            self._is_new = True
        if presence is Presence.UP and (self._is_new or self._asks_models or self._told is None):
            await self._learn(returns=before in GONE)
        if presence is Presence.UP:
            presence = prober.presence = self._at_rest()
        if presence is not before:
            why = "" if answer.failure is None else f": {answer.failure.error.detail}{which_port(self._target.url)}"
            level = logging.WARNING if presence in (Presence.DOWN, Presence.HUNG) else logging.INFO
            logger.log(level, "endpoint %s is %s%s", self._name, presence, why)
        if presence is Presence.UP:
            self._driver.tell(scheduler.endpoint_up(self._name, now=self._driver.now()))
            self._tell_key(returned=before is not Presence.UP)
            if before is not Presence.UP:
                self._changed()
            return
        self._driver.tell(scheduler.endpoint_down(self._name, presence=presence, now=self._driver.now()))
        self._changed()
        if presence is Presence.HUNG and before is not Presence.HUNG:
            self._target.upstream.give_up("the engine answers nothing")  # its requests are tried elsewhere

    def _tell_key(self, *, returned: bool) -> None:
        """Report whether the engine refused its model list for lack of a key; log it, also if requests noticed."""
        scheduler, refused = self._driver.scheduler, bool(self._refused)
        if refused is not self._told_refused or (refused and returned):
            self._told_refused = refused
            self._driver.tell(scheduler.endpoint_changed(self._name, key_refused=refused, now=self._driver.now()))
        refuses = scheduler.refuses_key(self._name)
        if refuses is self._said_refused:
            return
        self._said_refused = refuses
        if refuses:
            logger.warning("endpoint %s: %s", self._name, REFUSES_KEY)
        else:
            logger.info("endpoint %s accepts requests again", self._name)
        self._changed()

    def _changed(self) -> None:
        if self._target.changed is not None:
            self._target.changed()

    def _at_rest(self) -> Presence:
        """How a healthy engine is there: up, unless somebody has put it to sleep or paused it."""
        page = self._reader.facts.sleeping
        if self.facts.sleeping if page is None else page:
            return Presence.SLEEPING
        return Presence.PAUSED if self.facts.paused else Presence.UP

    # --- its kind and models ----------------------------------------------------------------------------------

    async def _learn(self, *, returns: bool) -> None:
        """Ask for the endpoint's models, and its kind if that may have changed.

        `returns` is True for an endpoint that was down or loading. Such an engine was just started, so it does not
        sleep: it is used before all its facts are known, which takes seconds on a busy machine.
        """
        listing = await identify.list_models(self._ask_list, self.engine or OPENAI)
        if self._refused and listing.models is not None:
            self._is_new = True  # refused before
        if listing.refused or listing.models is not None or listing.absent:
            self._refused = listing.refused
        if self._is_new:
            engine = self._configured or await identify.which_engine(self._ask_page, listing)
            if engine is not None:
                self._use(engine)
                self._driver.tell(
                    self._driver.scheduler.endpoint_changed(self._name, lingers=engine.lingers, now=self._driver.now())
                )
                self.facts, self._facts_tries = Facts(), FACTS_TRIES_MAX
                if returns and self._told is not None:
                    self._tell_models(listing)
                    self._driver.tell(self._driver.scheduler.endpoint_up(self._name, now=self._driver.now()))
                await self._learn_facts()
                self._is_new = False
        self._tell_models(listing)
        self._tell_facts()
        self._changed()

    async def _learn_facts(self) -> None:
        """Ask for the engine's facts. Without an answer, the last one stays valid."""
        engine = self.engine
        if engine is None:
            return
        told, said_all = await identify.learn_facts(self._ask, engine, changing=not self._facts_tries)
        self.facts = facts = told.over(self.facts)
        self._facts_tries = 0 if said_all else max(0, self._facts_tries - 1)
        ignores = facts.schedules_priority is False
        self._target.priority = None if ignores else facts.priority or engine.priority
        self._tell_facts()

    def _use(self, engine: Engine) -> None:
        if engine is not self.engine:
            logger.log(
                logging.DEBUG if self._configured else logging.INFO, "endpoint %s is %s", self._name, engine.title
            )
        self.engine = self._target.engine = engine
        self._target.priority = engine.priority
        self._reader.use(engine)
        self._full_due_s = 0.0
        self._met = True
        self._look.set()

    def _tell_models(self, listing: Listing) -> None:
        models = identify.listed(listing, self.facts, self._target.names)
        if listing.trouble and listing.trouble != self._list_trouble:
            logger.warning("endpoint %s: %s", self._name, listing.trouble)
        self._list_trouble = listing.trouble
        self._vouch(listing, lists=models is not None)
        scheduler, now = self._driver.scheduler, self._driver.now()
        if models is not None:
            names = [model.id for model in models]
            self._on_models(self._name, models)
            contexts = {
                model.id: tokens for model in models if type(tokens := model.fields.get("max_model_len")) is int
            }
            if contexts != self._contexts:
                self._contexts = contexts
                self._driver.tell(scheduler.endpoint_changed(self._name, contexts=contexts, now=now))
            adapters = frozenset(model.id for model in models if isinstance(model.fields.get("parent"), str))
            if adapters != self._adapters:
                self._adapters = adapters
                self._driver.tell(scheduler.endpoint_changed(self._name, adapters=adapters, now=now))
            self._empty_s = None if names else self._empty_s or now
            if self._asks_models and self._told is None and self._loads:
                return
            if self._asks_models and names != self._told:
                self._driver.tell(scheduler.endpoint_changed(self._name, models=names, tells_models=True, now=now))
            self._told = names
        elif listing.foreign and self._asks_models and self._told is None:
            self._told = []  # of any kind, it serves no model
            self._driver.tell(scheduler.endpoint_changed(self._name, models=(), now=now))
        elif (listing.absent or listing.refused) and self._asks_models and self._told is None and not self._is_new:
            if listing.absent:
                logger.warning("endpoint %s does not list its models; assuming it serves any", self._name)
            self._told = []
            self._driver.tell(scheduler.endpoint_changed(self._name, tells_models=False, now=now))

    @property
    def _loads(self) -> bool:
        """Whether it lists no model and may be loading one."""
        if self._empty_s is None or (self.engine or OPENAI).lists_unloaded:
            return False
        return self._driver.now() < self._empty_s + LOADING_S

    def _vouch(self, listing: Listing, *, lists: bool) -> None:
        """Report whether there is evidence of an engine: its list, its recognised kind, or the configuration."""
        recognised = self._configured is None and self.engine is not None and self.engine is not OPENAI
        if not (lists or listing.absent or listing.foreign or (listing.refused and recognised)):
            return  # no answer this time
        shown = lists or recognised
        vouched = shown or (self._configured is not None and not self._asks_models)
        if (vouched, shown) == self._vouched:
            return
        self._vouched = vouched, shown
        if not vouched:
            logger.warning("endpoint %s: %s", self._name, UNPROVEN)
        scheduler, now, by_word = self._driver.scheduler, self._driver.now(), vouched and not shown
        self._driver.tell(scheduler.endpoint_changed(self._name, vouched=vouched, by_word=by_word, now=now))

    def _tell_facts(self) -> None:
        """Report what it says of itself, once. Whoever says nothing of prefixes keeps them, as most engines do."""
        facts, page, driver = self.facts, self._reader.facts, self._driver
        slots = facts.slots or page.slots
        if slots is not None and slots != self._told_slots:
            self._told_slots = slots
            driver.tell(driver.scheduler.endpoint_changed(self._name, told_slots=slots, now=driver.now()))
        keeps = (page.keeps_prefixes if facts.keeps_prefixes is None else facts.keeps_prefixes) is not False
        if keeps is not self._told_keeps:
            self._told_keeps = keeps
            if not keeps:
                logger.info("endpoint %s keeps no prefixes, so no session waits for its memory", self._name)
            driver.tell(driver.scheduler.endpoint_changed(self._name, keeps_prefixes=keeps, now=driver.now()))

    # --- how loaded -------------------------------------------------------------------------------------------

    async def _gauges_pause(self) -> None:
        """Wait until the next reading: `interval`, or `fast_interval` while requests wait and this endpoint matters.

        At rest two intervals, but one as soon as it gets a request. An engine without load to read is soon known again.
        """
        settings, driver, ended_s = self._settings, self._driver, self._driver.now()
        if not self._reads:
            await self._pause(self._look, settings.probe_interval_s)
        fast_s = min(settings.fast_interval_s, settings.interval_s)
        while self._reads and not self._met:
            pause_s = settings.interval_s * (REST_PAUSES if self._rests else 1)
            left_s = ended_s + pause_s - driver.now()
            if left_s <= 0:
                break
            if not driver.scheduler.watches:
                await self._rest(min(settings.interval_s, left_s), left_s)
            elif (soon_s := ended_s + fast_s - driver.now()) > 0:
                await self._pause(self._look, min(soon_s, left_s))
            elif driver.scheduler.wanted(self._name, now=driver.now()):
                break
            else:
                await self._pause(self._look, min(fast_s, left_s))
        self._met = False

    async def _rest(self, interval_s: float, pause_s: float) -> None:
        """Pause for `pause_s`; for `interval_s` if the endpoint is no longer at rest by then."""
        if interval_s == pause_s:
            await self._pause(self._look, pause_s)
            return
        timer = self._loop.call_later(interval_s + ROUNDED_S, self._unless_at_rest)
        try:
            await self._pause(self._look, pause_s)
        finally:
            timer.cancel()

    def _unless_at_rest(self) -> None:
        if not self._rests:
            self._look.set()

    @property
    def _reads(self) -> bool:
        return self._reader.reads and self.facts.tells_load is not False

    @property
    def _rests(self) -> bool:
        """Whether the endpoint has nothing to do, by its last reading and by our own requests."""
        return self._idle and not self._driver.scheduler.uses(self._name)

    async def _read_gauges(self) -> None:
        if not self._reads:
            return
        reader, rests, self._idle = self._reader, self._rests, False
        now = self._driver.now()
        if now >= self._full_due_s:
            self._full_due_s = now + self._settings.interval_s
            late_s = REST_LATE_S if rests else PAGE_LATE_S
            late = self._loop.call_later(late_s, self._poked.set)
            try:
                reading = await reader.full()
            finally:
                late.cancel()
            if reader.trouble and reader.trouble != self._page_trouble and not self._said_refused:
                logger.warning("endpoint %s: %s, so only our own requests are counted", self._name, reader.trouble)
                self._page_trouble = reader.trouble
            if reader.restarted:
                self.poke()
        else:
            reading = await reader.fast()
        self._idle = reading is not None and reading.running + reading.waiting == 0
        self._tell_facts()
        if reading is not None or not reader.unsaid:
            answered, now = reader.answered, self._driver.now()
            self._driver.tell(self._driver.scheduler.observed(self._name, reading, answered=answered, now=now))

    def _heard(self, header: bytes) -> None:
        part = self._reader.heard(header)
        if part is not None:
            self._driver.tell(self._driver.scheduler.glimpsed(self._name, part, now=self._driver.now()))

    def _ask_port(self, port: int) -> Ask:
        upstream = self._ports.get(port)
        if upstream is None:
            upstream = self._ports[port] = self._target.upstream.at_port(port)
        return asking(upstream, [], timeout_s=self._settings.timeout_s, bytes_max=PAGE_BYTES_MAX)
