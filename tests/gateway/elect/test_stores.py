"""The stores of an election, each a real one but for the API server: compare and set, and what is said of a bad one."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis

from penstock.gateway.elect import elector as elector_file
from penstock.gateway.elect.choose import elector
from penstock.gateway.elect.elector import Elector
from penstock.share.election import Claim, ElectionError, Follows, Leads, Record, RecordStore
from tests.batch import postgres
from tests.gateway.elect import valkey
from tests.gateway.elect.holder import elect
from tests.gateway.elect.lease_api import LEASES, LeaseApi
from tests.patience import WAIT_S

ONE, OTHER = Claim("aaaa", "10.0.0.1:8081", 1), Claim("bbbb", "10.0.0.2:8081", 2)


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[valkey.Server]:
    with valkey.server() as running:
        yield running


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[postgres.Server]:
    postgres.require()
    with postgres.own_server() as running:
        yield running


@pytest.fixture
def api() -> Iterator[LeaseApi]:
    running = LeaseApi()
    yield running
    running.stop()


def lease(api: LeaseApi, **more: str) -> dict[str, Any]:
    return {
        "kubernetes": {"server": api.url, "token_file": api.token_file, "namespace": "prod", "lease": "gate", **more}
    }


@pytest.fixture(params=["kubernetes", "valkey", "postgres"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of each kind, of a store that is empty."""
    kind: str = request.param
    if kind == "kubernetes":
        return lease(request.getfixturevalue("api"))
    server = request.getfixturevalue(f"{kind}_server")
    if kind == "valkey":
        server.say("FLUSHALL")
    else:
        postgres.fresh(server.url)
    return {kind: {"url": server.url}}


@asynccontextmanager
async def taking_part(settings: dict[str, Any], address: str = "10.0.0.9:8081") -> AsyncIterator[Elector]:
    made = elector(elect(settings), address=address, env={})
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def store_of(settings: dict[str, Any]) -> AsyncIterator[RecordStore]:
    async with taking_part(settings) as made:
        yield made._store


async def words(settings: dict[str, Any]) -> str:
    """What is said of this store, once it has been asked."""
    with patch.object(elector_file, "ATTEMPT_S", WAIT_S):  # on a busy machine a second is not enough for an answer
        async with taking_part(settings) as made, asyncio.timeout(WAIT_S):
            task = asyncio.ensure_future(made.run(lambda _standing: None))
            while made.trouble is None:
                await asyncio.sleep(0.01)
            task.cancel()
            assert made.leads() is None
            return made.trouble


# --- what every store does --------------------------------------------------------------------------------------------


async def test_who_has_read_last_writes(settings: dict[str, Any]) -> None:
    async with store_of(settings) as store, store_of(settings) as another:
        empty = await store.read()
        assert empty == Record()
        assert await another.read() == Record()
        first = await store.write(empty, ONE)
        assert first is not None
        assert (first.id, first.address, first.epoch) == ("aaaa", "10.0.0.1:8081", 1)
        assert await another.write(empty, OTHER) is None, "it is not empty any more"
        assert await another.read() == first
        second = await another.write(first, OTHER)
        assert second is not None
        assert second.version != first.version
        assert await store.write(first, ONE) is None, "it was written over"
        assert await store.read() == second
        given_back = await store.write(second, Claim("", "", 2))
        assert given_back is not None
        assert (given_back.id, given_back.address, given_back.epoch) == ("", "", 2)
        assert await another.read() == given_back


async def test_each_renewal_is_a_change_that_can_be_seen(settings: dict[str, Any]) -> None:
    async with store_of(settings) as store:
        record = await store.write(await store.read(), ONE)
        versions = set()
        for _ in range(3):
            assert record is not None
            versions.add(record.version)
            record = await store.write(record, ONE)
        assert len(versions) == 3


async def test_all_at_once_and_one_is_taken(settings: dict[str, Any]) -> None:
    async with store_of(settings) as one, store_of(settings) as two, store_of(settings) as three:
        for _ in range(4):
            stores = (one, two, three)
            seen = await asyncio.gather(*(store.read() for store in stores))
            written = await asyncio.gather(*(store.write(s, ONE) for store, s in zip(stores, seen, strict=True)))
            assert sum(record is not None for record in written) == 1


