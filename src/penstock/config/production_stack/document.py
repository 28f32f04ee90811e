"""From flags to settings.

Problems are collected, not raised, so that they are reported together with those of the settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from penstock.config.layers import merge_texts
from penstock.config.load import built
from penstock.config.model import DEFAULT_BANDS, Settings
from penstock.config.problems import ConfigError, Location, Problem, listing, show
from penstock.config.production_stack.command_line import Given, Words, read
from penstock.config.production_stack.files import Provider, dynamic_config, providers
from penstock.config.production_stack.flags import BY_NAME, DIVIDED, LOG_LEVELS, PREFER, ROUTING, SESSIONS, Fate
from penstock.config.production_stack.text import FromEnvironment, write

ENGINE_KEY = "VLLM_API_KEY"
TENANT = "vllm"  # of clients with that key
MODEL_LABEL = "model"  # of pods, by which their chart distinguishes engines
PREFIX_BYTES = 128  # their chunk size, in characters
AFFINITY_WAIT = "2s"  # for the endpoint of a session or prefix: about the time to recompute a long prompt
GRPC_PORT, HTTP_PORT = 4317, 4318  # OTLP's
_GATES = ("SemanticCache", "PIIDetection")


class RouterFlags(msgspec.Struct):
    """A command line of theirs as settings."""

    said: dict[str, object] = {}  #: by flags; above the environment
    usual: dict[str, object] = {}  #: defaults; below the environment
    origins: dict[Location, str] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    environment: dict[str, str] = {}  #: variables to set, if unset
    log_level: str = "info"
    follows: str | None = None  #: a file that is read again when it changes
    own: set[str] = set()

    @property
    def document(self) -> dict[str, object]:
        return _over(self.usual, self.said)


def router(words: Sequence[str], env: Mapping[str, str]) -> RouterFlags:
    """Returns settings for `words`, with problems and warnings."""
    line = read(words)
    made = RouterFlags(own=line.own, problems=list(line.problems))
    _Making(made, _with_file(made, line), env).make()
    return made


def load_router(flags: RouterFlags, env: Mapping[str, str]) -> Settings:
    """Returns the settings of production-stack's flags above the environment above its defaults. Raises `ConfigError`
    with all problems, the flags' own first.
    """
    problems = list(flags.problems)
    settings = None
    try:
        settings = built(merge_texts(write(flags.usual), write(flags.said), flags.origins, env))
    except ConfigError as error:
        problems += error.problems
    if problems or settings is None:
        raise ConfigError(problems)
    return settings


def _with_file(made: RouterFlags, line: Words) -> dict[str, Given]:
    """Returns the flags, merged over those of the dynamic config."""
    named = [line.given[name] for name in ("--dynamic-config-yaml", "--dynamic-config-json") if name in line.given]
    if len(named) > 1:
        made.problems.append(Problem("--dynamic-config-json", "conflicts with --dynamic-config-yaml", "give one"))
    if not named:
        return line.given
    made.follows = named[0].text
    found = dynamic_config(named[0].text)
    made.problems += found.problems
    if both := sorted(found.given.keys() & line.given.keys()):
        said = listing(both).replace(" or ", " and ")
        made.warnings.append(f"what {named[0].text} says of {said} is not followed: the command line says it, too")
    return {**found.given, **line.given}


class _Making:
    """Puts one document together, flag by flag."""

    def __init__(self, made: RouterFlags, given: Mapping[str, Given], env: Mapping[str, str]) -> None:
        self._made = made
        self._given = given
        self._env = env
        self._routing = self._said("--routing-logic")

    def make(self) -> None:
        self._warn_of_what_means_nothing()
        self._server()
        self._endpoints()
        self._credentials()
        self._where()
        self._queue()
        self._beside()
        self._told()

    # --- one flag -------------------------------------------------------------------------------------------------

    def _said(self, name: str) -> str | None:
        assert name in BY_NAME, name
        given = self._given.get(name)
        return None if given is None else given.text

    def _whole(self, name: str) -> int | None:
        """Returns a flag's number; None if it is unset or, as reported, not a number."""
        text = self._said(name)
        return int(text) if text is not None and text.strip().isdecimal() else None

    def _origin(self, name: str) -> str:
        given = self._given.get(name)
        return name if given is None else given.origin

    def _put(self, location: tuple[str, ...], *flags: str, value: object) -> None:
        """Set one setting. Its origin is the first of the flags that was given; if none was, it is a default."""
        given = [self._origin(flag) for flag in flags if flag in self._given or flag == ENGINE_KEY]
        at = self._made.said if given else self._made.usual
        for key in location[:-1]:
            below = at.setdefault(key, {})
            assert isinstance(below, dict)
            at = below
        at[location[-1]] = value
        if given:
            self._made.origins[location] = given[0]

    def _wrong(self, name: str, message: str, suggestion: str | None = None) -> None:
        self._made.problems.append(Problem(self._origin(name), message, suggestion))

    def _warn(self, name: str, message: str) -> None:
        self._made.warnings.append(f"{self._origin(name)} {message}")

    def _list(self, name: str) -> list[str]:
        text = self._said(name)
        return [] if text is None else [part.strip() for part in text.split(",")]

    def _warn_of_what_means_nothing(self) -> None:
        """Flags with one reason make one line."""
        reasons: dict[str, list[str]] = {}
        for given in self._given.values():
            if given.flag.fate is Fate.NOTHING:
                reasons.setdefault(given.flag.why, []).append(given.origin)
        for why, origins in reasons.items():
            verb = "means" if len(origins) == 1 else "mean"
            self._made.warnings.append(f"{listing(origins).replace(' or ', ' and ')} {verb} nothing here: {why}")

    # --- the server -----------------------------------------------------------------------------------------------

    def _server(self) -> None:
        host, port = self._said("--host") or "0.0.0.0", self._said("--port") or "8001"
        self._put(("listen",), "--port", "--host", value=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if root := (self._said("--root-path") or "").rstrip("/"):
            self._put(("root_path",), "--root-path", value=root)
        if (form := self._said("--log-format")) is not None:
            self._put(("log", "format"), "--log-format", value=form)
        self._put(("log", "routing"), value=True)
        self._put(("metrics", "aliases"), value=["vllm_router", "production_stack"])
        self._made.log_level = LOG_LEVELS.get(self._said("--log-level") or "info", "info")

    # --- engines --------------------------------------------------------------------------------------------------

    def _endpoints(self) -> None:
        external = self._said("--external-providers-config")
        discovery = self._said("--service-discovery") or ("external-only" if external else None)
        found: list[Provider] = []
        endpoints: list[dict[str, object]] = []
        if external is not None:
            found, warnings, problems = providers(external)
            self._made.warnings += warnings
            self._made.problems += problems
        if discovery is None:
            self._wrong("--service-discovery", "is required", "static, k8s, or --external-providers-config FILE")
        elif discovery == "static":
            endpoints = self._static()
        elif discovery == "k8s":
            self._kubernetes()
        elif external is None:
            self._wrong("--external-providers-config", "is required with --service-discovery external-only")
        self._out_of_place(discovery)
        if endpoints or found:
            self._put(
                ("endpoints",),
                "--static-backends",
                "--external-providers-config",
                value=endpoints + [_hosted(provider) for provider in found],
            )
            for index in range(len(endpoints), len(endpoints) + len(found)):
                self._made.origins["endpoints", index] = external or ""
        self._aliases(found)

    def _out_of_place(self, discovery: str | None) -> None:
        """Flags of another kind of discovery than the one that was chosen."""
        for name in ("--static-backends", "--static-models"):
            if discovery not in (None, "static") and name in self._given:
                self._wrong(name, f"is given, but --service-discovery is {discovery}")
        for name in ("--k8s-label-selector", "--k8s-namespace", "--k8s-port", "--k8s-service-discovery-type"):
            if discovery not in (None, "k8s") and name in self._given:
                self._warn(name, "means nothing here: --service-discovery is not k8s")

    def _credentials(self) -> None:
        if self._key:
            self._put(("tenants",), ENGINE_KEY, value=[{"name": TENANT, "keys": [_hash(self._env[ENGINE_KEY])]}])
            self._put(("identity", "require_key"), ENGINE_KEY, value=True)

    @property
    def _key(self) -> dict[str, object]:
        """The engines' credential. Clients have to present it too; otherwise it would serve everybody."""
        return {"api_key": FromEnvironment(ENGINE_KEY)} if self._env.get(ENGINE_KEY) else {}

    @property
    def _slots(self) -> dict[str, object]:
        slots = self._whole("--max-running-requests")
        return {} if slots is None else {"slots": slots}

    def _static(self) -> list[dict[str, object]]:
        urls, models = self._list("--static-backends"), self._list("--static-models")
        for name, said in (("--static-backends", urls), ("--static-models", models)):
            if not said:
                self._wrong(name, "is required with --service-discovery static")
            elif "" in said:
                self._wrong(name, f"{show(self._said(name))} has an empty part")
        for name in ("--static-models", "--static-model-labels", "--static-model-types"):
            listed = self._list(name)
            if listed and urls and len(listed) != len(urls):
                message = f"names {len(listed)} for {len(urls)} backends"
                self._wrong(name, message, "one for each, in the same order")
        labels = self._list("--static-model-labels")
        endpoints: dict[str, dict[str, object]] = {}
        for index, url in enumerate(urls):
            endpoint = endpoints.setdefault(url.rstrip("/"), {"url": url.rstrip("/"), "models": [], **self._key})
            served = endpoint["models"]
            assert isinstance(served, list)
            served += [model for model in models[index : index + 1] if model not in served]
            if label := next(iter(labels[index : index + 1]), ""):
                role = self._roles().get(label)
                endpoint["labels"] = {MODEL_LABEL: label, **({"role": role} if role else {})}
        if self._routing in DIVIDED and labels:
            for role, flag in (("prefill", "--prefill-model-labels"), ("decode", "--decode-model-labels")):
                if role not in {self._roles().get(label) for label in labels}:
                    self._wrong(flag, "names none of --static-model-labels", "no engine would have that role")
        elif self._routing in DIVIDED:
            self._wrong("--static-model-labels", f"is required with --routing-logic {self._routing}")
        for endpoint in endpoints.values():
            endpoint["models"] = endpoint["models"] or "auto"  # a missing one was reported
            endpoint.update(self._slots)
        return list(endpoints.values())

    def _roles(self) -> dict[str, str]:
        """Returns the role of each label, with disaggregated prefill."""
        if self._routing not in DIVIDED:
            return {}
        prefill, decode = self._list("--prefill-model-labels"), self._list("--decode-model-labels")
        return {**dict.fromkeys(prefill, "prefill"), **dict.fromkeys(decode, "decode")}

    def _kubernetes(self) -> None:
        selector = (self._said("--k8s-label-selector") or "").strip()
        if not selector:
            message = "is required with --service-discovery k8s: without it every pod there is would be an engine"
            self._wrong("--k8s-label-selector", message, "for example app=vllm")
            return
        usual: dict[str, object] = {
            "namespace": self._said("--k8s-namespace") or "default",
            "port": self._said("--k8s-port") or "8000",
            "copy_labels": [MODEL_LABEL],
            **self._slots,
            **self._key,
        }
        sources: list[dict[str, object]] = [{"selector": selector, **usual}]
        if self._routing in DIVIDED:
            sources = []
            for role in ("prefill", "decode"):
                labels = ",".join(label for label, its in self._roles().items() if its == role)
                own = {"selector": f"{selector},{MODEL_LABEL} in ({labels})", "labels": {"role": role}}
                sources.append({**own, **usual})
        self._put(("discovery",), "--k8s-label-selector", value=[{"kubernetes": source} for source in sources])
        for index in range(len(sources)):
            for key, flag in (("namespace", "--k8s-namespace"), ("port", "--k8s-port")):
                self._made.origins["discovery", index, "kubernetes", key] = self._origin(flag)

    def _aliases(self, found: Iterable[Provider]) -> None:
        for part in self._list("--static-aliases"):
            alias, colon, model = part.partition(":")
            if not (alias and colon and model):
                self._wrong("--static-aliases", f"{show(part)}: expected alias:model, with commas between")
                continue
            self._put(("models", alias), "--static-aliases", value={"to": model})
        for provider in found:
            for alias, model in provider.aliases.items():
                self._put(("models", alias), "--external-providers-config", value={"to": model})

    # --- routing --------------------------------------------------------------------------------------------------

    def _where(self) -> None:
        logic = self._routing
        if logic is None:
            self._wrong("--routing-logic", "is required", listing(list(ROUTING)))
            return
        if logic not in ROUTING:
            return  # already reported
        limit = self._said("--imbalanced-threshold")
        even = logic == "load_balanced_kvaware" and limit is not None and _is_zero(limit)
        self._put(("routing", "policy"), "--routing-logic", value="least_loaded" if even else ROUTING[logic])
        key = self._said("--session-key")
        if logic == "session" and key is None:
            self._wrong("--session-key", "is required with --routing-logic session", "for example x-user-id")
        if key is not None and logic in SESSIONS:
            self._put(("routing", "session"), "--session-key", value={"header": key.lower(), "body": key})
        elif key is not None:
            self._warn("--session-key", f"means nothing here: --routing-logic {logic} looks at no session")
        if logic in PREFER and not even:
            self._put(("routing", "affinity_wait"), value=AFFINITY_WAIT)
        if logic == "prefixaware":
            self._put(("routing", "prefix_chunk"), value=PREFIX_BYTES)
        if (wait := self._said("--max-wait-time")) is not None and logic in PREFER and not even:
            self._put(("routing", "affinity_wait"), "--max-wait-time", value=wait)
        elif wait is not None:
            self._warn("--max-wait-time", f"means nothing here: --routing-logic {logic} waits for no one endpoint")
        if limit is not None and not even:
            self._put(("routing", "imbalance_threshold"), "--imbalanced-threshold", value=limit)
        self._divided(logic)
        if (attempts := self._whole("--max-instance-failover-reroute-attempts")) is not None:
            self._put(("retry", "max_attempts"), "--max-instance-failover-reroute-attempts", value=attempts + 1)

    def _divided(self, logic: str) -> None:
        for name in ("--prefill-model-labels", "--decode-model-labels"):
            if logic in DIVIDED and not any(self._list(name)):
                self._wrong(name, f"is required with --routing-logic {logic}")
            elif logic not in DIVIDED and name in self._given:
                self._warn(name, f"means nothing here: --routing-logic {logic} gives no engine a role")
        both = set(self._list("--prefill-model-labels")) & set(self._list("--decode-model-labels"))
        if logic in DIVIDED and both:
            self._wrong("--decode-model-labels", f"{show(min(both))} is one of --prefill-model-labels too")

    # --- the queue and the rest -----------------------------------------------------------------------------------

    def _queue(self) -> None:
        if "--enable_queue" in self._given and "--no-enable_queue" in self._given:
            self._wrong("--no-enable_queue", "is given, and --enable_queue too", "give one")
        for name, on in (("--enable_queue", True), ("--no-enable_queue", False)):
            if name in self._given:
                self._put(("queue", "enabled"), name, value=on)
        if (percent := self._said("--max-gpu-perc")) is not None:
            self._max_gpu(percent)
        if "--enable-router-queue" in self._given:
            self._put(("queue", "enabled"), "--enable-router-queue", value=True)
        if (most := self._said("--router-max-queued-requests")) is not None:
            self._put(("queue", "max_requests"), "--router-max-queued-requests", value=most)
        if (seconds := self._said("--router-max-queue-wait-seconds")) is not None:
            self._put(("queue", "max_wait"), "--router-max-queue-wait-seconds", value=seconds)
        if (limit := self._said("--router-waiting-threshold-per-endpoint")) is not None:
            bands = [
                {
                    **band.model_dump(exclude_defaults=True),
                    **({} if band.best_effort else {"max_engine_waiting": limit}),
                }
                for band in DEFAULT_BANDS
            ]
            self._put(("bands",), "--router-waiting-threshold-per-endpoint", value=bands)
        if (seconds := self._said("--router-admission-scrape-interval-seconds")) is not None:
            flag = "--router-admission-scrape-interval-seconds"
            self._put(("observe", "interval"), flag, value=seconds)
            self._put(("observe", "fast_interval"), flag, value=seconds)

    def _max_gpu(self, text: str) -> None:
        try:
            percent = float(text)
        except ValueError:
            return  # already reported
        if not 1 < percent <= 100:
            self._wrong("--max-gpu-perc", f"{show(text)}: expected a percentage above 1, at most 100", "95 for 95 %")
            return
        self._put(("admission", "max_kv_usage"), "--max-gpu-perc", value=percent / 100)

    def _beside(self) -> None:
        if (seconds := self._whole("--static-backend-health-check-interval")) is not None:
            self._put(("health", "probe_interval"), "--static-backend-health-check-interval", value=f"{seconds}s")
        for gate in filter(None, self._list("--feature-gates")):
            name, _, state = gate.partition("=")
            if name not in _GATES or state.lower() not in ("true", "false"):
                self._wrong("--feature-gates", f"{show(gate)}: expected SemanticCache=false or PIIDetection=false")
            elif state.lower() == "true":
                why = "answers would be shared between clients" if name == "SemanticCache" else "nothing reads prompts"
                self._wrong("--feature-gates", f"{show(gate)} is not done here: {why}")
        path = self._said("--file-storage-path")
        if "--enable-batch-api" not in self._given:
            if path is not None:
                self._warn("--file-storage-path", "means nothing here without --enable-batch-api")
        elif path is None:
            self._wrong("--enable-batch-api", "needs --file-storage-path: a folder that only Penstock can write to")
        else:
            self._put(("store", "data"), "--file-storage-path", value=path)
            self._put(("batch", "serve"), "--enable-batch-api", value=True)

    def _told(self) -> None:
        collector = self._said("--otel-endpoint")
        if collector is None:
            for name in ("--otel-service-name", "--otel-secure"):
                if name in self._given:
                    self._warn(name, "means nothing here without --otel-endpoint")
            return
        scheme = "https" if "--otel-secure" in self._given else "http"
        url = urlsplit(collector if "//" in collector else f"{scheme}://{collector}")
        try:
            port = url.port
        except ValueError:
            self._wrong("--otel-endpoint", f"{show(collector)}: expected host:port")
            return
        if port in (None, GRPC_PORT):
            host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
            url = url._replace(netloc=f"{host}:{HTTP_PORT}")
            self._warn("--otel-endpoint", f"is asked at port {HTTP_PORT}: traces go over HTTP, not gRPC")
        self._put(("tracing", "endpoint"), "--otel-endpoint", value=url.geturl())
        self._made.environment["OTEL_SERVICE_NAME"] = self._said("--otel-service-name") or "vllm-router"


def _is_zero(text: str) -> bool:
    """Any difference reaches a threshold of 0, so caches are never used."""
    try:
        return float(text) == 0
    except ValueError:
        return False


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _hosted(provider: Provider) -> dict[str, object]:
    return {
        "url": provider.url,
        "name": provider.name,
        "engine": "openai",
        "models": list(provider.models),
        "api_key": FromEnvironment(provider.key),
    }


def _hash(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()
