"""Writes the settings made of flags as a file, with notes above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml


class FromEnvironment(str):
    """A variable's name, written as `${NAME}`."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes references, and no YAML aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (PyYAML's name)
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value.replace("$", "$$"))


def _reference(dumper: yaml.SafeDumper, value: FromEnvironment) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", f"${{{value}}}", style="'")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(FromEnvironment, _reference)


def write(document: Mapping[str, object], notes: Sequence[str] = ()) -> str:
    """Returns a file for `penstock check` and `penstock serve -c`."""
    above = "".join(f"# {line}\n" for note in notes for line in note.splitlines())
    return above + yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