async def test_one_is_elected_gives_it_back_and_the_next_takes_it(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.share.election.LOOK_S", 0.05)
    loop = asyncio.get_running_loop()
    async with taking_part(settings, "one:1") as one, taking_part(settings, "two:1") as two, asyncio.timeout(WAIT_S):
        first = loop.create_task(one.run(lambda _standing: None))
        while one.leads() is None:
            await asyncio.sleep(0.005)
        second = loop.create_task(two.run(lambda _standing: None))
        while two.standing != Follows("one:1", 1):
            await asyncio.sleep(0.005)
        assert one.standing == Leads(1)
        assert one.trouble is None
        await one.close()
        assert one.leads() is None
        while two.leads() != 2:
            await asyncio.sleep(0.005)
        first.cancel()
        second.cancel()


async def test_a_store_that_stands_still_is_given_up_after_a_while(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elector_file, "ATTEMPT_S", 0.1)
    async with taking_part(settings) as made:

        async def stands_still() -> Record:
            await asyncio.sleep(3600)
            raise AssertionError

        made._store.read = stands_still  # type: ignore[method-assign]
        task = asyncio.ensure_future(made.run(lambda _standing: None))
        async with asyncio.timeout(WAIT_S):
            while made.trouble is None:
                await asyncio.sleep(0.01)
        task.cancel()
        assert made.trouble == f"{made.where} does not answer within 0.1 s"


# --- Kubernetes -------------------------------------------------------------------------------------------------------


async def test_a_lease_reports_what_others_read_in_it(api: LeaseApi) -> None:
    async with store_of(lease(api)) as store:
        assert store.where == "the Lease gate in prod"
        first = await store.write(await store.read(), ONE)
        spec = api.leases["gate"]["spec"]
        assert spec["holderIdentity"] == "10.0.0.1:8081_aaaa"
        assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (3, 1)
        assert spec["acquireTime"] == spec["renewTime"]
        assert first is not None
        await store.write(first, ONE)
        renewed = api.leases["gate"]["spec"]
        assert renewed["acquireTime"] == spec["acquireTime"]
        assert renewed["renewTime"] > spec["renewTime"]


async def test_a_label_is_no_sign_of_life_and_stays(api: LeaseApi) -> None:
    async with store_of(lease(api)) as store:
        first = await store.write(await store.read(), ONE)
        assert first is not None
        api.touch("gate")
        assert await store.write(first, ONE) is None, "the object has been modified"
        assert await store.read() == first
        assert await store.write(first, ONE) is not None
        assert "touched" in api.leases["gate"]["metadata"]["labels"]


async def test_a_lease_that_was_deleted_is_made_again(api: LeaseApi) -> None:
    async with store_of(lease(api)) as store:
        first = await store.write(await store.read(), ONE)
        assert first is not None
        del api.leases["gate"]
        assert await store.write(first, ONE) is None
        assert await store.read() == Record()
        assert await store.write(Record(), ONE) is not None


@pytest.mark.parametrize("verb", ["get", "create", "update"])
async def test_without_rights_it_names_those_needed(api: LeaseApi, verb: str) -> None:
    if verb == "update":
        async with store_of(lease(api)) as store:
            await store.write(await store.read(), Claim("", "", 1))
    api.verbs.discard(verb)
    if verb == "create":
        async with store_of(lease(api)) as store:
            with pytest.raises(ElectionError) as raised:
                await store.write(await store.read(), ONE)
            said = str(raised.value)
    else:
        said = (await words(lease(api))).removeprefix("the Lease gate in prod: ")
    assert said == (
        "the API server answers 403 (leases.coordination.k8s.io is forbidden: User "
        f'"system:serviceaccount:prod:gate" cannot {verb} resource "leases"); the account needs the verbs get, create '
        "and update on leases of coordination.k8s.io"
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            (500, b'{"message": "etcdserver: leader changed"}'),
            "answers 500 (etcdserver: leader changed)",
        ),
        ((200, b"<html>"), "the API server answers 200 (what came is no JSON)"),
        ((200, b'{"spec": {"leaseTransitions": "many"}}'), "it can't be read: Expected `int | null`, got `str`"),
        ((200, b'{"spec": [1]}'), "it can't be read: Expected `object`, got `array`"),
        ((200, b"[]"), "the API server answers 200 (what came is no JSON)"),
        ((200, b'{"spec": {"holderIdentity": "\xff"}}'), "the API server answers 200 (what came is no JSON)"),
        ((200, b'{"a": "' + b"x" * (300 << 10) + b'"}'), "does not answer: a body of more than 262144 bytes"),
    ],
)
async def test_what_an_api_server_may_answer(api: LeaseApi, answer: tuple[int, bytes], said: str) -> None:
    api.answers = [answer]
    assert said in await words(lease(api))


