"""An engine's dialect. One value per engine, mostly names as data.

Penstock asks every engine for its kind, its models, its slots and its load. An `Engine` holds the paths to ask and how
to read the answers. Nothing here does I/O. Missing or nonsensical values are unknown (`None`). Each signal stands
alone, so a broken one spoils no other; only `running` and `waiting` are worth something together alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from zlib import crc32

import msgspec

from penstock.core.values.observation import Observation
from penstock.engines.page import Sample, Selector, is_indented, mean, plain, total

Json = Mapping[str, object]  #: an answer that is a JSON object
Names = tuple[str, ...]  #: aliases of one series, today's first; the first one found counts

KEPT_BYTES = 1 << 16  # of an engine's last page; a larger one is compared by its checksum, at ten times the time
NO_MODEL_CODE = "model_not_found"  # OpenAI's `code`, which another Penstock as endpoint sends, too


class Priority(Enum):
    """The direction in which an engine orders requests by their `priority`."""

    LOWER_FIRST = 1
    HIGHER_FIRST = -1


class Model(msgspec.Struct):
    """One entry of an engine's model list, with all the fields that the engine sent."""

    id: str
    fields: dict[str, object]


class Facts(msgspec.Struct, frozen=True):
    """An engine's facts besides models and load. None: not reported."""

    version: str | None = None
    slots: int | None = None  #: concurrent requests
    context_tokens: int | None = None  #: of one request, prompt and answer together
    models: tuple[str, ...] = ()  #: of an engine that has no model list
    schedules_priority: bool | None = None
    priority: Priority | None = None  #: only if it differs from the engine's usual direction
    cached_tokens: bool | None = None  #: whether usage includes cached tokens
    keeps_prefixes: bool | None = None  #: whether it keeps the blocks of ended requests, to use them again
    kv_events: bool | None = None
    kv_events_endpoint: str | None = None
    tells_load: bool | None = None  #: False: impossible with any flags
    sleeping: bool | None = None
    paused: bool | None = None  #: it takes requests, and starts none

    @property
    def may_rest(self) -> bool:
        """True if the engine tells whether it sleeps or is paused, which may change at any time."""
        return self.sleeping is not None or self.paused is not None

    def over(self, other: Facts) -> Facts:
        """Returns both merged; these facts win over the `other` ones."""
        told = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) not in (None, ())}
        return msgspec.structs.replace(other, **told)


class Load(msgspec.Struct, frozen=True):
    """An engine's load from a source other than its page. None: not reported."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class Series(msgspec.Struct, frozen=True):
    """The names of an engine's series. A `Names` is one number; only in `progress` all names are added up."""

    running: Names
    waiting: Names
    queued: Names = ()  #: of those waiting, the ones that a finished step left without room
    waiting_more: Names = ()  #: queues besides the one in `waiting`, added if they are there
    kv_usage: Names = ()  #: 0..1, or:
    kv_used: Names = ()  #: in any unit, with
    kv_total: Names = ()  #: in the same unit
    kv_blocks: Names = ()  #: capacity, with
    kv_block_tokens: Names = ()
    kv_tokens: Names = ()  #: capacity in tokens
    kv_info: str = ""  #: a series with the labels of vLLM's cache: tokens, or blocks and their size
    progress: Names = ()  #: counters that move when a step ends
    started: str = ""
    pace: Names = ()  #: histograms of the time per output token
    first_token: Names = ()  #: histograms of the time to the first token, over all requests, streamed or not
    prefix_hits: Names = ()  #: counters of prompt tokens found in the cache, with
    prefix_queries: Names = ()  #: counters of prompt tokens looked for; or:
    prefix_ratio: Names = ()  #: the share found, 0..1
    adapters: str = ""  #: a series with the labels `max_lora` and `running_lora_adapters`, the latest by its value; or:
    adapters_held: Names = ()  #: how many LoRA adapters are in memory at most
    slots: Names = ()
    awake: str = ""  #: a gauge that is 0 while the engine sleeps
    refused: Names = ()  #: counters of requests refused for the bounds of its own queue


