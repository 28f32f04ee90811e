"""Checks for contradictions between valid settings.

Each check runs if the parts it needs are valid, so that all errors are reported at once. Messages show values of the
document as written, because it still knows which text came out of a variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from penstock.config import values
from penstock.config.address import UNIX, is_own, same_place, socket_address, split_listen
from penstock.config.model import (
    DEFAULT_BANDS,
    BandSection,
    EndpointSection,
    HealthSection,
    LimitsSection,
    Observe,
    Queue,
    Settings,
    Tls,
    numbers_of,
)
from penstock.config.problems import (
    Document,
    Filled,
    Found,
    Location,
    Problem,
    Refused,
    did_you_mean,
    items_of,
    mapping_of,
    missing_extra,
    problem,
    show,
    unreadable,
    write_path,
    written_at,
)
from penstock.config.sections.batch import BatchSection, store_checks
from penstock.config.sections.clients import ANY_ORIGIN, CorsSection, epp_checks
from penstock.config.sections.discovery import discovery_checks, tls_checks
from penstock.config.sections.locality import locality_checks
from penstock.config.sections.models import ModelPrices, ModelSection, model_prices
from penstock.config.sections.operation import Admin, Tracing
from penstock.config.sections.routing import RoutingSection, routing_checks
from penstock.config.sections.section import Section
from penstock.config.sections.share import share_checks
from penstock.config.sections.tenancy import (
    ANONYMOUS,
    KEY_HEADERS,
    NAMES_WITHOUT_KEYS,
    FairnessSection,
    Identity,
    OwnLimits,
    PricesSection,
    Tenant,
)

S = TypeVar("S", bound=Section)
LISTEN = Settings.model_fields["listen"].default


def cross_checks(document: Document) -> Found:
    for check in _CHECKS:
        yield from check(document)


def _items(section: type[S], raw: object) -> list[S | None]:
    return [section.valid(item) for item in items_of(raw)]


def _admin(document: Document) -> Found:
    admin = Admin.valid(document.get("admin") or {})
    if admin is not None and admin.read_token is not None and admin.read_token == admin.token:
        yield problem(("admin", "read_token"), "is the same as `admin.token`, so readers could change everything")
    names: set[str] = set()
    tokens = set() if admin is None else {admin.token, admin.read_token}
    for at, operator in enumerate(() if admin is None else admin.operators):
        if operator.name in names:
            yield problem(("admin", "operators", at, "name"), f"{operator.name!r} is given twice")
        if operator.token in tokens:
            yield problem(("admin", "operators", at, "token"), "is another one's too, so nobody knows whose it is")
        names.add(operator.name)
        tokens.add(operator.token)
    if admin is not None and admin.listen is not None:
        host, port = split_listen(admin.listen)
        try:
            other_host, other = split_listen(socket_address(written_at(document, ("listen",)) or LISTEN))
        except Refused:
            return
        everywhere = ("", "0.0.0.0", "::")
        one_port = port == other != 0 and (host == other_host or host in everywhere or other_host in everywhere)
        if one_port or (host == other_host and host.startswith(UNIX)):
            yield problem(("admin", "listen"), "is the same address as `listen`", "give it one of its own")


def _beyond_others(document: Document) -> Found:
    """Settings that another one makes pointless, so one of them is a mistake."""
    queue, limits = Queue.valid(document.get("queue")), LimitsSection.valid(document.get("limits"))
    batch = BatchSection.valid(document.get("batch"))
    raw = document.get("bands")
    for index, band in enumerate(_items(BandSection, raw)):
        if band is None or band.deadline is None or queue is None:
            continue
        max_wait, setting = (queue.max_wait, "queue.max_wait") if band.max_wait is None else (band.max_wait, "max_wait")
        if band.deadline > max_wait:
            message = f"is longer than `{setting}` (`{values.write_duration(max_wait)}`), so no request waits for it"
            yield problem(("bands", index, "deadline"), message, "shorten it, or raise `max_wait` of the band")
    if limits is None:
        return
    if batch is not None and batch.serve and batch.limits.max_line > limits.max_body:
        line: Location = ("batch", "limits", "max_line")
        if written_at(document, line) is not None or written_at(document, ("limits", "max_body")) is not None:
            message = "is more than `limits.max_body`, so such a line would be taken and its request refused"
            yield problem(line, message, "lower it, or raise `limits.max_body`")
    if (one := limits.max_connections_per_address) is not None and one > limits.max_connections:
        message = f"is more than `limits.max_connections` ({limits.max_connections})"
        yield problem(("limits", "max_connections_per_address"), message, "lower it, or leave it out")
    for index, tenant in enumerate(_items(Tenant, document.get("tenants"))):
        for at, rates in () if tenant is None else _limits_of(tenant):
            if rates.tokens_per_minute is None or rates.tokens_per_day is None:
                continue
            if rates.tokens_per_minute > rates.tokens_per_day:
                where: Location = ("tenants", index, *at, "tokens_per_minute")
                yield problem(where, "is more than `tokens_per_day`", "lower it, or leave it out")


def _limits_of(tenant: Tenant) -> Iterator[tuple[Location, OwnLimits]]:
    """Yields the limits of a tenant, its models and its keys, with their places in it."""
    yield ("limits",), tenant.limits
    for model, limits in tenant.limits.models.items():
        yield ("limits", "models", model), limits
    for n, key in enumerate(tenant.keys):
        yield ("keys", n, "limits"), key.limits


def _cors(document: Document) -> Found:
    cors, identity = CorsSection.valid(document.get("cors")), Identity.valid(document.get("identity") or {})
    if cors is None or identity is None or ANY_ORIGIN not in cors.origins:
        return
    at: Location = ("cors", "origins", cors.origins.index(ANY_ORIGIN))
    if not identity.require_key:
        message = "lets every web page use the gateway, which asks for no key"
        yield problem(at, message, "list the origins, or set `identity.require_key`")
    elif len(cors.origins) > 1:
        yield problem(at, "has no effect beside other origins", "give `*` alone, or leave it out")


def _extras(document: Document) -> Found:
    if written_at(document, ("identity", "jwt")) is not None:
        needs = "tokens need PyJWT with `cryptography`"
        yield from missing_extra(("identity", "jwt"), needs, "jwt", "jwt", "cryptography")
    tracing = Tracing.valid(document.get("tracing") or {})
    if tracing is not None and tracing.endpoint is not None:
        modules = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        yield from missing_extra(("tracing", "endpoint"), "traces need OpenTelemetry", "otel", *modules)


def _tls(document: Document) -> Found:
    tls = Tls.valid(document.get("tls"))
    if tls is None:
        return
    for key, other, path in (("cert", "key", tls.cert), ("key", "cert", tls.key)):
        if path is None and getattr(tls, other) is not None:
            yield problem(("tls", key), f"is missing, but `tls.{other}` is given", "HTTPS needs both")
        yield from unreadable(document, ("tls", key), path)


def _endpoints(document: Document) -> Found:
    try:
        listen = socket_address(written_at(document, ("listen",)) or LISTEN)
    except Refused:
        listen = ""
    urls: dict[tuple[str, str], int] = {}
    names: dict[str, int] = {}
    for index, endpoint in enumerate(_items(EndpointSection, document.get("endpoints"))):
        if endpoint is None:
            continue
        place = same_place(endpoint.url)
        if place in urls:
            message = f"is the same as that of endpoints[{urls[place]}]"
            yield problem(("endpoints", index, "url"), message, "leave one of them out")
        elif endpoint.name in names:
            message = f"is the same as that of endpoints[{names[endpoint.name]}]"
            yield problem(("endpoints", index, "name"), message, "give each a `name` of its own")
        if listen and is_own(endpoint.url, listen):
            message = "is this gateway's own address (`listen`), so requests would go round in circles"
            yield problem(("endpoints", index, "url"), message, "give the engine's address")
        if endpoint.url.startswith(UNIX) and mapping_of(document.get("epp")).get("listen"):
            message = "is a unix socket, which the proxies that ask at `epp.listen` can't reach"
            yield problem(("endpoints", index, "url"), message, "let the engine listen on a port")
        yield from tls_checks(endpoint.tls, ("endpoints", index), is_https=endpoint.url.startswith("https:"))
        urls.setdefault(place, index)
        names.setdefault(endpoint.name, index)


def _paths(document: Document) -> Found:
    if document.get("paths"):
        from penstock.config.path_checks import paths_checks  # noqa: PLC0415 - few gateways add paths

        yield from paths_checks(document)


def _models(document: Document) -> Found:
    models = mapping_of(document.get("models"))
    listed: dict[str, int] = {}
    for index, endpoint in enumerate(_items(EndpointSection, document.get("endpoints"))):
        if endpoint is not None and endpoint.models != "auto":
            listed |= dict.fromkeys((model for model in endpoint.models if model not in listed), index)
    fairness = FairnessSection.valid(document.get("fairness"))
    known = {name: model for name, raw in models.items() if (model := ModelSection.valid(raw)) is not None}
    for name, model in known.items():
        if model.says_nothing:
            yield problem(
                ("models", name), "says nothing", "give `to`, `split`, `band`, `weight`, `prices` or `fallback`"
            )
        if model.to is not None and name in listed:
            message = f"an alias cannot have the name of a model that endpoints[{listed[name]}] lists"
            yield problem(("models", name), message)
        if model.to is not None and (other := known.get(model.to)) is not None and (other.to or other.split):
            shown = show(written_at(models[name], ("to",)))
            yield problem(("models", name, "to"), f"{shown} is itself an alias or a split", "name the engine's model")
        yield from _split(name, known)
        yield from _fallback(name, known, listed if _all_listed(document) else None)
        if model.weight is not None and fairness is not None and "model" not in fairness.levels:
            message = "divides nothing: `fairness.levels` does not name `model`"
            yield problem(("models", name, "weight"), message, "write `levels: [tenant, model]`")
        if fairness is None or model.prices == ModelPrices():
            continue
        if _policies(document) in ({"round_robin"}, {"fcfs"}, {"round_robin", "fcfs"}):
            message = f"mean nothing with `fairness.policy: {fairness.policy}`, which counts no tokens"
            yield problem(("models", name, "prices"), message, "write `policy: weighted_tokens`")
        if not any(model_prices(model, fairness.prices).values()):
            yield problem(("models", name, "prices"), "are all 0: at least one kind of token has to cost something")


def _split(name: str, known: Mapping[str, ModelSection]) -> Found:
    model, at = known[name], ("models", name, "split")
    if model.split and model.to is not None:
        yield problem(at, "is given beside `to`", "give one of them")
    if model.split and not any(model.split.values()):
        yield problem(at, "gives no model a share: at least one number has to be more than 0")
    for other in model.split:
        if other != name and other in known and (known[other].to is not None or known[other].split):
            yield problem((*at, other), "is itself an alias or a split", "name the engines' models")


def _fallback(name: str, known: Mapping[str, ModelSection], served: Mapping[str, int] | None) -> Found:
    """`served`: the models that endpoints list; None if some are only known at runtime."""

    def meant(model: str) -> str:
        return (known[model].to or model) if model in known else model

    asked = {meant(name): name}
    for n, other in enumerate(known[name].fallback):
        location = ("models", name, "fallback", n)
        if meant(other) == meant(name):
            yield problem(location, f"{show(other)} is the model itself", "name another one")
        elif meant(other) in asked:
            yield problem(location, f"{show(other)} is asked before already, as {show(asked[meant(other)])}")
        elif served is not None and meant(other) not in served:
            hint = did_you_mean(other, [*served, *known])
            yield problem(
                location, f"{show(other)} is neither a model that an endpoint lists nor an alias of one", hint
            )
        asked.setdefault(meant(other), other)


def _all_listed(document: Document) -> bool:
    """Whether the settings list the models of all endpoints, so that no other can appear."""
    endpoints = _items(EndpointSection, document.get("endpoints"))
    listed = all(endpoint is not None and endpoint.models != "auto" for endpoint in endpoints)
    return bool(endpoints) and listed and not document.get("discovery")


def _bands(document: Document) -> Found:
    raw = document.get("bands")
    bands = list(DEFAULT_BANDS) if raw is None else _items(BandSection, raw)
    names: dict[str, int] = {}
    for index, band in enumerate(bands):
        if band is None:
            continue
        if band.name in names:
            yield problem(("bands", index, "name"), f"is the same as that of bands[{names[band.name]}]")
        if band.shed_target is not None and not band.best_effort:
            message = "sheds requests, and this band is not for best effort"
            yield problem(("bands", index, "shed_target"), message, "set `best_effort: true` too, or leave it out")
        names.setdefault(band.name, index)
    if not bands or None in bands:
        return  # an invalid band may have a misspelled name
    numbers = numbers_of([band for band in bands if band is not None], _default_band(document))
    for index in range(1, len(bands)):
        if numbers[index] >= numbers[index - 1]:
            message = f"makes it {numbers[index]}, not less than the {numbers[index - 1]} of the band before it"
            yield problem(("bands", index, "priority"), message, "give the bands numbers that fall")
    locations: list[Location] = [("default_band",), ("identity", "max_band")]
    locations += [("tenants", n, "max_band") for n in range(len(items_of(document.get("tenants"))))]
    locations += [("models", name, "band") for name in mapping_of(document.get("models"))]
    for location in locations:
        written = written_at(document, location)
        if written in (None, "") and location != ("default_band",):
            continue
        wanted = Settings.model_fields["default_band"].default if written is None else written
        if not isinstance(wanted, str) or wanted in names or not _is_band_name(wanted):
            continue
        hint = None if isinstance(wanted, Filled) else did_you_mean(wanted, list(names))
        by_default = "by default " if written is None else ""
        if written is None and (usual := next(iter(names.keys() & {band.name for band in DEFAULT_BANDS}), None)):
            hint = f"a list replaces all bands; to change one and keep the others, write `bands: {{{usual}: {{…}}}}`"
        yield problem(location, f"is {by_default}{show(wanted)}, which is none of the bands ({', '.join(names)})", hint)


def _default_band(document: Document) -> str:
    written = document.get("default_band")
    return written if isinstance(written, str) else str(Settings.model_fields["default_band"].default)


def _min_shares(document: Document) -> Found:
    total = 0.0
    for index, band in enumerate(_items(BandSection, document.get("bands"))):
        if band is not None and band.min_share > band.ceiling:
            message = f"is more than the band's `ceiling` ({band.ceiling:g}) lets it have of any endpoint"
            yield problem(("bands", index, "min_share"), message, "lower it, or raise `ceiling`")
        total += 0.0 if band is None else band.min_share
        if total >= 1:
            message = "with those before it, the minimum shares reach 1; expected less than 1 over all bands"
            yield problem(("bands", index, "min_share"), message)
            return


def _fairness(document: Document) -> Found:
    raw = document.get("fairness")
    fairness = FairnessSection.valid({"levels": written_at(raw, ("levels",))})
    levels = () if fairness is None else fairness.levels
    for index, level in enumerate(levels):
        if levels.index(level) < index:
            message = f"is the same as fairness.levels[{levels.index(level)}]"
            yield problem(("fairness", "levels", index), message, "name each level once")
    policy = FairnessSection.valid(raw)
    if policy is not None and written_at(raw, ("levels",)) is not None and _policies(document) == {"fcfs"}:
        message = "divides nothing: with `policy: fcfs` all requests stand in one line"
        yield problem(("fairness", "levels"), message, "write `policy: weighted_tokens`, or leave it out")
    prices = PricesSection.valid(written_at(raw, ("prices",)))
    if prices is not None and not any((prices.prompt, prices.cached_prompt, prices.completion)):
        yield problem(("fairness", "prices"), "are all 0: at least one kind of token has to cost something")


def _policies(document: Document) -> set[str] | None:
    """Returns the fairness policies in use; None if some are invalid, which another check reports."""
    fairness = FairnessSection.valid(document.get("fairness"))
    raw = document.get("bands")
    bands = list(DEFAULT_BANDS) if raw is None else _items(BandSection, raw)
    if fairness is None or None in bands:
        return None
    return {band.fairness.policy or fairness.policy for band in bands if band is not None}


def _tenants(document: Document) -> Found:
    tenants = _items(Tenant, document.get("tenants"))
    names: dict[str, int] = {}
    keys: dict[str, str] = {}
    key_names: dict[str, str] = {}
    models = {name: ModelSection.valid(raw) for name, raw in mapping_of(document.get("models")).items()}
    aliases = {name: model.to for name, model in models.items() if model is not None and model.to is not None}
    for index, tenant in enumerate(tenants):
        if tenant is None:
            continue
        if tenant.name in names:
            yield problem(("tenants", index, "name"), f"is the same as that of tenants[{names[tenant.name]}]")
        names.setdefault(tenant.name, index)
        if tenant.keys and tenant.name in NAMES_WITHOUT_KEYS:
            yield problem(("tenants", index, "keys"), f"`{tenant.name}` stands for clients without a key")
        for model in tenant.limits.models:
            if (alias := aliases.get(model)) is not None:
                message = f"is an alias of `{alias}`: limits are those of an engine's model, under all its names"
                yield problem(("tenants", index, "limits", "models", model), message, f"write `{alias}`")
        for n, key in enumerate(tenant.keys):
            at = ("tenants", index, "keys", n)
            if key.hash in keys:
                yield problem(at, f"is the same as {keys[key.hash]}", "a key has one tenant")
            keys.setdefault(key.hash, write_path(at))
            if key.name and key.name in key_names:
                yield problem((*at, "name"), f"is the same as that of {key_names[key.name]}")
            key_names.setdefault(key.name, write_path(at))
    if ANONYMOUS in names and written_at(document, ("identity", "anonymous")) is not None:
        message = f"is given twice, as tenants[{names[ANONYMOUS]}] too"
        yield problem(("identity", "anonymous"), message, "give it once")
    identity = Identity.valid(document.get("identity"))
    other_keys = identity is not None and (identity.made_keys or identity.jwt is not None)
    if identity is not None and identity.require_key and not keys and not other_keys and None not in tenants:
        message = "no tenant has a key, so no client could be served"
        yield problem(("identity", "require_key"), message, "`penstock keys new NAME` makes one")


def _identity(document: Document) -> Found:
    identity = Identity.valid(document.get("identity"))
    if identity is None:
        return
    for key in ("tenant_header", "user_header", "band_header"):
        if getattr(identity, key) in (*KEY_HEADERS, "cookie"):
            shown = show(written_at(document, ("identity", key)))
            yield problem(("identity", key), f"{shown} carries secrets, and names are shown and logged")


def _is_band_name(value: str) -> bool:
    try:
        values.band_name(value)
    except Refused:
        return False
    return True


def _routing(document: Document) -> Found:
    routing, queue = RoutingSection.valid(document.get("routing")), Queue.valid(document.get("queue"))
    if routing is not None and queue is not None:
        yield from routing_checks(routing, queue.max_wait)


def _intervals(document: Document) -> Found:
    health, observe = HealthSection.valid(document.get("health")), Observe.valid(document.get("observe"))
    if health is not None and health.eject_for > health.eject_for_max:
        yield _longer(document, "health", "eject_for", "eject_for_max", health)
    if observe is not None and observe.fast_interval > observe.interval:
        yield _longer(document, "observe", "fast_interval", "interval", observe)


def _longer(document: Document, section: str, key: str, limit: str, parts: Section) -> tuple[Location, Problem]:
    """Returns the problem, at whichever of the two settings was written. A default is shown as a duration."""

    def shown(name: str) -> str:
        raw = written_at(document, (section, name))
        return show(values.write_duration(getattr(parts, name)) if raw is None else raw)

    at = key if written_at(document, (section, key)) is not None else limit
    return problem((section, at), f"`{key}` ({shown(key)}) is longer than `{limit}` ({shown(limit)})")


_CHECKS = (
    *(_tls, _endpoints, discovery_checks, _models, _paths, _bands, _min_shares, _fairness, _identity, _extras),
    *(_tenants, _routing, _intervals, locality_checks, store_checks, share_checks, _admin, _cors),
    *(_beyond_others, epp_checks),
)
