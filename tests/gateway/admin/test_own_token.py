"""A gateway's own token: where it is kept, for whom, and what is refused as one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from penstock.config.load import ConfigError, from_mapping
from penstock.config.sections.batch import folder_of
from penstock.config.values import TOKENS_KNOWN
from penstock.gateway.admin.own_token import OwnToken, find

URL = "http://127.0.0.1:8080"


def test_the_commands_find_what_a_gateway_on_their_machine_wrote(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    own = OwnToken(folder_of(None, env))
    assert find(URL, env) is None
    own.write(8080)
    assert own.file is not None
    assert stat.S_IMODE(own.file.stat().st_mode) == 0o600
    for url in (URL, "http://localhost:8080/", "https://[::1]:8080"):
        assert find(url, env) == own.token
    for url in ("http://127.0.0.1:8081", "http://gateway:8080", "http://127.0.0.1.evil.example:8080", "http://[", "x"):
        assert find(url, env) is None, url
    own.remove()
    assert find(URL, env) is None
    assert list((tmp_path / "penstock").iterdir()) == []


def test_the_log_names_its_folder_for_commands_in_any_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "penstock.gateway.admin.own_token")
    monkeypatch.chdir(tmp_path)
    OwnToken(Path("state")).write(8080)
    assert f" from {tmp_path}/state/8080/admin-token; " in caplog.text
    assert caplog.text.rstrip().endswith(f"export PENSTOCK__STATE_DIR={tmp_path}/state")


def test_each_start_has_another_token_and_none_takes_anothers_away(tmp_path: Path) -> None:
    first, second = OwnToken(tmp_path), OwnToken(tmp_path)
    assert first.token != second.token
    first.write(1)
    second.write(1)
    first.remove()
    assert find("http://localhost:1", {"STATE_DIRECTORY": str(tmp_path)}) == second.token


def test_a_generated_token_can_be_an_argument_of_a_command() -> None:
    """One that began with a dash was taken for a flag: `--token -Vx…`."""
    assert all(OwnToken(None).token.isalnum() for _ in range(200))


@pytest.mark.parametrize(
    ("state_dir", "env", "folder"),
    [
        ("/a", {"STATE_DIRECTORY": "/b", "HOME": "/d"}, "/a"),
        (None, {"STATE_DIRECTORY": "/b:/c", "XDG_STATE_HOME": "/c", "HOME": "/d"}, "/b"),
        (None, {"XDG_STATE_HOME": "/c", "HOME": "/d"}, "/c/penstock"),
        (None, {"XDG_STATE_HOME": "c", "HOME": "/d"}, "/d/.local/state/penstock"),
        (None, {}, None),
    ],
)
def test_where_it_is_kept(state_dir: str | None, env: dict[str, str], folder: str | None) -> None:
    assert folder_of(state_dir, env) == (None if folder is None else Path(folder))


def test_a_folder_that_others_may_write_to_gets_no_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "8080"
    folder.mkdir()
    folder.chmod(0o777)
    own = OwnToken(tmp_path)
    own.write(8080)
    assert own.file is None
    assert list(folder.iterdir()) == []
    assert "others may write into its folder" in caplog.text
    assert own.token not in caplog.text


def test_a_folder_that_cannot_be_made_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", None):
        caplog.clear()
        own = OwnToken(folder)
        own.write(8080)
        assert own.file is None
        assert "/admin is read-only" in caplog.text


@pytest.mark.parametrize("token", ["ab", "x" * 7, "aaaaaaaaaaaaaaaa", *sorted(TOKENS_KNOWN)])
def test_tokens_that_are_guessed_first_are_refused(token: str) -> None:
    for key in ("token", "read_token"):
        with pytest.raises(ConfigError) as refused:
            from_mapping({"admin": {key: token}})
        assert token not in str(refused.value).replace("openssl rand", "")
