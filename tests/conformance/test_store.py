"""What every store of files and batches must do: one suite for the SQLite file, SQLite in memory and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from penstock.batch.states import BatchEvent, ItemState, Status
from penstock.batch.store import sql_store
from penstock.batch.store.port import (
    InUseError,
    NameTakenError,
    QuotaError,
    StorageFullError,
    Store,
    StoreError,
    TooManyKeysError,
)
from penstock.batch.store.sqlite import SqliteStore
from penstock.batch.values import (
    Batch,
    File,
    FileKind,
    Item,
    LineProblem,
    MadeKey,
    NewItem,
    Quota,
    Result,
    UsageAsked,
    UsageRow,
)
from tests.batch import postgres

CHUNK_BYTES = 64 * 1024
KEEP_S = 30 * 86_400.0

T = 1_800_000_000.0
MANY = Quota(files=100, bytes=1 << 30, batches=100, items=1_000_000)
Opening = Callable[[], Store]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    postgres.require()
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opening(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Opening:
    """How to open the store, again and again."""
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
        postgres.fresh(url)
        from penstock.batch.store.postgres import PostgresStore  # noqa: PLC0415 - an extra, which may be missing

        return lambda: PostgresStore(url)
    return lambda: SqliteStore(tmp_path / "data" if kind == "sqlite" else None)


@pytest.fixture
def store(opening: Opening) -> Iterator[Store]:
    made = opening()
    yield made
    made.close()


def a_file(
    name: str = "file-1", tenant: str = "a", *, size: int = 0, at: float = T, until: float | None = None
) -> File:
    return File(name, tenant, FileKind.INPUT, "in.jsonl", size, 0, at, until, "uploading", None, None)


def upload(store: Store, name: str = "file-1", tenant: str = "a", data: bytes = b"x" * 100, **more: float) -> File:
    begun = a_file(name, tenant, **more)  # type: ignore[arg-type]
    store.begin_file(begun, MANY, "r")
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    for seq in range(0, len(pieces), 3):
        store.append(name, seq, pieces[seq : seq + 3])
    whole = msgspec.structs.replace(begun, bytes=len(data), lines=data.count(b"\n"), status="processed")
    store.end_file(whole, MANY)
    return whole


def a_batch(name: str = "batch_1", tenant: str = "a", *, total: int = 0, at: float = T, within: float = 60.0) -> Batch:
    return Batch(
        name, tenant, "", "/v1/chat/completions", "file-1", "60s", at, at + within, Status.VALIDATING, None, None, None,
        total, 0, 0, 0, 0, 0, 0, 0, "{}", "[]", "[]", "{}",
    )  # fmt: skip


def running(store: Store, name: str = "batch_1", *, items: int = 10, models: tuple[str, ...] = ("m",)) -> Batch:
    """A batch in progress, its items spread over the models."""
    store.add_batch(a_batch(name), MANY)
    new = [NewItem(n, f"c{n}", models[n % len(models)], n % 3, n * 10, 9) for n in range(1, items + 1)]
    assert store.add_items(name, new)
    begun = store.move(name, BatchEvent.VALID, T, total=items, models=models)
    assert begun is not None
    store.beat("r", T + 100)
    return begun


def found(store: Store, name: str = "batch_1") -> Batch:
    batch = store.batch(name)
    assert batch is not None
    return batch


def done(item: Item, batch: str = "batch_1", *, well: bool = True) -> Result:
    text = b'{"custom_id":"%s"}' % item.custom_id.encode()
    return Result(batch, item.line, ItemState.COMPLETED if well else ItemState.FAILED, text, 5, 2, 3, 1)


def lines_of(store: Store, state: ItemState, batch: str = "batch_1") -> list[bytes]:
    lines: list[bytes] = []
    after = 0
    while page := store.results(batch, state, after):
        after = page[-1][0]
        lines += [text for _, text in page]
    return lines


# --- files --------------------------------------------------------------------------------------------------------


def test_a_file_is_seen_when_it_is_whole_and_read_as_it_came(store: Store) -> None:
    data = bytes(range(256)) * 1000
    store.begin_file(a_file("half"), MANY, "r")
    store.append("half", 0, [b"x" * CHUNK_BYTES])
    whole = upload(store, data=data)
    assert store.file("a", "half", T) is None
    assert store.file("a", "file-1", T) == whole
    assert store.files("a", kind=None, after=None, limit=10, ascending=False, now=T) == [whole]
    for at, size in ((0, 1), (0, len(data)), (CHUNK_BYTES - 3, 7), (CHUNK_BYTES, CHUNK_BYTES), (len(data) - 1, 1)):
        assert store.read("file-1", at, size) == data[at : at + size]


def test_files_and_batches_are_visible_to_their_tenant_only(store: Store) -> None:
    upload(store)
    store.add_batch(a_batch(), MANY)
    assert store.file("b", "file-1", T) is None
    assert store.files("b", kind=None, after=None, limit=10, ascending=False, now=T) == []
    assert not store.delete_file("b", "file-1", T)
    assert store.batches("b", after=None, limit=10) == []
    assert store.batches("b", after="batch_1", limit=10) == []


def test_files_are_listed_page_by_page_in_either_order(store: Store) -> None:
    names = [f"file-{n}" for n in range(5)]
    for n, name in enumerate(names):
        upload(store, name, at=T + n // 2)  # some at the same moment

    def walk(*, ascending: bool) -> list[str]:
        seen: list[str] = []
        while page := store.files(
            "a", kind="batch", after=seen[-1] if seen else None, limit=2, ascending=ascending, now=T
        ):
            seen += [file.id for file in page]
        return seen

    assert walk(ascending=True) == names
    assert walk(ascending=False) == names[::-1]
    assert store.files("a", kind="batch_output", after=None, limit=9, ascending=True, now=T) == []


def test_a_quota_includes_uploads_in_progress(store: Store) -> None:
    quota = Quota(files=2, bytes=150, batches=1, items=10)
    store.begin_file(a_file("one", size=100), quota, "r")
    with pytest.raises(QuotaError, match="100 bytes"):
        store.begin_file(a_file("two", size=51), quota, "r")
    store.begin_file(a_file("two", size=50), quota, "r")
    with pytest.raises(QuotaError, match="2 files"):
        store.begin_file(a_file("three"), quota, "r")
    store.begin_file(a_file("other", "b", size=150), quota, "r")
    with pytest.raises(QuotaError):  # longer than was said, as a chunked body may be
        store.end_file(a_file("one", size=101), quota)
    store.drop_upload("one")
    store.begin_file(a_file("three", size=100), quota, "r")


def test_a_file_that_an_open_batch_reads_stays(store: Store) -> None:
    upload(store, until=T + 10)
    running(store, items=1)
    with pytest.raises(InUseError):
        store.delete_file("a", "file-1", T)
    store.purge(T + 11)
    assert store.read("file-1", 0, 3) == b"xxx"
    [item] = store.claim("batch_1", "m", 1, "r")
    store.finish([done(item)], "r")
    store.move("batch_1", BatchEvent.ALL_ENDED, T)
    while store.purge(T + 11):
        pass
    assert store.read("file-1", 0, 3) == b""


def test_deleted_files_are_erased_bit_by_bit(store: Store) -> None:
    upload(store, data=b"x" * CHUNK_BYTES * 70)
    assert store.delete_file("a", "file-1", T)
    assert not store.delete_file("a", "file-1", T)
    steps = 0
    while store.purge(T):
        steps += 1
    assert steps > 2
    assert store.read("file-1", 0, 1) == b""


def test_an_upload_whose_gateway_is_gone_is_erased(store: Store) -> None:
    store.begin_file(a_file(), MANY, "r")
    store.append("file-1", 0, [b"abc"])
    store.beat("r", T + 30)
    assert not store.purge(T + 29)
    assert store.purge(T + 31)
    while store.purge(T + 31):
        pass
    assert store.read("file-1", 0, 3) == b""


def test_an_upload_that_was_given_up_does_not_become_a_file(store: Store) -> None:
    store.begin_file(a_file(), MANY, "r")
    while store.purge(T):  # "r" was never heard of
        pass
    with pytest.raises(StoreError, match="dropped"):
        store.end_file(msgspec.structs.replace(a_file(), status="processed"), MANY)


def test_a_claim_from_before_the_clock_was_set_back_does_not_last_for_ever(store: Store) -> None:
    running(store)
    store.beat("r", T + 30)
    assert store.claim("batch_1", "m", 3, "r")
    set_back = T - 86_400.0
    assert store.release_lost(set_back) == 3


# --- batches ------------------------------------------------------------------------------------------------------


def test_counts_files_and_tokens_of_a_batch_that_ran(store: Store) -> None:
    begun = running(store, items=40)
    assert (begun.state, begun.total, begun.when().in_progress_at) == (Status.IN_PROGRESS, 40, int(T))
    items = store.claim("batch_1", "m", 100, "r")
    assert store.move("batch_1", BatchEvent.ALL_ENDED, T) is None  # not yet
    assert store.finish([done(item, well=item.line % 10 > 0) for item in items], "r") == [True] * 40
    ended = store.move("batch_1", BatchEvent.ALL_ENDED, T + 5)
    assert ended is not None
    assert ended == found(store)
    assert (ended.state, ended.completed, ended.failed) == (Status.COMPLETED, 36, 4)
    assert (ended.input_tokens, ended.cached_tokens, ended.output_tokens) == (200, 80, 120)
    assert ended.reasoning_tokens == 40
    assert (ended.when().finalizing_at, ended.when().completed_at) == (int(T + 5), int(T + 5))
    assert ended.output_file is not None
    assert ended.error_file is not None
    for name, state, count in ((ended.output_file, ItemState.COMPLETED, 36), (ended.error_file, ItemState.FAILED, 4)):
        file = store.file("a", name, T)
        assert file is not None
        lines = lines_of(store, state)
        assert (file.lines, file.bytes) == (count, sum(len(line) + 1 for line in lines)) == (len(lines), file.bytes)
        assert (file.batch, file.expires_at) == ("batch_1", T + 5 + KEEP_S)
    assert {f.kind for f in store.files("a", kind="batch_output", after=None, limit=9, ascending=True, now=T)} == {
        "batch_output",
        "batch_errors",
    }


def test_a_batch_that_is_no_good_runs_nothing(store: Store) -> None:
    store.add_batch(a_batch(total=3), MANY)
    problem = LineProblem("invalid_json_line", "no", None, 2)
    failed = store.move("batch_1", BatchEvent.INVALID, T, total=0, problems=[problem])
    assert failed is not None
    assert (failed.status, failed.total, failed.output_file, failed.error_file) == ("failed", 0, None, None)
    assert msgspec.json.decode(failed.problems, type=list[LineProblem]) == [problem]
    assert store.open_batches(10) == []
    assert not store.add_items("batch_1", [NewItem(1, "c", "m", 0, 0, 1)])


def test_open_batches_come_by_deadline_and_are_bounded_per_tenant(store: Store) -> None:
    quota = Quota(files=9, bytes=9, batches=2, items=10)
    store.add_batch(a_batch("batch_late", total=4, within=90), quota)
    with pytest.raises(QuotaError, match="requests"):
        store.add_batch(a_batch("batch_x", total=7), quota)
    store.add_batch(a_batch("batch_soon", total=6, within=30), quota)
    with pytest.raises(QuotaError, match="2 batches"):
        store.add_batch(a_batch("batch_x"), quota)
    store.add_batch(a_batch("batch_b", "b", total=10), quota)
    assert [batch.id for batch in store.open_batches(10)] == ["batch_soon", "batch_b", "batch_late"]
    assert [batch.id for batch in store.open_batches(1)] == ["batch_soon"]
    assert [batch.id for batch in store.batches("a", after=None, limit=1)] == ["batch_soon"]
    assert [batch.id for batch in store.batches("a", after="batch_soon", limit=9)] == ["batch_late"]


@pytest.mark.parametrize(
    ("event", "end", "status"),
    [(BatchEvent.CANCEL, BatchEvent.STOPPED, Status.CANCELLED), (None, BatchEvent.WINDOW_OVER, Status.EXPIRED)],
)
def test_items_that_did_not_run_are_in_the_error_file(
    store: Store, event: BatchEvent | None, end: BatchEvent, status: Status
) -> None:
    items = 520  # more than one step of 500 rows
    running(store, items=items)
    ran = store.claim("batch_1", "m", 15, "r")
    store.finish([done(item) for item in ran[:10]], "r")
    if event is not None:
        assert store.move("batch_1", event, T) is not None
        assert store.claim("batch_1", "m", 5, "r") == []  # nothing more is begun
    while store.end_pending("batch_1", "code", "text"):
        pass
    assert store.move("batch_1", BatchEvent.ALL_ENDED, T) is None  # and will never be, whatever ends now
    assert store.move("batch_1", end, T) is None  # five still run
    store.finish([done(item) for item in ran[10:]], "r")
    ended = store.move("batch_1", end, T)
    assert ended is not None
    assert (ended.state, ended.completed, ended.failed) == (status, 15, items - 15)
    lines = [msgspec.json.decode(line) for line in lines_of(store, ItemState.FAILED)]
    assert len({line["custom_id"] for line in lines}) == items - 15
    assert all(line["error"] == {"code": "code", "message": "text"} and line["response"] is None for line in lines)
    assert ended.error_bytes == sum(len(line) + 1 for line in lines_of(store, ItemState.FAILED))


def test_a_batch_cancelled_while_it_is_read_has_no_items(store: Store) -> None:
    store.add_batch(a_batch(total=3), MANY)
    assert store.add_items("batch_1", [NewItem(1, "c", "m", 0, 0, 1)])
    assert store.move("batch_1", BatchEvent.CANCEL, T) is not None
    assert not store.add_items("batch_1", [NewItem(2, "d", "m", 0, 0, 1)])
    assert store.clear_items("batch_1")
    assert not store.clear_items("batch_1")
    ended = store.move("batch_1", BatchEvent.STOPPED, T, total=0)
    assert ended is not None
    assert (ended.status, ended.total, ended.error_file) == ("cancelled", 0, None)


def test_an_ended_batch_without_files_is_forgotten_in_time(store: Store) -> None:
    running(store, items=1)
    store.finish([done(item) for item in store.claim("batch_1", "m", 1, "r")], "r")
    ended = store.move("batch_1", BatchEvent.ALL_ENDED, T)
    assert ended is not None
    assert ended.output_file is not None
    assert store.delete_file("a", ended.output_file, T)
    while store.purge(T + 10):
        pass
    assert lines_of(store, ItemState.COMPLETED) == []
    assert found(store).completed == 1
    while store.purge(T + KEEP_S + 1):
        pass
    assert store.batch("batch_1") is None


# --- running ------------------------------------------------------------------------------------------------------


def test_claims_are_by_model_and_keep_like_prompts_together(store: Store) -> None:
    running(store, items=12, models=("m", "n"))
    items = store.claim("batch_1", "n", 4, "r")
    assert [item.model for item in items] == ["n"] * 4
    assert [item.prefix for item in items] == [0, 0, 1, 1]
    assert store.claim("batch_1", "o", 4, "r") == []
    assert len(store.claim("batch_1", "n", 100, "r")) == 2
    assert len(store.claim("batch_1", "m", 100, "r")) == 6


def test_no_item_is_held_twice(store: Store) -> None:
    running(store, items=10)
    store.beat("s", T + 100)
    first, second = store.claim("batch_1", "m", 6, "r"), store.claim("batch_1", "m", 6, "s")
    assert sorted(item.line for item in first + second) == list(range(1, 11))
    assert store.finish([done(first[0])], "s") == [False]
    assert store.finish([done(first[0])], "r") == [True]
    assert store.finish([done(first[0])], "r") == [False]
    assert found(store).completed == 1


def test_claims_expire_with_their_runner(store: Store) -> None:
    running(store, items=4)
    store.beat("s", T + 10)
    held = store.claim("batch_1", "m", 2, "r")
    lost = store.claim("batch_1", "m", 2, "s")
    assert store.release_lost(T + 9) == 0
    assert store.release_lost(T + 11) == 2
    again = store.claim("batch_1", "m", 9, "r")
    assert [item.line for item in again] == [item.line for item in lost]
    assert store.finish([done(item) for item in lost], "s") == [False, False]  # too late
    assert store.finish([done(item) for item in held + again], "r") == [True] * 4


def test_returned_items_run_again(store: Store) -> None:
    running(store, items=2)
    items = store.claim("batch_1", "m", 2, "r")
    store.give_back([("batch_1", items[0].line)], "r", attempted=True)
    store.give_back([("batch_1", items[1].line)], "other", attempted=True)  # not its own
    [again] = store.claim("batch_1", "m", 9, "r")
    assert (again.line, again.attempts) == (items[0].line, 1)


def test_one_runner_reads_a_batch_until_it_is_gone(store: Store) -> None:
    store.add_batch(a_batch(), MANY)
    batch = found(store)
    store.beat("r", T + 10)
    store.beat("s", T + 100)
    assert store.take(batch, "r", T)
    assert not store.take(batch, "s", T)
    assert store.take(batch, "r", T)
    assert store.take(batch, "s", T + 11)
    store.move("batch_1", BatchEvent.CANCEL, T)
    assert not store.take(batch, "s", T + 11)  # it is not what it was


# --- made keys ----------------------------------------------------------------------------------------------------


def a_key(name: str = "ci", *, digit: str = "1", at: float = T) -> MadeKey:
    return MadeKey(name, "team", "sha256:" + digit * 64, '{"models":["m"]}', at, T + 60)


def all_keys(store: Store, seen: str | None = None) -> tuple[str, list[MadeKey]]:
    told = store.keys(seen)
    assert told is not None
    return told


def test_keys_are_kept_until_they_are_erased(store: Store) -> None:
    assert all_keys(store)[1] == []
    later, first = a_key("later", digit="2", at=T + 1), a_key()
    store.add_key(later)
    store.add_key(first)
    assert all_keys(store)[1] == [first, later]
    assert store.erase_key("ci")
    assert not store.erase_key("ci")
    assert all_keys(store)[1] == [later]
    store.add_key(first)  # the name is free again
    assert all_keys(store)[1] == [first, later]


def test_a_key_gets_other_rights(store: Store) -> None:
    for key in (a_key(), a_key("other", digit="2", at=T + 1)):
        store.add_key(key)
    seen, before = all_keys(store)
    assert store.change_key("ci", '{"models":["sim"]}')
    assert not store.change_key("nobody", "{}")
    changed = msgspec.structs.replace(before[0], rights='{"models":["sim"]}')
    assert all_keys(store, seen)[1] == [changed, before[1]]


def test_a_name_and_a_hash_are_given_once(store: Store) -> None:
    store.add_key(a_key())
    for again in (a_key(digit="2"), a_key("other")):
        with pytest.raises(NameTakenError):
            store.add_key(again)
    assert all_keys(store)[1] == [a_key()]


def test_a_change_of_keys_is_seen_without_reading_them(store: Store) -> None:
    seen, _ = all_keys(store)
    assert store.keys(seen) is None
    store.add_key(a_key())
    seen, known = all_keys(store, seen)
    assert known == [a_key()]
    assert store.keys(seen) is None
    with pytest.raises(NameTakenError):
        store.add_key(a_key())
    assert store.keys(seen) is None, "nothing was changed"
    store.erase_key("ci")
    assert all_keys(store, seen)[1] == []


def test_the_number_of_keys_is_bounded_by_one_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_store, "KEYS_MAX", 2)
    store.add_key(a_key())
    store.add_key(a_key("two", digit="2"))
    with pytest.raises(TooManyKeysError):
        store.add_key(a_key("three", digit="3"))
    store.erase_key("two")
    store.add_key(a_key("three", digit="3"))


def test_a_batch_keeps_the_rights_of_its_key(store: Store) -> None:
    store.add_batch(msgspec.structs.replace(a_batch(), rights='{"models":["m"]}'), MANY)
    assert found(store).rights == '{"models":["m"]}'
    assert store.open_batches(9)[0].rights == '{"models":["m"]}'
    assert store.batches("a", after=None, limit=9)[0].rights == '{"models":["m"]}'


def test_several_gateways_see_each_others_keys(opening: Opening, kind: str) -> None:
    if kind != "postgres":
        pytest.skip("only PostgreSQL is shared")
    one, other = opening(), opening()
    seen, _ = all_keys(one)
    other.add_key(a_key())
    assert all_keys(one, seen)[1] == [a_key()]
    with pytest.raises(NameTakenError):
        one.add_key(a_key(digit="2"))
    assert one.erase_key("ci")
    assert all_keys(other)[1] == []
    one.close()
    other.close()


def test_a_database_without_an_encoding_is_read_as_text(postgres_url: str) -> None:
    from penstock.batch.store.postgres import PostgresStore  # noqa: PLC0415 - an extra, which may be missing

    store = PostgresStore(postgres.without_encoding(postgres_url))
    store.add_key(a_key("Schlüssel"))
    assert all_keys(store)[1] == [a_key("Schlüssel")]
    upload(store)
    assert running(store).status == "in_progress"
    assert store.erase_key("Schlüssel")
    store.close()


# --- its end ------------------------------------------------------------------------------------------------------


def test_files_batches_and_keys_survive_a_restart(opening: Opening, kind: str) -> None:
    if kind == "memory":
        pytest.skip("memory is not kept, which is the point of it")
    store = opening()
    upload(store)
    running(store, items=3)
    items = store.claim("batch_1", "m", 2, "r")
    store.finish([done(items[0])], "r")
    store.add_key(a_key())
    store.close()
    store = opening()
    assert all_keys(store)[1] == [a_key()]
    store.release_lost(T + 1000)
    assert found(store).completed == 1
    assert sorted(item.line for item in store.claim("batch_1", "m", 9, "s")) == sorted({1, 2, 3} - {items[0].line})
    assert store.read("file-1", 0, 3) == b"xxx"
    store.close()


def test_a_full_disk_keeps_no_partial_file() -> None:
    store = SqliteStore(None)
    store.begin_file(a_file(), MANY, "r")
    pages = store.sqlite.execute("PRAGMA page_count").fetchone()[0]
    store.sqlite.execute(f"PRAGMA max_page_count = {pages + 40}")
    store.append("file-1", 0, [b"x" * CHUNK_BYTES])
    with pytest.raises(StorageFullError):
        store.append("file-1", 1, [b"x" * CHUNK_BYTES] * 3)
    assert len(store.read("file-1", 0, 4 * CHUNK_BYTES)) == CHUNK_BYTES
    store.drop_upload("file-1")  # and what is there can be erased
    while store.purge(T):
        pass
    store.close()


def test_stored_prompts_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "new")
    store.begin_file(a_file(), MANY, "r")
    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "new").glob("batch.sqlite3*")}
    assert len(modes) >= 2
    assert set(modes.values()) == {0}
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    store.close()


def test_a_folder_serves_one_gateway_at_a_time(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match="in use by another gateway"):
        SqliteStore(tmp_path)
    first.close()
    SqliteStore(tmp_path).close()


def test_a_schema_from_the_future_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.sqlite.execute("INSERT INTO schema_version (version) VALUES (99)")
    store.close()
    with pytest.raises(StoreError, match="version 99"):
        SqliteStore(tmp_path)


# --- who used what ------------------------------------------------------------------------------------------------

HOUR = 500_000


def a_use(*, hour: int = HOUR, tenant: str = "a", model: str = "m", user: str = "u", reason: str = "") -> UsageRow:
    return UsageRow(hour, tenant, "k", user, model, "e", reason, 1, 10, 4, 5, 1, 2, 0.5, 1, 0.25)


def used(store: Store, *by: str, since: int = 0, until: int = HOUR + 100, **only: str) -> list[UsageRow]:
    return sorted(store.usage(UsageAsked(since, until, frozenset(by), **only)), key=str)


def test_equal_rows_of_the_ledger_add_up(store: Store) -> None:
    store.add_usage("w", 1, [a_use(), a_use(user="v")], T)
    store.add_usage("w", 2, [a_use()], T)
    store.add_usage("another", 1, [a_use(user="v")], T)
    assert used(store, "user") == [
        UsageRow(0, "", "", name, "m", "", "", 2, 20, 8, 10, 2, 4, 1.0, 2, 0.5) for name in ("u", "v")
    ]
    assert used(store, "hour", "tenant", "key", "endpoint") == [
        UsageRow(HOUR, "a", "k", "", "m", "e", "", 4, 40, 16, 20, 4, 8, 2.0, 4, 1.0)
    ]


def test_an_addition_to_the_ledger_that_is_repeated_counts_once(store: Store) -> None:
    for number in (1, 1, 2, 1, 2):
        store.add_usage("w", number, [a_use()], T)
    assert [row.requests for row in used(store)] == [2]


def test_the_ledger_is_asked_by_time_and_caller(store: Store) -> None:
    hours = [HOUR // 24 * 24 + hour for hour in (0, 23, 24)]
    store.add_usage("w", 1, [a_use(hour=hour) for hour in hours], T)
    store.add_usage("w", 2, [a_use(hour=hours[0], tenant="b", user="v")], T)
    assert [(row.hour, row.requests) for row in used(store, "day")] == [(hours[0], 3), (hours[2], 1)]
    assert [row.requests for row in used(store, since=hours[1], until=hours[2])] == [1]
    assert [row.requests for row in used(store, tenant="a")] == [3]
    assert [row.requests for row in used(store, tenant="b", user="v", key="k")] == [1]
    assert used(store, tenant="b", user="u") == []


def hour_of(written: str) -> int:
    return int(datetime.fromisoformat(f"{written}:00+00:00").timestamp()) // 3600


def test_the_ledger_is_summed_by_months_of_the_calendar(store: Store) -> None:
    dates = ("2028-01-31T23", "2028-02-01T00", "2028-02-29T23", "2028-03-01T00", "2028-12-31T23", "2029-01-01T00")
    hours = [hour_of(date) for date in dates]
    store.add_usage("w", 1, [a_use(hour=hour) for hour in hours], T)
    assert used(store, "month", until=5) == []
    assert [(row.hour, row.requests) for row in used(store, "month", "tenant", until=hours[-1] + 1)] == [
        (hour_of("2028-01-01T00"), 1),
        (hour_of("2028-02-01T00"), 2),
        (hour_of("2028-03-01T00"), 1),
        (hour_of("2028-12-01T00"), 1),
        (hour_of("2029-01-01T00"), 1),
    ]
    part = used(store, "month", since=hours[2], until=hours[3])
    assert [(row.hour, row.requests) for row in part] == [(hour_of("2028-02-01T00"), 1)]


def test_interrupted_answers_of_the_ledger_add_up(store: Store) -> None:
    use = msgspec.structs.replace(a_use(reason="client_gone"), interrupted=1, estimated_completion=2)
    for number in (1, 2):
        store.add_usage("w", number, [use, a_use()], T)
    assert [(row.reason, row.interrupted, row.estimated_completion) for row in used(store)] == [
        ("", 0, 0),
        ("client_gone", 2, 4),
    ]


def test_reasons_and_models_of_the_ledger_stay_apart(store: Store) -> None:
    store.add_usage("w", 1, [a_use(), a_use(reason="queue_full"), a_use(model="n")], T)
    assert [(row.model, row.reason) for row in used(store)] == [("m", ""), ("m", "queue_full"), ("n", "")]


def test_old_rows_of_the_ledger_are_erased_by_steps(store: Store) -> None:
    store.add_usage("w", 1, [a_use(hour=hour) for hour in range(HOUR, HOUR + 1_200)], T)
    steps = 0
    while store.purge_usage(HOUR + 1_100, T):
        steps += 1
    assert steps == 3
    assert len(used(store, "hour", until=HOUR + 2_000)) == 100


def test_the_ledger_survives_a_restart(opening: Opening, kind: str) -> None:
    if kind == "memory":
        pytest.skip("memory is not kept, which is the point of it")
    store = opening()
    store.add_usage("w", 1, [a_use()], T)
    store.close()
    store = opening()
    store.add_usage("w", 1, [a_use()], T)
    assert [row.requests for row in used(store)] == [1]
    store.close()