async def test_a_token_that_is_not_taken_and_a_server_that_is_not_there(api: LeaseApi) -> None:
    Path(api.token_file).write_text("another")
    assert "answers 401 (Unauthorized)" in await words(lease(api))
    api.stop()
    assert "does not answer: " in await words(lease(api))


async def test_what_others_wrote_stays_in_the_lease(api: LeaseApi) -> None:
    api.leases["gate"] = {
        "metadata": {"name": "gate", "resourceVersion": "7", "ownerReferences": [{"name": "gate"}]},
        "spec": {"strategy": "OldestEmulationVersion"},
    }
    async with store_of(lease(api)) as store:
        record = await store.read()
        assert (record.id, record.epoch) == ("", 0)
        await store.write(record, ONE)
        assert api.leases["gate"]["metadata"]["ownerReferences"] == [{"name": "gate"}]
        assert api.leases["gate"]["spec"]["strategy"] == "OldestEmulationVersion"
        assert api.asked[-1] == ("PUT", f"{LEASES}/gate")


async def test_a_lease_of_another_program_is_followed_and_not_taken(api: LeaseApi) -> None:
    """Somebody named a Lease that is in use."""
    spec = {"holderIdentity": "controller", "renewTime": "2026-11-22T20:00:00.000000Z", "leaseTransitions": 3}
    api.leases["gate"] = {"metadata": {"name": "gate", "resourceVersion": "7"}, "spec": spec}
    async with store_of(lease(api)) as store:
        record = await store.read()
        assert (record.id, record.address, record.epoch) == ("controller", "", 3)


# --- Valkey -----------------------------------------------------------------------------------------------------------


async def test_a_valkey_that_wants_a_password(valkey_server: valkey.Server) -> None:
    settings = {"valkey": {"url": valkey_server.url}}
    valkey_server.say("CONFIG", "SET", "requirepass", "open-sesame")
    try:
        said = await words(settings)
        wrong = await words({"valkey": {"url": valkey_server.url.replace("unix://", "unix://:wrong@")}})
        async with store_of({"valkey": {"url": valkey_server.url.replace("unix://", "unix://:open-sesame@")}}) as store:
            await store.read()
    finally:
        with redis.Redis.from_url(valkey_server.url.replace("unix://", "unix://:open-sesame@")) as client:
            client.config_set("requirepass", "")
    assert said.startswith("penstock:decider in Valkey: it wants a password: write valkey://:${PASSWORD}@host:6379 (")
    assert wrong.startswith("penstock:decider in Valkey: it does not take this user and password (")
    assert "open-sesame" not in said + wrong


