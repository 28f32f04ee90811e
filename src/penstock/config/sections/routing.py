"""Routing: the choice of an endpoint, sessions, and waiting for a preferred endpoint."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, PlainValidator

from penstock.config import values
from penstock.config.problems import Found, Refused, problem, show
from penstock.config.sections.locality import LmCacheSection
from penstock.config.sections.policies import RoutingName, traits
from penstock.config.sections.section import Section, setting
from penstock.core.values.request import PREFIX_CHUNK_BYTES
from penstock.core.values.settings import PASSED_MAX

NAMES_MAX = 16  # of clients' own; each is looked for in every request


def by_session(policy: str) -> bool:
    return traits(policy)[1]


def by_cache(policy: str) -> bool:
    return traits(policy)[0]


def _is_inf(value: object) -> bool:
    return value == math.inf or (isinstance(value, str) and value.strip().lower() in ("inf", ".inf", "infinity"))


def threshold(value: object) -> float:
    """Returns a number of requests, infinity for `inf`."""
    if _is_inf(value):
        return math.inf
    try:
        result = values.number(value)
    except Refused:
        result = 0.0
    if not result > 0:
        raise Refused(f"{show(value)}: expected `inf` or a number, more than 0")
    return result


def price_weight(value: object) -> float:
    """Returns a duration in seconds, infinity for `inf`."""
    return math.inf if _is_inf(value) else values.duration(value)


def write_price_weight(seconds: float) -> str:
    return "inf" if seconds == math.inf else values.write_duration(seconds)


cookie_name = values.matching(re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", re.ASCII), "a cookie's name")
field_name = values.matching(re.compile(r"[^\"\\\x00-\x1f]{1,128}"), "a field's name")
PriceWeight = Annotated[
    float, BeforeValidator(price_weight), values.ValueKind("`inf` or a duration", write_price_weight)
]
Threshold = Annotated[float, PlainValidator(threshold), values.ValueKind("`inf` or a number, more than 0")]
OptionalHeader = Annotated[
    str | None, BeforeValidator(values.optional(values.header_name)), values.ValueKind("header name")
]
OptionalCookie = Annotated[str | None, BeforeValidator(values.optional(cookie_name)), values.ValueKind("cookie name")]
OptionalField = Annotated[str | None, BeforeValidator(values.optional(field_name)), values.ValueKind("field name")]


class SessionName(Section):
    """A name by which clients tell a session, beside those that are known (docs/sessions.md): a header or a field."""

    header: OptionalHeader = setting(None, "A header.")
    body: OptionalField = setting(None, "Instead: a top-level field of the body, text or number.")
    parent: OptionalField = setting(
        None,
        "A header, or a field if that is one, which names the session above in requests of sub-agents. They count for "
        "that session.",
    )


class SessionSection(Section):
    """How a request names its session: the first of these that it has.

    Routing uses header, cookie and body with `policy: session`. Sessions of agents are known by these and `names`, by
    the names of common clients, and by their prompts (docs/sessions.md).
    """

    header: OptionalHeader = setting("x-session-id", "A header.")
    cookie: OptionalCookie = setting(None, "A cookie.")
    body: OptionalField = setting(None, "A top-level field of the body, text or number.")
    strict: values.Bool = setting(
        default=False,
        meaning=(
            "With `policy: session`: a session stays with its endpoint as long as that is alive. `false`: it moves "
            "after `affinity_wait`."
        ),
    )
    names: Annotated[tuple[SessionName, ...], BeforeValidator(values.items(0, NAMES_MAX))] = ()


def _off(value: Any) -> Any:
    return "off" if value is False else value


class SessionsSection(Section):
    """Agents' sessions before the engines' KV memory. See docs/sessions.md."""

    memory: Annotated[Literal["auto", "off"], BeforeValidator(_off)] = setting(
        "auto",
        "`auto`: once the contexts of all sessions exceed the engines' KV memory, new and paused sessions wait until "
        "theirs fits, fairly between tenants. Needs endpoints that report their memory, or `endpoints[].kv_tokens`.",
    )
    wait: values.Duration = setting(
        300.0,
        "How long a session waits, as a rule. Then it takes the place of one that had its turns; short waits cost "
        "prompts that are computed again.",
        gt=0,
    )


class RoutingSection(Section):
    """The choice among endpoints with room."""

    removed: ClassVar[dict[str, str]] = {
        "prefix_group_tokens": "delete it: a prompt is cached if most of what it does not share with others is",
    }
    policy: RoutingName = setting("predicted_ttft", "The routing policy; see docs/policies.")
    session: SessionSection = SessionSection()
    adapter_affinity: values.Bool = setting(
        default=True,
        meaning=(
            "Prefer endpoints that have a request's LoRA adapter in memory, as with a cached prefix, because loading "
            "takes about a second. Only with policies that use cached prefixes."
        ),
    )
    affinity_escape: values.Duration = setting(
        2.0,
        "With `policy: predicted_ttft`: how much later the first token of an endpoint with the prompt's prefix may "
        "come, before another one is chosen.",
        ge=0,
    )
    affinity_wait: values.AffinityWait = setting(
        "auto",
        "How long a request waits for the endpoint of its session or prefix while another one is open. `auto`: with "
        "`policy: predicted_ttft` as long as that costs queued requests less than recomputing its prompt "
        "(docs/policies); otherwise 0.",
    )
    prefix_group: values.Whole = setting(
        PASSED_MAX,
        "How often a queued request may be passed by others of its flow because their prompts are cached at the "
        "endpoint that has room. `0`: never.",
        ge=0,
        le=PASSED_MAX,
    )
    prefix_chunk: values.Whole = setting(
        PREFIX_CHUNK_BYTES,
        "Granularity of prefix matching, in bytes. A prompt is compared in chunks of this size, up to 500 chunks.",
        ge=64,
        le=4096,
    )
    price_weight: PriceWeight = setting(
        math.inf,
        "How much later a first token may come per unit that an endpoint is cheaper (`endpoints[].price`), waiting "
        "for a slot there included (docs/spill.md). `inf`: the cheapest open endpoint. `0`: ignore prices. Others: "
        "only with `policy: predicted_ttft`.",
        ge=0,
    )
    imbalance_threshold: Threshold = setting(
        math.inf,
        "With `policy: load_balanced_kv`: if the longest and the shortest queue (running and waiting requests) differ "
        "by this, the least loaded endpoint gets the request. `inf`: never.",
    )
    locality: Literal["history", "kv_events", "lmcache"] = setting(
        "history",
        "The source of cached prefixes: our history, the engines' KV events, or LMCache. History is the fallback.",
    )
    divide_from: values.Whole = setting(
        0,
        "With endpoints labelled `role: prefill` and `role: decode`: prompts of at least this many estimated tokens "
        "use both; shorter ones only a decode endpoint.",
        ge=0,
    )
    lmcache: LmCacheSection = LmCacheSection()


def routing_checks(routing: RoutingSection, max_wait_s: float) -> Found:
    """Yields settings that have no effect, or contradict each other."""
    policy, session, usual = routing.policy, routing.session, RoutingSection()
    if policy == "session" and session.header is None and session.cookie is None and session.body is None:
        yield problem(
            ("routing", "session"),
            "names no source of a session",
            "give a header, a cookie or a field of the body",
        )
    if session.strict and policy != "session":
        yield problem(
            ("routing", "session", "strict"), f"means nothing with `policy: {policy}`", "write `policy: session`"
        )
    if session.names:
        from penstock.config.sections.session_names import names_checks  # noqa: PLC0415 - few settings have any

        yield from names_checks(session.names)
    if routing.affinity_escape != usual.affinity_escape and policy != "predicted_ttft":
        yield problem(
            ("routing", "affinity_escape"), f"means nothing with `policy: {policy}`", "write `policy: predicted_ttft`"
        )
    if routing.price_weight not in (0.0, math.inf) and policy != "predicted_ttft":
        message = f"`{policy}` compares no times: with it only `inf` and `0` mean something"
        yield problem(("routing", "price_weight"), message, "write `policy: predicted_ttft`")
    if routing.imbalance_threshold != math.inf and policy != "load_balanced_kv":
        yield problem(
            ("routing", "imbalance_threshold"),
            f"means nothing with `policy: {policy}`",
            "write `policy: load_balanced_kv`",
        )
    yield from _of_caches(routing)
    wait_s = 0.0 if routing.affinity_wait == "auto" else routing.affinity_wait
    if wait_s > 0 and not any(traits(policy)):
        yield problem(("routing", "affinity_wait"), f"means nothing with `policy: {policy}`, which prefers no endpoint")
    if wait_s > 0 and session.strict:
        yield problem(
            ("routing", "affinity_wait"), "means nothing with `session.strict`, which waits for as long as it takes"
        )
    if wait_s > 0 and wait_s >= max_wait_s:
        message = f"is not shorter than `queue.max_wait` (`{values.write_duration(max_wait_s)}`)"
        yield problem(("routing", "affinity_wait"), message)


def _of_caches(routing: RoutingSection) -> Found:
    policy = routing.policy
    if routing.locality != "history" and policy == "prefix":
        yield problem(("routing", "locality"), "`prefix` goes by our own history alone", "write `policy: kv`")
    elif routing.locality != "history" and not by_cache(policy):
        yield problem(("routing", "locality"), f"`{policy}` does not use cached prefixes", "write `policy: kv`")
    if routing.prefix_group not in (0, PASSED_MAX) and not by_cache(policy):
        yield problem(("routing", "prefix_group"), f"means nothing with `policy: {policy}`, which compares no prompts")
    if routing.prefix_chunk != PREFIX_CHUNK_BYTES and not by_cache(policy):
        yield problem(("routing", "prefix_chunk"), f"means nothing with `policy: {policy}`, which compares no prompts")
