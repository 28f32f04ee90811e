"""Backups of the SQLite store: one moment of it while it is written to, and nothing lost by restoring."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.batch.store import copies
from penstock.batch.store.opening import store_thread
from penstock.batch.store.port import StoreError
from penstock.batch.store.sqlite import SqliteStore
from penstock.batch.values import UsageAsked, UsageRow
from penstock.cli import commands
from penstock.config.load import from_mapping

NOW = 1_795_000_000.0
HOUR = int(NOW // 3600)


def a_use(user: str) -> UsageRow:
    return UsageRow(HOUR, "a", "k", user, "m", "e", "", 1, 10, 4, 5, 1, 2, 0.5, 1, 0.25)


def users(folder: Path) -> list[str]:
    store = SqliteStore(folder)
    try:
        return sorted(row.user for row in store.usage(UsageAsked(0, HOUR + 1, frozenset({"user"}))))
    finally:
        store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "data")
    opened.add_usage("w", 1, [a_use("first")], NOW)
    yield opened
    opened.close()


def test_a_backup_under_load_is_one_moment_and_restores_whole(store: SqliteStore, tmp_path: Path) -> None:
    written, stop, some = [0], threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            written[0] += 1
            # Two rows in one transaction: a copy has both or neither.
            store.add_usage("w", 1 + written[0], [a_use(f"l{written[0]}"), a_use(f"r{written[0]}")], NOW)
            if written[0] >= 20:
                some.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert some.wait(30)
        before = written[0] - 1  # committed for sure
        content = copies.backup(tmp_path / "data" / "batch.sqlite3", tmp_path / "copy")
    finally:
        stop.set()
        writer.join()
    copies.restore(tmp_path / "copy", tmp_path / "restored", now=NOW)
    found = users(tmp_path / "restored")
    left, right = ({name[1:] for name in found if name[0] == side} for side in "lr")
    assert left == right
    assert left >= {str(number) for number in range(1, before + 1)}
    assert content.rows["usage"] == len(found)


def test_a_backup_is_private_whole_and_never_replaces_a_file(store: SqliteStore, tmp_path: Path) -> None:
    to = tmp_path / "copy"
    copies.backup(tmp_path / "data" / "batch.sqlite3", to)
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]
    with pytest.raises(StoreError, match="exists"):
        copies.backup(tmp_path / "data" / "batch.sqlite3", to)
    assert copies.check(to).rows["usage"] == 1


def test_restoring_keeps_what_was_there(store: SqliteStore, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    copies.backup(folder / "batch.sqlite3", tmp_path / "copy")
    store.add_usage("w", 2, [a_use("second")], NOW)
    store.close()
    _, before = copies.restore(tmp_path / "copy", folder, now=NOW)
    assert users(folder) == ["first"]
    assert before is not None
    (tmp_path / "old").mkdir()
    before.rename(tmp_path / "old" / "batch.sqlite3")
    assert users(tmp_path / "old") == ["first", "second"]


def test_a_store_in_use_is_not_replaced(store: SqliteStore, tmp_path: Path) -> None:
    copies.backup(tmp_path / "data" / "batch.sqlite3", tmp_path / "copy")
    with pytest.raises(StoreError, match="in use by a running gateway; stop that first"):
        copies.restore(tmp_path / "copy", tmp_path / "data", now=NOW)


def spoilt(tmp_path: Path) -> bytes:
    whole = (tmp_path / "copy").read_bytes()
    return whole[:8192] + b"\xff" * 4096 + whole[12_288:]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda _: b"no database at all, but a text of some length" * 20, "not a database"),
        (spoilt, "damaged|malformed"),
        (lambda path: (path / "copy").read_bytes()[:20_000], "damaged|malformed"),
        (lambda _: b"", "not a store of Penstock"),
    ],
    ids=["another file", "spoilt", "cut off", "empty"],
)
def test_what_is_no_good_copy_changes_nothing(store: SqliteStore, tmp_path: Path, content: object, why: str) -> None:
    copies.backup(tmp_path / "data" / "batch.sqlite3", tmp_path / "copy")
    store.close()
    bad = tmp_path / "bad"
    bad.write_bytes(content(tmp_path))  # type: ignore[operator]
    with pytest.raises(StoreError, match=why):
        copies.restore(bad, tmp_path / "data", now=NOW)
    assert users(tmp_path / "data") == ["first"]


def test_a_copy_of_a_newer_program_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    copies.backup(tmp_path / "data" / "batch.sqlite3", tmp_path / "copy")
    with sqlite3.connect(tmp_path / "copy") as database:
        database.execute("INSERT INTO schema_version (version) VALUES (999)")
    with pytest.raises(StoreError, match=r"schema 999, and this Penstock knows \d+: it was made by a newer one"):
        copies.check(tmp_path / "copy")


def test_the_commands(store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, copy = tmp_path / "penstock.yaml", tmp_path / "copy"
    settings.write_text(f"batch: {{data: {tmp_path / 'data'}}}\n")
    assert commands.run(["store", "backup", str(copy), "-c", str(settings)]) == 0
    assert commands.run(["store", "check", "--data", str(tmp_path / "data")]) == 0
    out = capsys.readouterr().out
    assert out.count(" 1 usage,") == 2
    assert f"\na copy of {tmp_path}/data/batch.sqlite3\n" in out, "without -c it would be another one"
    assert commands.run(["store", "restore", str(copy), "-c", str(settings)]) == 1
    assert "in use" in capsys.readouterr().err
    store.close()
    assert commands.run(["store", "restore", str(copy), "-c", str(settings)]) == 0
    assert "the store before: " in capsys.readouterr().out
    settings.write_text("store: off\n")
    assert commands.run(["store", "check", "-c", str(settings)]) == 1
    assert "there is no store" in capsys.readouterr().err


def test_a_relative_store_is_named_by_its_whole_path(
    store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    settings = tmp_path / "penstock.yaml"
    for text, within in (("store: data\n", "data"), ("state_dir: state\n", "state/store")):
        settings.write_text(f"endpoints: [{{url: http://127.0.0.1:9}}]\n{text}")
        monkeypatch.chdir(tmp_path)
        assert commands.run(["check", str(settings)]) == 0
        assert f"store: {tmp_path}/{within} (relative to the current directory)\n" in capsys.readouterr().out
        monkeypatch.chdir(tmp_path / "elsewhere")
        for words in (["check"], ["backup", str(tmp_path / "copy")]):
            assert commands.run(["store", *words, "-c", str(settings)]) == 1
            said = f"{tmp_path}/elsewhere/{within}: no such folder; the setting is relative to where the gateway"
            assert said in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    settings.write_text("endpoints: [{url: http://127.0.0.1:9}]\nstore: file/data\n")
    assert commands.run(["check", str(settings)]) == 1
    assert capsys.readouterr().err.startswith(f"store: {tmp_path}/file/data can't be used: ")
    settings.write_text("store: data\n")
    assert commands.run(["store", "check", "-c", str(settings)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/data/batch.sqlite3: ok; ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store: off", "off"),
        ("store: postgresql://a:secret@b/c", "PostgreSQL"),
        ("store: /var/lib/one", "/var/lib/one"),
        ("", "/state/store"),
    ],
)
def test_check_says_where_the_store_is(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/state")
    settings = tmp_path / "penstock.yaml"
    settings.write_text(f"endpoints: [{{url: http://127.0.0.1:9}}]\n{text}\n")
    commands.run(["check", str(settings)])
    assert f"\nstore: {said}\n" in capsys.readouterr().out


async def test_the_log_says_where_an_opened_store_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "penstock.batch.store.opening")
    monkeypatch.chdir(tmp_path)
    thread = store_thread(from_mapping({"store": "data"}), {})
    await thread.do(lambda opened: opened.usage(UsageAsked(0, 1, frozenset())))
    await thread.close()
    assert caplog.messages == [f"the store is in {tmp_path}/data"]


def test_check_takes_any_store_by_name(
    store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "nothing.yaml"))  # not asked: the file is named
    copy = tmp_path / "backup.db"
    copies.backup(tmp_path / "data" / "batch.sqlite3", copy)
    store.add_usage("w", 2, [a_use("second")], NOW)
    for named, said in (
        (copy, f"{copy}: ok; "),
        (tmp_path / "data", f"{tmp_path}/data/batch.sqlite3: ok; "),
        (tmp_path / "data" / "batch.sqlite3", f"{tmp_path}/data/batch.sqlite3: ok; "),
    ):
        assert commands.run(["store", "check", str(named)]) == 0
        out = capsys.readouterr().out
        assert out.startswith(said)
        assert (" 1 usage," in out) == (named == copy)
    settings = tmp_path / "penstock.yaml"
    settings.write_text("store: off\n")
    for words, said in (
        (["check", str(tmp_path / "lost.db")], "lost.db: no such file"),
        (["check", str(settings)], f"{settings} is no store; settings go behind `-c`"),
        (["restore", str(settings), "--data", str(tmp_path / "other")], "settings go behind `-c`"),
        (["backup", str(tmp_path), "--data", str(tmp_path / "data")], f"{tmp_path} is a folder; name a new file in it"),
    ):
        assert commands.run(["store", *words]) == 1
        assert said in capsys.readouterr().err


def test_without_settings_the_commands_find_the_store_of_the_state_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert commands.run(["store", "check"]) == 1
    assert f"{tmp_path}/store/batch.sqlite3: no such file" in capsys.readouterr().err
    SqliteStore(tmp_path / "store").close()
    assert commands.run(["store", "check"]) == 0
    monkeypatch.delenv("STATE_DIRECTORY")
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(copies, "SYSTEM_FOLDER", str(tmp_path))
    assert commands.run(["store", "check"]) == 0, "that of the service"
    monkeypatch.setattr(copies, "SYSTEM_FOLDER", str(tmp_path / "nothing"))
    assert commands.run(["store", "check"]) == 1
    assert "there is no state folder" in capsys.readouterr().err
