"""`penstock check` refuses what `penstock serve` refuses, in the same words, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock.gateway.serve import Gateway

ENDPOINT = {"url": "http://127.0.0.1:9"}
GOOD: dict[str, Any] = {"listen": "127.0.0.1:0", "endpoints": [ENDPOINT]}
POLICY = "somebody.else"
ENGINE = "one engine can compute, at 25,000 tokens/s"
OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificate is made by openssl")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is not refused starts and ends, so that a test fails and does not wait; the log is as before."""

    async def at_once(gateway: Gateway) -> None:
        await gateway.start()
        await gateway.close()

    monkeypatch.setattr(Gateway, "run", at_once)
    for name in ("KUBERNETES_SERVICE_HOST", "PENSTOCK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Both:
    """What both commands say of one file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._file = folder / "penstock.yaml"
        self._capsys = capsys

    def _run(self, *words: str) -> tuple[int, list[str]]:
        code = main([*words])
        return code, self._capsys.readouterr().err.splitlines()

    def say(self, **settings: Any) -> tuple[list[str], list[str]]:
        """The lines of `check` and of `serve`, both of which refuse."""
        self._file.write_text(yaml.safe_dump(settings))
        before = sorted(self.folder.rglob("*"))
        code, checked = self._run("check", str(self._file))
        assert code == 1, "check refuses"
        assert sorted(self.folder.rglob("*")) == before, "check leaves nothing behind"
        code, served = self._run("serve", "-c", str(self._file), "--log-level", "error")
        assert code in (1, 2), "serve refuses"
        return checked, [line.removeprefix("penstock: ") for line in served]

    def take(self, **settings: Any) -> None:
        self._file.write_text(yaml.safe_dump(settings))
        assert self._run("check", str(self._file)) == (0, [])
        assert self._run("serve", "-c", str(self._file), "--log-level", "error") == (0, [])


@pytest.fixture
def both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Both:
    return Both(tmp_path, capsys)


# What the settings alone tell

ALONE: dict[str, dict[str, Any]] = {
    "an unknown setting": {"queue": {"max_wiat": 3}},
    "a wrong value": {"queue": {"max_requests": -1}},
    "a band that is none": {"default_band": "nobody"},
    "the same endpoint twice": {"endpoints": [ENDPOINT, ENDPOINT]},
    "no endpoint at all": {"endpoints": []},
    "keys that nobody has": {"identity": {"require_key": True}},
    "half of a certificate": {"tls": {"cert": __file__}},
    "a certificate that is not there": {"tls": {"cert": "/nowhere/cert.pem", "key": "/nowhere/key.pem"}},
    "a policy that nobody brings": {"routing": {"policy": POLICY}},
    "an address that is none": {"listen": "127.0.0.1:99999"},
    "a database without an address": {"batch": {"store": "postgres"}},
    "two stores": {"store": {"data": "/x", "url": "postgresql://a@b/c"}},
    "one store under two names": {"store": "/x", "batch": {"data": "/x"}},
    "a store of another kind": {"batch": {"store": "mysql"}},
    "an address of no database": {"store": {"url": "mysql://a@b/c"}},
    "a ledger without a store": {"store": False, "usage": {"keep": "30d"}},
    "prices without a store": {"store": "off", "usage": {"prices": {"*": {"prompt": 1}}}},
    "issued keys without a store": {"store": {"enabled": False}, "identity": {"made_keys": True}},
    "batches without a store": {"store": "off", "batch": {"serve": True}},
    "the same discovery twice": {"discovery": [{"dns": "engines:8000"}, {"dns": "engines:8000"}]},
    "discovery in a cluster, outside of one": {"discovery": [{"kubernetes": {"service": "engines"}}]},
}


@pytest.mark.parametrize("wrong", ALONE.values(), ids=ALONE)
def test_problems_of_the_settings_are_refused_by_both_in_the_same_words(both: Both, wrong: dict[str, Any]) -> None:
    checked, served = both.say(**GOOD | wrong)
    assert checked == served
    assert checked


@pytest.mark.parametrize(
    ("package", "wrong", "extra"),
    [
        ("zmq", {"routing": {"locality": "kv_events"}, "endpoints": [ENDPOINT | {"kv_events": "auto"}]}, "kv"),
        ("psycopg", {"batch": {"store": "postgres", "url": "postgresql://a@b/c"}}, "postgres"),
        ("dns", {"discovery": [{"dns": {"name": "engines", "type": "srv"}}]}, "dns"),
        ("opentelemetry", {"tracing": {"endpoint": "http://collector:4318"}}, "otel"),
    ],
)
def test_an_extra_that_is_missing_is_named_by_both(
    both: Both, monkeypatch: pytest.MonkeyPatch, package: str, wrong: dict[str, Any], extra: str
) -> None:
    real = importlib.util.find_spec

    def find(name: str, *more: Any) -> Any:
        return None if name.partition(".")[0] == package else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    checked, served = both.say(**GOOD | wrong)
    assert checked == served
    assert any(f"pip install 'penstock-gateway[{extra}]'" in line for line in checked)


# What only this machine tells


def not_a_certificate(folder: Path) -> dict[str, Any]:
    (folder / "cert.pem").write_text("hello")
    return {"tls": {"cert": str(folder / "cert.pem"), "key": str(folder / "cert.pem")}}


def another_ones_key(folder: Path) -> dict[str, Any]:
    certificate(folder, "a")
    certificate(folder, "b")
    return {"tls": {"cert": str(folder / "a.pem"), "key": str(folder / "b.key")}}


def a_key_with_a_password(folder: Path) -> dict[str, Any]:
    certificate(folder, "a", "-passout", "pass:secret")
    return {"tls": {"cert": str(folder / "a.pem"), "key": str(folder / "a.key")}}


def certificate(folder: Path, name: str, *more: str) -> None:
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=x")
    files = ("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
    subprocess.run([*words, *files, *(more or ("-nodes",))], check=True, capture_output=True)


def a_folder_that_is_a_file(folder: Path) -> dict[str, Any]:
    (folder / "data").write_text("")
    return {"batch": {"data": str(folder / "data")}}


def a_folder_below_a_file(folder: Path) -> dict[str, Any]:
    (folder / "data").write_text("")
    return {"batch": {"data": str(folder / "data" / "inside")}}


def a_lock_that_is_a_folder(folder: Path) -> dict[str, Any]:
    (folder / "data" / "batch.lock").mkdir(parents=True)
    return {"batch": {"data": str(folder / "data")}}


def a_folder_of_others(folder: Path) -> dict[str, Any]:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (folder / "data").mkdir(mode=0o500)
    return {"batch": {"data": str(folder / "data" / "inside")}}


HERE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "no certificate": not_a_certificate,
    "no certificate, with workers": lambda folder: not_a_certificate(folder) | {"workers": 2},
    "a folder that is a file": a_folder_that_is_a_file,
    "a folder below a file": a_folder_below_a_file,
    "a lock that is a folder": a_lock_that_is_a_folder,
    "a folder of others": a_folder_of_others,
    "a name that is not known": lambda _: {"listen": "nowhere.invalid:0"},
    "an address of others": lambda _: {"listen": "192.0.2.1:0"},
    "operators' address of others": lambda _: {"admin": {"listen": "192.0.2.1:9", "token": "of-the-operators"}},
}


@pytest.mark.parametrize("make", HERE.values(), ids=HERE)
def test_problems_of_this_machine_are_refused_by_both_in_the_same_words(
    both: Both, make: Callable[[Path], dict[str, Any]]
) -> None:
    (checked,), (served,) = both.say(**GOOD | make(both.folder))
    assert checked.removeprefix("admin.").removeprefix("listen: ") == served


@OPENSSL
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (another_ones_key, "the key belongs to another certificate"),
        (a_key_with_a_password, "is encrypted"),
        (not_a_certificate, "is not a PEM"),
    ],
)
def test_a_wrong_private_key_is_refused_by_both_without_a_passphrase_prompt(
    both: Both, make: Callable[[Path], dict[str, Any]], told: str
) -> None:
    (checked,), (served,) = both.say(**GOOD | make(both.folder))
    assert checked == served
    assert checked.startswith("tls")
    assert told in checked


def test_all_problems_of_this_machine_are_reported_at_once(both: Both) -> None:
    wrong = not_a_certificate(both.folder) | {"listen": "nowhere.invalid:0", "batch": {"data": f"{__file__}/x"}}
    checked, served = both.say(**GOOD | wrong)
    assert [line.partition(":")[0] for line in checked] == ["tls", "store", "listen"]
    assert len(served) == 1


# What is no matter of check


def test_a_good_file_is_taken_by_both_and_the_folder_is_not_made_by_check(both: Both) -> None:
    data = both.folder / "not" / "yet"
    both.take(**GOOD)
    (both.folder / "penstock.yaml").write_text(yaml.safe_dump(GOOD | {"batch": {"data": str(data)}}))
    assert main(["check", str(both.folder / "penstock.yaml")]) == 0
    assert not data.parent.exists()
    both.take(**GOOD | {"batch": {"data": str(data)}})
    assert data.exists()
    both.take(**GOOD | {"batch": {"data": str(data)}})


@pytest.mark.parametrize(
    ("kv_tokens", "sessions", "note"),
    [
        (None, {}, None),
        (2_200_000, {"memory": "off"}, None),
        (2_200_000, {}, f"costs 1.3% (60 s: 6.7%) of the prompts that {ENGINE}; 22 fit"),
        (None, {"wait": "30s"}, f"costs 13.3% (60 s: 6.7%) of the prompts that {ENGINE}"),
        (None, {"wait": "1m"}, "costs 6.7% of the prompts"),
    ],
)
def test_check_says_what_the_bound_on_waits_of_sessions_costs(
    both: Both, capsys: pytest.CaptureFixture[str], kv_tokens: int | None, sessions: dict[str, str], note: str | None
) -> None:
    endpoint = ENDPOINT if kv_tokens is None else ENDPOINT | {"kv_tokens": kv_tokens}
    file = both.folder / "penstock.yaml"
    file.write_text(yaml.safe_dump(GOOD | {"endpoints": [endpoint], "sessions": sessions}))
    assert main(["check", str(file)]) == 0
    out = capsys.readouterr().out
    assert (note in out) if note is not None else ("sessions.wait" not in out)


def test_check_names_the_keys_that_have_expired(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [f"sha256:{'a' * 64}", *({"hash": f"sha256:{at * 32}", "expires": f"20{at}-01-31"} for at in ("25", "99"))]
    file = both.folder / "penstock.yaml"
    file.write_text(yaml.safe_dump(GOOD | {"tenants": [{"name": "a"}, {"name": "b", "keys": keys}]}))
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().err == (
        "warning: tenants[1].keys[1] expired at 2025-02-01 00:00 UTC: its requests get 401\n"
    )


def test_check_ignores_a_port_in_use(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    file = both.folder / "penstock.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file.write_text(yaml.safe_dump(GOOD | {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}))
        assert main(["check", str(file)]) == 0
        assert main(["serve", "-c", str(file)]) == 1
    assert "penstock: cannot listen on" in capsys.readouterr().err
