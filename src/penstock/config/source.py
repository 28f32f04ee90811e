"""Source: parsing the YAML of a settings file.

PyYAML parses, and we walk its node graph ourselves, because its constructor keeps the last of two equal keys, expands
aliases without bound, and reads `no` as false and `1:30` as 90. Here duplicate keys are problems, the number of nodes
is bounded, and only `true`, `false`, `null` and decimal numbers are not text.

`${VAR}`, `${VAR:-default}` and `$$` are replaced by marks before parsing, so that they may stand anywhere, and the
content of a variable is never parsed as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from penstock.config.problems import ConfigError, Filled, Location, Problem, write_path

FILE_BYTES_MAX = 4 * 2**20
NODES_MAX = 100_000  # an alias counts as often as it is used
DEPTH_MAX = 32

_REFERENCE = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}\n]*))?\})?", re.ASCII)
_MARK = re.compile("\ue000(\\d{1,6})\ue001", re.ASCII)  # private-use characters: a reference, while YAML is parsed
_OWN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
_INT = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?", re.ASCII)
_OTHER_REFERENCE = re.compile(r"\$([A-Z_][A-Z0-9_]*)|os\.environ/([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_PLAIN_VALUES = {"": None, "~": None, "null": None, "true": True, "false": False}


class _Loader(yaml.SafeLoader):
    """Composes nodes only. Without implicit resolvers every scalar is text; `style` is set if it was quoted."""

    n_nodes = 0
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's name)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.n_nodes += 1
        _bound(self.n_nodes, 0, self.get_mark())
        return super().compose_node(parent, index)


def _bound(n_nodes: int, depth: int, mark: yaml.Mark) -> None:
    if n_nodes > NODES_MAX or depth > DEPTH_MAX:
        raise yaml.MarkedYAMLError(problem="too many or too deeply nested values", problem_mark=mark)


@dataclass(slots=True)
class SettingsText:
    """A text's value and problems, and the locations with unset variables."""

    value: object = None
    problems: list[Problem] = field(default_factory=list)
    unresolved: set[Location] = field(default_factory=set)


def read_file(path: str, env: Mapping[str, str]) -> SettingsText:
    """Read a settings file. Raises `ConfigError` if it can't be read, or is not YAML."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise _unreadable(path, "is not the name of a file") from None
    if len(content) > FILE_BYTES_MAX:
        raise _unreadable(path, f"is larger than {FILE_BYTES_MAX // 2**20} MiB: this is not a settings file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"is not UTF-8 text (byte {error.start})") from None
    document = parse(text, path, env)
    if document.value is not None and not isinstance(document.value, dict):
        raise ConfigError([Problem(path, "expected a mapping of settings (`key: value`) at the top")])
    return document


def parse(text: str, origin: str, env: Mapping[str, str] | None) -> SettingsText:
    """Read one YAML text. If `env` is None, a `$` is only a dollar sign. Raises `ConfigError` if it is not YAML."""
    references: list[re.Match[str]] = []
    if env is not None:
        text = _REFERENCE.sub(lambda match: _take_out(match, references), text)
    try:
        root = yaml.compose(text, Loader=_Loader)
        document = SettingsText()
        if root is not None:
            document.value = _Walk(references, env or {}, document).value(root, ())
    except RecursionError:
        raise ConfigError([Problem(origin, "is nested too deeply")]) from None
    except yaml.YAMLError as error:
        from penstock.config.explain import yaml_problem  # noqa: PLC0415 - no start needs it

        message = yaml_problem(error)
    else:
        return document
    raise ConfigError([Problem(origin, message)])


def _take_out(match: re.Match[str], references: list[re.Match[str]]) -> str:
    references.append(match)
    return f"\ue000{len(references) - 1}\ue001"


def _unreadable(path: str, message: str) -> ConfigError:
    return ConfigError([Problem(path if path.isprintable() else ascii(path), message)], unreadable=True)


def _meant_otherwise(text: str) -> tuple[str, str] | None:
    """Returns what is wrong with a value that other programs, or people, mean otherwise, and what to write."""
    if match := _OTHER_REFERENCE.fullmatch(text):
        name = match[1] or match[2]
        return f"`{text}` is text here, no variable", f"write ${{{name}}}, or $${text.removeprefix('$')} for the text"
    if text[:1] in "“”„‘’" and text:
        return "typographic quotes belong to the value", "write straight ones, or none"
    return None


class _Walk:
    """From nodes to plain values: dicts with text keys, lists, text, numbers, booleans, None."""

    def __init__(self, references: list[re.Match[str]], env: Mapping[str, str], document: SettingsText) -> None:
        self._references = references
        self._env = env
        self._document = document
        self._n_nodes = 0

    def value(self, node: yaml.Node, location: Location) -> object:
        self._n_nodes += 1
        _bound(self._n_nodes, len(location), node.start_mark)
        if node.tag not in _OWN_TAGS:
            raise yaml.MarkedYAMLError(problem="unknown tag", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return dict(self._items(node, location))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*location, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, location)

    def _items(self, node: yaml.MappingNode, location: Location) -> Iterator[tuple[str, object]]:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key has to be text", problem_mark=key_node.start_mark)
            key = _MARK.sub(self._written, key_node.value)
            if key in lines:
                message = f"is given twice, in line {lines[key]} and in line {line}"
                self._document.problems.append(Problem(write_path((*location, key)), message))
            lines[key] = line
            yield key, self.value(value_node, (*location, key))

    def _scalar(self, node: yaml.Node, location: Location) -> object:
        text: str = node.value
        if _MARK.search(text):
            template = _MARK.sub(self._written, text)
            filled = _MARK.sub(lambda mark: self._filled(mark, location), text)
            if not filled.strip() and (empty := _MARK.fullmatch(text)) and (reference := self._reference(empty)):
                self._empty(reference, location)
            return Filled(filled, template) if template != filled else filled
        if wrong := _meant_otherwise(text):
            self._refuse(location, *wrong)
        if getattr(node, "style", None) is not None:
            return text
        if text in _PLAIN_VALUES:
            return _PLAIN_VALUES[text]
        if _INT.fullmatch(text):
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _empty(self, reference: re.Match[str], location: Location) -> None:
        """A variable without a default that is set to nothing: so a token or key would quietly be none."""
        if reference[1] in self._env and reference[2] is None:
            message = f"the environment variable {reference[1]} is empty"
            hint = f"set it, or write ${{{reference[1]}:-}} if it may be"
            self._refuse(location, message, hint)

    def _refuse(self, location: Location, message: str, hint: str) -> None:
        self._document.problems.append(Problem(write_path(location), message, hint))
        self._document.unresolved.add(location)

    def _reference(self, mark: re.Match[str]) -> re.Match[str] | None:
        index = int(mark[1])
        return self._references[index] if index < len(self._references) else None

    def _written(self, mark: re.Match[str]) -> str:
        reference = self._reference(mark)
        return reference[0] if reference else mark[0]

    def _filled(self, mark: re.Match[str], location: Location) -> str:
        reference = self._reference(mark)
        if reference is None:
            return mark[0]
        if reference[0] == "$$":
            return "$"
        variable, default = reference[1], reference[2]
        if variable is None:
            hint = "write ${NAME}, ${NAME:-default}, or $$ for a dollar sign"
            self._refuse(location, "`${` does not begin a variable", hint)
        elif default is not None:
            return self._env.get(variable) or str(default)
        elif variable in self._env:
            return self._env[variable]
        else:
            hint = f"set it, or write ${{{variable}:-default}}"
            self._refuse(location, f"the environment variable {variable} is not set", hint)
        return ""