class Document(msgspec.Struct, frozen=True):
    """A JSON object that an engine serves, and how to read facts from it."""

    path: str
    facts: Callable[[Json], Facts]
    changes: bool = False  #: its content changes while the engine runs (whether the engine sleeps or is paused)


class Engine(msgspec.Struct, frozen=True):
    """Everything that is particular to one engine."""

    name: str  #: as in the settings: also in `EngineName`, `config/values.py`
    title: str
    # --- recognising it
    owned_by: Names = ()  #: in its model list
    page_prefixes: tuple[bytes, ...] = ()  #: of its series' names
    signs: tuple[tuple[str, Names], ...] = ()  #: a path with a JSON object of all these keys
    # --- asking it
    probe_path: str = "/health"
    metrics: Names = ()  #: paths of its page; `:8002/metrics` is another port of the same host
    load_path: str = ""  #: a path with only running and waiting, smaller than the page
    load: Callable[[object], Load | None] | None = None
    load_leads: bool = False  #: True: `load` is fresher than the page; False: it only stands in for a missing page
    door_path: str = ""  #: the number of requests open on the engine's HTTP side
    door: Callable[[object], float | None] | None = None
    models_path: str = "/v1/models"
    lists_unloaded: bool = False  #: the list has models that are not loaded, too: an empty one is no sign of loading
    documents: tuple[Document, ...] = ()
    # --- reading its page
    series: Series | None = None
    parts: Callable[[list[Sample]], list[Sample]] = lambda samples: samples  #: picks the samples that count, once each
    # --- sending to it
    priority: Priority | None = None
    orca: bool = False  #: answers report the load in a header on request
    lingers: bool = False  #: it continues requests of vanished clients, except streams that have begun
    bare_paths: bool = False  #: it may serve OpenAI's paths without the `/v1` before them, too
    refusals: tuple[bytes, ...] = ()  #: in an error's body of any status: the engine is too busy or stopping
    failures: frozenset[int] = frozenset()  #: statuses below 500 that mean that the engine failed, not the request
    no_model: Names = ()  #: how the message of a 404 begins when the engine lacks the model; `{}` is the model's name
    # --- the flags that enable `metrics`, `cached_tokens`, `priority`, `kv_events`, `slots`
    flags: Mapping[str, str] = {}

    def lacks(self, model: str, body: bytes | bytearray) -> bool:
        """Returns True if the `body` of a 404 means that the engine lacks this `model`, not the path.

        The message is compared from its beginning, including the name, because a client chooses the text of a request
        that an engine may repeat in its errors.
        """
        try:
            page = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        error = page.get("error", page) if isinstance(page, dict) else None
        if not isinstance(error, dict):
            return False
        message = error.get("message")
        begins = tuple(begin.replace("{}", model) for begin in self.no_model)
        return error.get("code") == NO_MODEL_CODE or (isinstance(message, str) and message.startswith(begins))


