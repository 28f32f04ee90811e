"""`penstock keys`: a key that was made is a key that is known."""

from __future__ import annotations

import getpass
import io
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config.load import load
from penstock.gateway.identity.caller import Caller
from penstock.gateway.identity.callers import Callers, key_hash


@pytest.mark.parametrize("name", ["team-a", "yes", "12", 'a "b" $$ ${c}', "überall: #1"])
def test_a_new_key_pasted_into_the_settings_is_known(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", name]) == 0
    printed = capsys.readouterr().out
    key = printed.splitlines()[0].removeprefix("key:").strip()
    file = tmp_path / "penstock.yaml"
    file.write_text(printed[printed.index("tenants:") :] + "identity: {require_key: true}\n", encoding="utf-8")
    headers = {b"authorization": f"Bearer {key}".encode()}
    callers = Callers()
    callers.follow(load(str(file), {}))
    caller = callers.identify(callers.key(headers.get, lambda _: False), headers.get, "127.0.0.1", now=0.0)
    assert isinstance(caller, Caller)
    assert (caller.tenant, caller.has_key) == (name, True)


def test_the_key_is_printed_once_and_long_enough(capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", "new", "a"])
    printed = capsys.readouterr().out
    key = printed.split()[1]
    assert (key[:3], len(key), printed.count(key)) == ("pk-", 46, 1)
    main(["keys", "new", "a"])
    assert key not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", " a", "x" * 129, "a\nb", "anonymous", "other"])
def test_a_name_that_no_tenant_with_keys_can_have_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", name]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("penstock: ")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_hash_of_a_key_is_read_from_stdin(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("pk-abc\r\n"))
    assert main(["keys", "hash", *arguments]) == 0
    assert capsys.readouterr().out == key_hash("pk-abc") + "\n"


def test_the_hash_of_a_key_is_asked_for_without_echo_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: "pk-abc")
    assert main(["keys", "hash"]) == 0
    assert capsys.readouterr().out == key_hash("pk-abc") + "\n"


def test_the_hash_is_that_of_sha256(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "hash", "abc"]) == 0
    expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("key", ["", "a b", "k\u00e9y", "x" * 513])
def test_an_impossible_key_is_refused_without_showing_it(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "hash", key]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "penstock: a key is 1 to 512 visible ASCII characters without spaces\n"
