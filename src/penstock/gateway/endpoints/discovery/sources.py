"""Which sources of endpoints do the settings name?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config.problems import ConfigError, Problem
from penstock.config.sections import discovery
from penstock.gateway.endpoints.discovery.base import EndpointSource, SourceError
from penstock.gateway.endpoints.discovery.dns import DnsSource
from penstock.gateway.endpoints.discovery.file import FileSource
from penstock.gateway.endpoints.discovery.kubernetes import KubernetesSource
from penstock.gateway.endpoints.discovery.kubernetes_access import Access


def sources(settings: Sequence[discovery.SourceSection], env: Mapping[str, str]) -> list[EndpointSource]:
    """Returns one source per entry of `discovery`. `env` is the process environment, which Kubernetes needs.

    Raises `ConfigError` if two entries are the same, or an entry has no meaning where we run.
    """
    found: list[EndpointSource] = []
    names: set[str] = set()
    for index, entry in enumerate(settings):
        source = _source(entry, index, env)
        if source.name in names:
            raise ConfigError([Problem(f"discovery[{index}]", "is the same as an entry before it")])
        names.add(source.name)
        found.append(source)
    return found


def _source(entry: discovery.SourceSection, index: int, env: Mapping[str, str]) -> EndpointSource:
    if entry.dns is not None:
        return DnsSource(entry.dns)
    if entry.file is not None:
        return FileSource(entry.file)
    assert entry.kubernetes is not None, "the settings are checked for exactly one"
    try:
        return KubernetesSource(entry.kubernetes, Access(entry.kubernetes, env))
    except SourceError as error:
        raise ConfigError([Problem(f"discovery[{index}].kubernetes", str(error))]) from None
