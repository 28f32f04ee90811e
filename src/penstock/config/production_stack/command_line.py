"""Parses the flags and collects everything wrong with them.

Not by argparse, because it reports only the first error, silently takes the last of two equal flags, and suggests
nothing for an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.config import values
from penstock.config.problems import Problem, Refused, did_you_mean, listing, show
from penstock.config.production_stack.flags import BY_NAME, NOT_HERE, NUMBER, SWITCH, WHOLE, Fate, Flag

OWN = ("--print", "--help", "-h")  # of our command, beside theirs


class Given(msgspec.Struct, frozen=True):
    """A flag with its value, as text; a switch has none."""

    flag: Flag
    text: str
    origin: str  #: the flag, or the file and its key


class Words(msgspec.Struct):
    """A parsed command line."""

    given: dict[str, Given] = {}
    own: set[str] = set()
    problems: list[Problem] = []


def read(words: Sequence[str]) -> Words:
    """Returns every flag with its value, and the problems of each."""
    found = Words()
    left = list(reversed(words))
    while left:
        word = left.pop()
        name, equals, value = word.partition("=")
        if word in OWN:
            found.own.add(word)
            continue
        if not name.startswith("--"):
            found.problems.append(Problem(show(word), "is neither a flag nor a flag's value"))
            continue
        flag = BY_NAME.get(name)
        if flag is None:
            found.problems.append(_unknown(name))
            if not equals and left and not left[-1].startswith("-"):
                left.pop()  # most probably its value
            continue
        if flag.value == SWITCH:
            if equals:
                found.problems.append(Problem(name, "takes no value"))
        elif not equals:
            if not left or left[-1].startswith("--"):
                found.problems.append(Problem(name, "is given no value"))
                continue
            value = left.pop()
        if name in found.given:
            found.problems.append(Problem(name, "is given twice", "give it once"))
            continue
        found.given[name] = Given(flag, value, name)
    found.problems += _wrong(found.given.values())
    return found


def from_file(document: Mapping[str, object], path: str) -> Words:
    """The same for a file whose keys are the flags' names with underscores."""
    found = Words()
    for key, value in document.items():
        name, origin = "--" + str(key).replace("_", "-"), f"{path}: {key}"
        flag = BY_NAME.get(name)
        if flag is None or name.startswith("--dynamic-config-") or name == "--version":
            near = did_you_mean(str(key), [known[2:].replace("-", "_") for known in BY_NAME])
            found.problems.append(Problem(origin, "is unknown", near))
        elif value is None or (flag.value == SWITCH and value is False):
            continue
        elif flag.value == SWITCH and value is not True:
            found.problems.append(Problem(origin, f"{show(value)}: expected true or false"))
        elif isinstance(value, list) and all(isinstance(item, str | int) for item in value):
            found.given[name] = Given(flag, ",".join(map(str, value)), origin)
        elif isinstance(value, str | int | float):
            found.given[name] = Given(flag, "" if value is True else str(value), origin)
        else:
            found.problems.append(Problem(origin, f"expected text, found {show(value)}"))
    found.problems += _wrong(found.given.values())
    return found


def _unknown(name: str) -> Problem:
    begins = [known for known in BY_NAME if known.startswith(name)]
    near = f"did you mean `{begins[0]}`?" if len(begins) == 1 else did_you_mean(name, [*BY_NAME, *OWN])
    return Problem(show(name).strip("`"), "is unknown", near or "`vllm-router --help` lists all")


def _wrong(given: Iterable[Given]) -> Iterable[Problem]:
    for each in given:
        if each.flag.fate is Fate.REFUSED:
            yield Problem(each.origin, each.flag.why)
        elif (problem := _wrong_value(each)) is not None:
            yield problem


def _wrong_value(given: Given) -> Problem | None:
    flag, text = given.flag, given.text
    if isinstance(flag.value, tuple):
        if text in flag.value:
            return None
        near = NOT_HERE.get(text) or did_you_mean(text, flag.value)
        return Problem(given.origin, f"{show(text)}: expected {listing(flag.value)}", near)
    if flag.value not in (WHOLE, NUMBER):
        return None
    try:
        value = values.whole(text) if flag.value == WHOLE else values.number(text)
    except Refused as refused:
        return Problem(given.origin, str(refused))
    if flag.least is not None and value < flag.least:
        return Problem(given.origin, f"{show(text)}: expected at least {flag.least:g}")
    return None