class PageReader:
    """Reads the metrics pages of one engine. The selectors are made once, not per page.

    An idle engine's page changes only in the lines that count its process's own work. So while all lines from the first
    to the last of the engine's own are as they were, the last reading stands (`again`).
    """

    def __init__(self, engine: Engine) -> None:
        assert engine.series is not None
        self._series = series = engine.series
        self._parts = engine.parts
        names = [name for field in series.__struct_fields__ for name in _names(getattr(series, field))]
        names += [name + part for name in (*series.pace, *series.first_token) for part in ("_sum", "_count")]
        self._selectors = {name: Selector.of(name) for name in names}
        #: How all lines that count begin, except the start time's, which stands among those of the process.
        self._prefix = _common([it.line for name, it in self._selectors.items() if name != series.started])
        #: Of the last page: its own lines, or their checksum, and those of the start time before and after them.
        self._known: tuple[bytes | int, list[bytes], list[bytes]] | None = None
        self._last: Observation | None = None

    def again(self, page: bytes, *, asked_s: float) -> Observation | None:
        """Returns the last reading, as of `asked_s`, if a `page` as it came holds the same; None: it is to be read."""
        begin = 0 if page.startswith(self._prefix[1:]) else max(page.find(self._prefix), 0)
        end = page.find(b"\n", page.rfind(self._prefix) + 1)
        end = end if end >= 0 else len(page)
        before, after = page[:begin], page[end:]
        lines = page[begin:end]
        own = lines if len(lines) <= KEPT_BYTES else crc32(lines)
        is_plain = plain(before) == before and not is_indented(after)
        known = (own, self._started(before), self._started(after)) if is_plain else None
        last = self._last if known is not None and known == self._known else None
        self._known = known
        return None if last is None else msgspec.structs.replace(last, asked_s=asked_s)

    def observation(self, page: bytes, *, asked_s: float) -> Observation | None:
        """Returns the reading on a `plain` page, asked for at `asked_s`; None if it holds none that makes sense."""
        self._last = self._read(page, asked_s)
        return self._last

    def _started(self, page: bytes) -> list[bytes]:
        """Return the lines of the start time, as they are."""
        if not self._series.started:
            return []
        line, page = self._selectors[self._series.started].line, b"\n" + page
        found, at = [], page.find(line)
        while at >= 0:
            end = page.find(b"\n", at + 1)
            found.append(page[at:end] if end >= 0 else page[at:])
            at = page.find(line, at + 1)
        return found

    def _started_s(self, page: bytes) -> float | None:
        return total(self._samples(page, self._series.started)) if self._series.started else None

    def _read(self, page: bytes, asked_s: float) -> Observation | None:
        series = self._series
        running, waiting = self._total(page, series.running), self._total(page, series.waiting)
        for name in series.waiting_more:
            if samples := self._samples(page, name):
                more = total(samples)
                waiting = None if waiting is None or more is None else waiting + more
        if running is None or waiting is None:
            return None
        counters = [samples for name in series.progress if (samples := self._samples(page, name)) != []]
        progress = [value for samples in counters if (value := total(samples)) is not None]
        pace_s, pace_tokens = self._histogram(page, series.pace)
        first_token_s, first_tokens = self._histogram(page, series.first_token)
        held, adapters = self._adapters(page)
        return Observation(
            asked_s=asked_s,
            running=running,
            waiting=waiting,
            queued=self._total(page, series.queued) if series.queued else None,
            kv_usage=self._kv_usage(page),
            kv_capacity_tokens=self._kv_capacity(page),
            # A sum with one counter missing would look as if the counters had fallen, as they do at a restart.
            progress=sum(progress) if progress and len(progress) == len(counters) else None,
            started_s=self._started_s(page),
            pace_s_total=pace_s,
            pace_tokens_total=pace_tokens,
            first_token_s_total=first_token_s,
            first_tokens_total=first_tokens,
            adapters_held=held,
            adapters_running=adapters,
            prefix_hit_ratio=self._prefix_hits(page),
            refused=self._total(page, series.refused) if series.refused else None,
        )

    def facts(self, page: bytes) -> Facts:
        """Returns the facts on a `plain` page; None in missing fields."""
        series = self._series
        slots = self._total(page, series.slots)
        awake = total(self._samples(page, series.awake)) if series.awake else None
        info = self._samples(page, series.kv_info) if series.kv_info else None
        caches = {sample.labels.get("enable_prefix_caching") for sample in info or ()}
        return Facts(
            slots=int(slots) if slots else None,
            sleeping=None if awake is None else awake == 0,
            keeps_prefixes="True" in caches if caches & {"True", "False"} else None,
        )

    def _samples(self, page: bytes, name: str) -> list[Sample] | None:
        samples = self._selectors[name].samples(page)
        return self._parts(samples) if samples else samples

    def _first(self, page: bytes, names: Names) -> list[Sample] | None:
        """The samples of the first alias that the page holds; None if it holds none."""
        for name in names:
            samples = self._samples(page, name)
            if samples != []:
                return samples
        return None

    def _total(self, page: bytes, names: Names) -> float | None:
        return total(self._first(page, names))

    def _kv_usage(self, page: bytes) -> float | None:
        series = self._series
        usage = mean(self._first(page, series.kv_usage))
        if usage is None and series.kv_used:
            used, most = self._total(page, series.kv_used), self._total(page, series.kv_total)
            usage = used / most if used is not None and most else None
        return usage if usage is not None and usage <= 1.0 else None  # a share can't be more than one

    def _kv_capacity(self, page: bytes) -> int | None:
        series = self._series
        tokens = self._total(page, series.kv_tokens)
        if series.kv_info and (samples := self._samples(page, series.kv_info)):
            tokens = _capacity(samples)
        if tokens is None and series.kv_blocks:
            blocks, size = self._total(page, series.kv_blocks), mean(self._first(page, series.kv_block_tokens))
            tokens = blocks * size if blocks is not None and size is not None else None
        return int(tokens) if tokens else None

    def _histogram(self, page: bytes, names: Names) -> tuple[float | None, float | None]:
        for name in names:
            seconds, tokens = self._samples(page, f"{name}_sum"), self._samples(page, f"{name}_count")
            if seconds != [] or tokens != []:
                return total(seconds), total(tokens)
        return None, None

    def _adapters(self, page: bytes) -> tuple[float | None, tuple[str, ...]]:
        """Returns how many LoRA adapters the engine has in memory at most, and those that run."""
        series = self._series
        if not series.adapters:
            return self._total(page, series.adapters_held), ()
        samples = [x for x in self._samples(page, series.adapters) or () if not math.isnan(x.value)]
        if not samples:
            return None, ()
        labels = max(samples, key=lambda sample: sample.value).labels
        held, running = labels.get("max_lora", ""), labels.get("running_lora_adapters", "")
        return float(held) if held.isdecimal() else None, tuple(x for x in running.split(",") if x)

    def _prefix_hits(self, page: bytes) -> float | None:
        series = self._series
        ratio = mean(self._first(page, series.prefix_ratio))
        if ratio is None and series.prefix_hits:
            hits, queries = self._total(page, series.prefix_hits), self._total(page, series.prefix_queries)
            ratio = hits / queries if hits is not None and queries else None
        return ratio if ratio is not None and ratio <= 1.0 else None