@pytest.mark.parametrize("field", ["version", "id", "address", "epoch"])
async def test_a_valkey_whose_hash_holds_no_text(
    valkey_server: valkey.Server, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a traceback twice a second."""
    valkey_server.say("FLUSHALL")
    with redis.Redis.from_url(valkey_server.url) as client:
        client.hset("penstock:decider", field, b"\xff\xfe")
    settings = {"valkey": {"url": valkey_server.url}}
    assert "another program writes to this key, bytes that are no text: give another `key`" in await words(settings)
    assert not any(record.exc_info for record in caplog.records)
    async with store_of(settings) as store:
        with pytest.raises(ElectionError):
            await store.read()
        valkey_server.say("DEL", "penstock:decider")
        assert await store.read() == Record(), "the same connection goes on"


async def test_a_valkey_that_only_reads(valkey_server: valkey.Server) -> None:
    valkey_server.say("CONFIG", "SET", "replica-serve-stale-data", "yes")
    valkey_server.say("REPLICAOF", "127.0.0.1", "1")
    try:
        async with store_of({"valkey": {"url": valkey_server.url}}) as store:
            with pytest.raises(ElectionError, match="it is a replica that only reads: name the primary"):
                await store.write(Record(), ONE)
        said = await words({"valkey": {"url": valkey_server.url}})
        assert "it is a replica that only reads" in said, "whoever only looks is told as well"
    finally:
        valkey_server.say("REPLICAOF", "NO", "ONE")


async def test_a_valkey_whose_user_may_not(valkey_server: valkey.Server) -> None:
    valkey_server.say("ACL", "SETUSER", "looker", "on", ">secret", "~other:*", "+@read", "+role")
    said = await words({"valkey": {"url": valkey_server.url.replace("unix://", "unix://looker:secret@")}})
    assert said.startswith("penstock:decider in Valkey: the user may not do this: it needs hget, hmget, hset and eval")


async def test_the_rights_that_are_named_are_enough(valkey_server: valkey.Server) -> None:
    rights = ["+hget", "+hmget", "+hset", "+eval"]
    valkey_server.say("ACL", "SETUSER", "gate", "on", ">secret", "~penstock:*", *rights)
    valkey_server.say("FLUSHALL")
    async with store_of({"valkey": {"url": valkey_server.url.replace("unix://", "unix://gate:secret@")}}) as store:
        assert await store.write(await store.read(), ONE) is not None


async def test_a_key_that_holds_something_else(valkey_server: valkey.Server) -> None:
    valkey_server.say("SET", "taken:decider", "x")
    said = await words({"valkey": {"url": valkey_server.url, "key": "taken"}})
    assert said.startswith("taken:decider in Valkey: the key holds something else: give another `key` (")


async def test_a_valkey_that_is_a_cluster_or_lacks_scripts() -> None:
    with valkey.server("--cluster-enabled", "yes") as running:
        said = await words({"valkey": {"url": running.url}})
        assert "it is a node of a cluster" in said
        running.say("CLUSTER", "ADDSLOTSRANGE", "0", "1")
        running.say("CONFIG", "SET", "cluster-require-full-coverage", "no")
    with valkey.server("--rename-command", "EVAL", "") as running:
        async with store_of({"valkey": {"url": running.url}}) as store:
            with pytest.raises(ElectionError, match="it lacks what is needed: scripts and hashes"):
                await store.write(await store.read(), ONE)


async def test_a_valkey_that_stood_still_answers_what_it_is_asked_then(valkey_server: valkey.Server) -> None:
    """Not what it was asked before: such an answer would come too late, for another question."""
    assert valkey_server.process is not None
    valkey_server.say("FLUSHALL")
    settings = {"valkey": {"url": valkey_server.url}}
    async with store_of(settings) as store, store_of(settings) as another:
        first = await store.write(await store.read(), ONE)
        assert first is not None
        valkey_server.process.send_signal(signal.SIGSTOP)
        try:
            for asked in (store.write(first, OTHER), store.read(), store.write(first, ONE)):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await asked
        finally:
            valkey_server.process.send_signal(signal.SIGCONT)
        record = await store.read()
        assert record == await another.read()
        assert await store.write(record, Claim("cccc", "10.0.0.3:8081", 3)) is not None
        assert (await another.read()).id == "cccc"


async def test_a_valkey_that_is_not_there() -> None:
    said = await words({"valkey": {"url": "valkey://127.0.0.1:1/0"}})
    assert said.startswith("penstock:decider in Valkey: Error ")
    assert "refused" in said or "111" in said


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def postgres_modules() -> tuple[Any, Any]:
    """psycopg, and the file that needs it."""
    return importlib.import_module("psycopg"), importlib.import_module("penstock.gateway.elect.postgres_row")


async def test_the_table_is_made_by_all_at_once(postgres_server: postgres.Server) -> None:
    postgres.fresh(postgres_server.url)
    settings = {"postgres": {"url": postgres_server.url}}
    async with store_of(settings) as one, store_of(settings) as two, store_of(settings) as three:
        assert set(await asyncio.gather(one.read(), two.read(), three.read())) == {Record()}
        assert set(await asyncio.gather(one.read(), two.read(), three.read())) == {Record()}


async def test_a_database_without_an_encoding_is_read_as_text(postgres_server: postgres.Server) -> None:
    async with store_of({"postgres": {"url": postgres.without_encoding(postgres_server.url)}}) as store:
        first = await store.write(await store.read(), ONE)
        assert await store.read() == first
        assert await store.write(await store.read(), ONE) is not None


async def test_groups_of_gateways_in_one_database(postgres_server: postgres.Server) -> None:
    url = postgres_server.url
    postgres.fresh(url)
    async with store_of({"postgres": {"url": url}}) as one, store_of({"postgres": {"url": url, "name": "b"}}) as two:
        await one.write(await one.read(), ONE)
        assert await two.read() == Record()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("&options=-cdefault_transaction_read_only%3Don", "it is a standby, or takes no writes: name the primary ("),
        ("&user=nobody-here", 'role "nobody-here" does not exist'),
        ("&dbname=elsewhere", 'database "elsewhere" does not exist'),
    ],
)
async def test_a_postgres_that_does_not_do(postgres_server: postgres.Server, more: str, said: str) -> None:
    postgres.fresh(postgres_server.url)
    told = await words({"postgres": {"url": postgres_server.url + more}})
    assert told.startswith("the row penstock of penstock_election in PostgreSQL: ")
    assert said in told


async def test_a_role_without_rights(postgres_server: postgres.Server) -> None:
    psycopg, _ = postgres_modules()

    postgres.fresh(postgres_server.url)
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS looker")
        connection.execute("CREATE ROLE looker LOGIN")
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        connection.execute("GRANT USAGE ON SCHEMA public TO looker")
    said = await words({"postgres": {"url": postgres_server.url + "&user=looker"}})
    assert "the role needs the right to make the table, or to read and write it (permission denied" in said


async def test_a_connection_that_is_cut_is_made_again(postgres_server: postgres.Server) -> None:
    psycopg, _ = postgres_modules()

    async with store_of({"postgres": {"url": postgres_server.url}}) as store:
        await store.read()
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with pytest.raises(ElectionError, match="terminating connection"):
            await store.read()
        await store.read()


async def test_a_postgres_that_stands_still_holds_nobody_up(postgres_server: postgres.Server) -> None:
    """Its client asks a server that answers nothing to end the statement, for seconds. Others go on meanwhile."""
    psycopg, row = postgres_modules()

    async with store_of({"postgres": {"url": postgres_server.url}}) as store:
        await store.read()
        assert isinstance(store, row.PostgresRow)
        with psycopg.connect(postgres_server.url) as connection:
            connection.execute("LOCK TABLE penstock_election IN ACCESS EXCLUSIVE MODE")
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await store.read()
            assert loop.time() - begun_s < WAIT_S, "else it would wait for the lock"
            assert len(store._ending) <= row.ENDING_MAX
        async with asyncio.timeout(WAIT_S):
            await store.read()
            while store._ending:
                await asyncio.sleep(0.01)


# --- all --------------------------------------------------------------------------------------------------------------


def test_nothing_of_the_stores_is_loaded_before_one_is_chosen() -> None:
    code = (
        "import sys, json; import penstock.gateway.serve, penstock.gateway.elect.choose; "
        "print(json.dumps([name for name in ('redis', 'psycopg', 'penstock.gateway.elect.postgres_row') "
        "if name in sys.modules]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(found.stdout) == []
