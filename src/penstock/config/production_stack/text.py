"""How are settings written that were made of flags? As a file of ours, with what a reader has to know above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml


class FromEnvironment(str):
    """The name of a variable whose value stands there, in the file as `${NAME}`."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Ours knows references, and writes each list item by item."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (PyYAML's name)
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value.replace("$", "$$"))


def _reference(dumper: yaml.SafeDumper, value: FromEnvironment) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", f"${{{value}}}", style="'")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(FromEnvironment, _reference)


def write(document: Mapping[str, object], notes: Sequence[str] = ()) -> str:
    """A file that `penstock check` and `penstock serve -c` take."""
    above = "".join(f"# {line}\n" for note in notes for line in note.splitlines())
    return above + yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
