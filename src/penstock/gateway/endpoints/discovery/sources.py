"""Which sources of endpoints do the settings name? Only the code of these is imported, none if there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.config.problems import ConfigError, Problem
from penstock.config.sections.discovery import SourceSection
from penstock.gateway.endpoints.pool_rules import RuleBook

if TYPE_CHECKING:
    from penstock.gateway.endpoints.discovery.base import Discovery, EndpointSource, Registry


class SettingsSources:
    """Finds endpoints where the settings say, with a `Discovery` once they name a source."""

    def __init__(self, registry: Registry, env: Mapping[str, str], rules: RuleBook) -> None:
        self._registry = registry
        self._rules = rules
        self._env = env
        self._discovery: Discovery | None = None
        self._started = False
        self._followed: Sequence[SourceSection] = ()
        self._checked: list[EndpointSource] = []  # of the settings that are followed next, in their order

    def start(self) -> None:
        """Start every source, and those of later settings at once."""
        self._started = True
        if self._discovery is not None:
            self._discovery.start()

    async def close(self) -> None:
        """Stop every source. Their endpoints stay."""
        if self._discovery is not None:
            await self._discovery.close()

    def check(self, settings: Settings) -> None:
        """Make the sources that `follow` takes. Raises `ConfigError` if an entry is unusable here."""
        self._checked = sources(settings.discovery, self._env, self._rules)

    def follow(self, settings: Settings) -> None:
        """Find endpoints there from now on. Sources with unchanged settings continue."""
        made = zip(settings.discovery, self._checked, strict=True)
        kept = {source.name for entry, source in made if entry in self._followed}
        self._followed = settings.discovery
        self._rules.ranked([source.name for source in self._checked])
        if self._discovery is None and self._checked:
            from penstock.gateway.endpoints.discovery.base import Discovery  # noqa: PLC0415

            self._discovery = Discovery((), self._registry)
            if self._started:
                self._discovery.start()
        if self._discovery is not None:
            self._discovery.use(self._checked, kept=kept)


def sources(settings: Sequence[SourceSection], env: Mapping[str, str], rules: RuleBook) -> list[EndpointSource]:
    """Returns one source per entry of `discovery`. `env` is the process environment, which Kubernetes needs.

    `rules` gets those of pools.

    Raises `ConfigError` if two entries are equal, or an entry is unusable here.
    """
    found: list[EndpointSource] = []
    names: set[str] = set()
    for index, entry in enumerate(settings):
        source = _source(entry, index, env, rules)
        if source.name in names:
            raise ConfigError([Problem(f"discovery[{index}]", "is the same as an entry before it")])
        names.add(source.name)
        found.append(source)
    return found


def _source(entry: SourceSection, index: int, env: Mapping[str, str], rules: RuleBook) -> EndpointSource:
    if entry.dns is not None:
        from penstock.gateway.endpoints.discovery.dns import DnsSource  # noqa: PLC0415

        return DnsSource(entry.dns)
    if entry.file is not None:
        from penstock.gateway.endpoints.discovery.file import FileSource  # noqa: PLC0415

        return FileSource(entry.file)
    from penstock.gateway.endpoints.discovery.base import SourceError  # noqa: PLC0415
    from penstock.gateway.endpoints.discovery.kubernetes import KubernetesSource  # noqa: PLC0415
    from penstock.gateway.endpoints.discovery.kubernetes_access import Access  # noqa: PLC0415
    from penstock.gateway.endpoints.discovery.kubernetes_pool import PoolSource  # noqa: PLC0415

    assert entry.kubernetes is not None, "the settings are checked for exactly one"
    try:
        access = Access(entry.kubernetes, env)
    except SourceError as error:
        raise ConfigError([Problem(f"discovery[{index}].kubernetes", str(error))]) from None
    if entry.kubernetes.pool is not None:
        return PoolSource(entry.kubernetes, access, rules.want)
    return KubernetesSource(entry.kubernetes, access)