def _common(lines: list[bytes]) -> bytes:
    """Returns how all lines begin."""
    begin, last = min(lines), max(lines)
    while not last.startswith(begin):
        begin = begin[:-1]
    return begin


def _names(value: str | Names) -> Names:
    return ((value,) if value else ()) if isinstance(value, str) else value


def _capacity(samples: list[Sample]) -> int | None:
    """Returns the KV memory of all parts in tokens, by their labels; None if one lacks them.

    `kv_cache_size_tokens` is a part's own. Where that is missing, each shows the number of blocks of all parts;
    times their size it is wrong for models with layers of several kinds, whose blocks differ.
    """
    try:
        own = [sample.labels.get("kv_cache_size_tokens", "None") for sample in samples]
        if "None" in own:
            tokens = max([int(x.labels["block_size"]) * int(x.labels["num_gpu_blocks"]) for x in samples])
        else:
            tokens = sum([int(text) for text in own])
    except (KeyError, ValueError):
        return None
    return tokens if tokens > 0 else None


def whole(value: object) -> int | None:
    """Returns a JSON value if it is a positive whole number, or None."""
    return value if type(value) is int and 0 < value < 2**53 else None


def count(value: object) -> float | None:
    """Returns a JSON value if it is a finite number of at least 0, or None."""
    return float(value) if type(value) in (int, float) and 0 <= value < 2**53 else None  # type: ignore[operator,arg-type]


def text(value: object) -> str | None:
    """Returns a JSON value if it is a non-empty text, truncated, or None."""
    return value[:200] if isinstance(value, str) and value else None


def flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def version_at(path: str) -> Document:
    return Document(path, lambda page: Facts(version=text(page.get("version"))))


def paused_at(path: str) -> Document:
    return Document(path, lambda page: Facts(paused=flag(page.get("is_paused"))), changes=True)


def sleeping_at(path: str) -> Document:
    return Document(path, lambda page: Facts(sleeping=flag(page.get("is_sleeping"))), changes=True)
