"""The command line says what it can do, and what it was given that it does not know."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.build import COSTS, kind
from penstock.cli.commands import parser
from penstock.cli.main import main
from penstock.core.dispatch import pump
from penstock.core.values.catalogue import Cause, EndpointState, Reason

COMMANDS = {
    "serve": ["--config", "--endpoint", "--listen", "--slots", "--routing", "--no-queue", "--log-level"],
    "check": ["FILE", "--live", "--json"],
    "engine": ["--port", "--host", "--model", "--slots", "--profile", "--step-ms", "--kv-blocks", "--block-size",
               "--max-batched-tokens", "--priority", "--kv-events", "--seed"],
    "demo": ["--once"],
}  # fmt: skip


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_help_has_one_time_for_the_demo() -> None:
    assert re.findall(r"demo .*(in (?:half )?a minute)", parser("").format_help()) == ["in half a minute"] * 2


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = asked(capsys, "--help")
    assert (code, err) == (0, "")
    for command in COMMANDS:
        assert f"\n    {command} " in out


def test_every_command_is_in_a_group_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(capsys, "help")
    groups = re.findall(r"^(run|set up|operate|try out).*:$", out, re.MULTILINE)
    assert groups == ["run", "set up", "operate", "try out"]
    listed = re.findall(r"^    ([a-z-]+) ", out, re.MULTILINE)
    whole = next(a for a in parser("")._actions if isinstance(a, argparse._SubParsersAction))
    assert sorted(listed) == sorted(whole.choices)
    assert re.search(r"^docs: (\S+), all settings: (\S+) beside it$", out, re.MULTILINE) is not None, out


def test_the_help_names_docs_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--help",), ("check", "--help")):
        named = re.search(r"^docs: (\S+), all settings: (\S+) beside it$", asked(capsys, *words)[1], re.MULTILINE)
        assert named is not None
        assert Path(named[1]).is_file()
        assert Path(named[1]).with_name(named[2]).is_file()


@pytest.mark.parametrize("row", [*Cause, *Reason, *EndpointState])
def test_the_commands_that_an_advice_names_are_there(row: Cause | Reason | EndpointState) -> None:
    for command in re.findall(r"`penstock ([^`]+)`", row.advice):
        assert parser(None).parse_args(command.split()).run


@pytest.mark.parametrize("command", ["endpoint", "tenant", "keys", "batch", "queue"])
def test_list_and_ls_are_one_word(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = [asked(capsys, command, word, "--url", "http://127.0.0.1:9") for word in ("list", "ls")]
    assert said[0] == said[1]
    assert "penstock: cannot reach http://127.0.0.1:9: connection refused (is a gateway running there?" in said[0][2]


def test_help_and_version_are_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "help", "check") == asked(capsys, "check", "--help")
    assert asked(capsys, "version") == asked(capsys, "--version")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_its_flags(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, err = asked(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: penstock {command} ")
    for flag in COMMANDS[command]:
        assert flag in out


def test_a_command_imports_only_its_own_modules() -> None:
    program = "import sys; from penstock.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    program += "print(*[name for name in sys.modules if name.startswith('penstock.')], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rooms = {
        "penstock.cli",
        "penstock.core",
        "penstock.core.dispatch",
        "penstock.gateway",
    }  # these only say what they are
    first = {"penstock.cli.main", "penstock.gateway.early_signals"}
    assert set(done.stderr.split()) == rooms | first | {"penstock.build", "penstock.cli.commands"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "--version") == (0, f"penstock {penstock.__version__} ({kind()})\n", "")
    plain = "plain Python: 2.9 times the instructions per request"
    assert kind() == (plain if pump.__file__.endswith(".py") else "compiled")


def test_what_plain_python_costs_is_what_the_results_say() -> None:
    section = Path("docs/results.md").read_text().split("## CPU beside others")[1].split("\n## ")[0]
    (found,) = re.findall(r"takes ([\d,]+) user instructions in plain Python and ([\d,]+) compiled", section)
    plain, compiled = (int(number.replace(",", "")) for number in found)
    stated = re.fullmatch(r"([\d.]+) times the instructions per request", COSTS)
    assert stated is not None
    assert plain / compiled == pytest.approx(float(stated[1]), abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "COMMAND"),
        (("sevre",), "sevre"),
        (("serve", "--endpont", "http://a"), "--endpont"),
        (("serve", "--end", "http://a"), "--end"),
        (("serve", "--slots", "many"), "--slots"),
        (("serve", "extra"), "extra"),
        (("check",), "FILE"),
        (("engine", "--port", "x"), "--port"),
        (("engine", "--profile", "x"), "--profile"),
        (("demo", "--twice"), "--twice"),
    ],
)
def test_unknown_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = asked(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith(("penstock", "usage: penstock COMMAND"))


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"penstock {penstock.__version__} ({kind()})\n".encode())


def test_a_reader_that_closes_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
        assert command.wait() == 141
