"""Mistakes on the command line, answered with the line that was probably meant.

Other programs' words for commands and flags are known by name; misspelt ones are found by their nearness.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterable
from typing import NoReturn

_COMMANDS = {
    "serve": "start run server up gateway proxy launch listen router",
    "check": "validate verify lint test config configtest",
    "status": "stats health info ps show state metrics",
    "queue": "list ls requests",
    "top": "monitor watch dashboard ui page",
    "explain": "why trace",
    "keys": "key token tokens auth",
    "tenant": "tenants team teams limit limits",
    "endpoint": "endpoints backend backends engines upstream upstreams servers node nodes replica replicas",
    "batch": "batches",
    "edges": "workers gateways",
    "decider": "leader",
    "engine": "mock fake sim",
    "simulate": "bench benchmark replay",
    "doctor": "diagnose probe inspect",
    "demo": "try example quickstart",
    "reload": "restart refresh apply",
    "drain": "stop quit shutdown kill",
}
_OURS = {word: command for command, words in _COMMANDS.items() for word in words.split()}
_VERBS = (  # words of one meaning: which of them a command has differs
    "new add create issue make register",
    "remove rm delete del revoke cancel unregister",
    "list ls show get",
    "run submit start send",
    "limit set quota throttle",
    "drain disable stop cordon",
    "resume enable uncordon unpause",
)
_NOTES = {
    "drain": "it refuses new requests and serves queued ones; SIGTERM or Ctrl-C stops the gateway after that",
    "reload": "it reads the settings again without losing a request",
}
_LOGS = "the log is what `penstock serve` writes to stderr; `penstock explain ID` explains one request"
_FLAGS = {
    "--endpoint URL": "backend backends upstream server servers engine engines static-backends worker-urls "
    "api-base url",
    "--slots N": "max-num-seqs max-conns maxconn max-concurrent-requests concurrency max-running-requests "
    "max-parallel-requests",
    "--listen HOST:PORT": "bind address addr",
    "--workers N": "num-workers processes worker-processes threads",
    "--routing NAME": "policy strategy routing-strategy routing-logic balance lb",
    "-c FILE": "settings file f",
    "--log-level debug": "debug verbose v detailed-debug",
    "--no-queue": "disable-queue no-enable-queue passthrough",
}
_ELSEWHERE = {
    "`queue.max_wait` in the settings, or PENSTOCK__QUEUE__MAX_WAIT=60s": "timeout max-wait queue-timeout "
    "request-timeout",
    "`queue.max_requests` in the settings, or PENSTOCK__QUEUE__MAX_REQUESTS=5000": "queue-size max-queue max-requests",
    "`tenants[].limits` in the settings, or `penstock tenant limit NAME --requests-per-minute N`": "rpm tpm max-budget "
    "rate-limit requests-per-minute tokens-per-minute",
    "`penstock keys new TENANT` for callers, `endpoints[].api_key` for engines, `admin.token` for operators": "api-key "
    "key master-key token",
    "`tls.cert` and `tls.key` in the settings": "ssl-certfile ssl-keyfile tls-cert tls-key cert",
    "nothing: models are read from the engines (`endpoints[].models` limits them)": "model models served-model-name",
    "`share` in the settings (docs/scale.md)": "redis redis-url redis-host",
    "nothing: it runs in the foreground; deploy/ has a unit for systemd": "daemon d detach background",
}


def no_choice(prog: str, action: argparse.Action, value: object) -> NoReturn:
    """Raise `argparse.ArgumentError` with the choice that is nearest to a `value`."""
    choices = [str(choice) for choice in action.choices or ()]
    near = _near(str(value), choices) or _same(str(value), choices)
    if isinstance(action, argparse._SubParsersAction):
        meant = f"did you mean `{prog} {near}`?" if near else f"expected {', '.join(choices)}"
        raise argparse.ArgumentError(None, f"there is no `{value}`: {meant}")
    hint = f" (did you mean `{near}`?)" if near else ""
    raise argparse.ArgumentError(action, f"`{value}`: expected {', '.join(choices)}{hint}")


def no_command(words: list[str], commands: Iterable[str]) -> str:
    """Returns the answer to words that begin with no command."""
    known = list(commands)
    first = words[0]
    if first.startswith("-") or first.endswith((".yaml", ".yml")):
        return f"a command comes first: did you mean `{shlex.join(['penstock', 'serve', *words])}`?"
    if first.startswith(("http://", "https://")):
        return f"a command comes first: did you mean `penstock serve --endpoint {shlex.quote(first)}`?"
    if first in ("log", "logs"):
        return f"there is no command `{first}`: {_LOGS}"
    # A misspelt word of ours before another program's: `servr` is nearer to `serve` than to `server`.
    near = _OURS.get(first) or _near(first, known) or _OURS.get(_near(first, _OURS) or "")
    if near is None:
        return f"there is no command {shlex.quote(first)}"
    note = f" ({_NOTES[near]})" if near in _NOTES and first in _OURS else ""
    return (
        f"there is no command {shlex.quote(first)}: did you mean `{shlex.join(['penstock', near, *words[1:]])}`?{note}"
    )


def refuse(unknown: list[str], words: list[str], whole: argparse.ArgumentParser) -> NoReturn:
    """Exit with the answer to words that the command does not know."""
    command = _command_of(whole, words)
    for word in unknown:
        places = {action.dest: str(action.metavar or action.dest) for action in command._get_positional_actions()}
        flag = word.partition("=")[0]
        place = flag.lstrip("-").replace("-", "_")
        if flag.startswith("--") and (place in places or (place == words[0].rstrip("s") and "name" in places)):
            command.error(f"`{flag}` is given without a flag: `{' '.join([command.prog, *places.values()])}`")
    command.error(_unknown(unknown, words, [flag for action in command._actions for flag in action.option_strings]))


def _unknown(unknown: list[str], words: list[str], flags: list[str]) -> str:
    wrong = next((word for word in unknown if word.startswith("-")), unknown[0])
    flag, _, value = wrong.partition("=")
    if not wrong.startswith("-"):
        is_url, is_file = wrong.startswith(("http://", "https://")), wrong.endswith((".yaml", ".yml"))
        for its, known in (("--endpoint", is_url), ("--url", is_url), ("-c", is_file)):
            if known and its in flags:
                return f"`{wrong}` stands alone: did you mean `{_line(words, wrong, [its, wrong])}`?"
        return f"`{wrong}` is one word too many"
    name = flag.lstrip("-").replace("_", "-").lower()
    for ours, theirs in _FLAGS.items():
        if name in theirs.split() and ours.split()[0] in flags:
            return f"unknown flag `{flag}`: did you mean `{ours}`?"
    if "--endpoint" in flags:
        for ours, theirs in _ELSEWHERE.items():
            if name in theirs.split():
                return f"unknown flag `{flag}`: it is {ours}"
    if name in ("c", "config") and "-c" not in flags:
        return f"unknown flag `{flag}`: did you mean `{_line(words, wrong, [value] if value else [])}`?"
    guessed = [its for its in flags if its != "--token" or name.startswith("tok")]  # a name is no secret
    near = "--url" if name in ("host", "server", "gateway") and "--url" in flags else _near(f"--{name}", guessed)
    if near is None:
        return f"unknown flag `{flag}`"
    return f"unknown flag `{flag}`: did you mean `{_line(words, wrong, [f'{near}={value}' if value else near])}`?"


def _line(words: list[str], wrong: str, right: list[str]) -> str:
    at = words.index(wrong) if wrong in words else len(words)
    return shlex.join(["penstock", *words[:at], *right, *words[at + 1 :]])


def _same(word: str, known: list[str]) -> str | None:
    """Returns the choice that means the same as a word."""
    for group in _VERBS:
        if word in (verbs := group.split()):
            return next((choice for choice in known if choice in verbs), None)
    return None


def _near(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)), None)


def _command_of(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    """Returns the parser of the command, and of its verb, that the words name."""
    for word in words:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
    return parser
