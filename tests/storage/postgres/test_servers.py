"""The servers that an address names: each gets its share of the time, and one that cannot store is passed over."""

import math
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import trio

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.samples import causes, turn
from tests.support.fake_postgres import STAGES, Stage, fake_server
from tests.support.postgres import Server, database, fill, name_in, needs_postgres, server
from tests.support.postgres_proxy import wire_to
from tests.support.waiting import until
from warren.base.errors import StoreError
from warren.conversation.memory import MemoryConfig
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.postgres.doctor import examine
from warren.storage.maintenance.postgres.migration import look
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.postgres import PostgresStore
from warren.storage.postgres.driver import Connection, array
from warren.storage.postgres.servers import Address
from warren.storage.postgres.servers import Server as Place
from warren.storage.postgres.session import FIXED
from warren.storage.postgres.tokens import TokenTable
from warren.storage.projection import database_feed
from warren.storage.queries import StoredMessages
from warren.storage.store import Store

WRONG = ("57P03", "08P01", "53300", "3D000", "25006")


def behind(port: int, url: str, more: str = "") -> str:
    """Return the address of two servers: one on a port of this machine, and then that of a database of the tests."""
    folder = server().folder
    return f"postgresql://warren@/{name_in(url)}?host=127.0.0.1,{folder}&port={port},5432{more}"


async def opened_store(config: PostgresConfig) -> None:
    """Open and close the store."""
    await (await PostgresStore.open(config)).aclose()


async def opened_memory(config: PostgresConfig) -> None:
    """Open and close the memory."""
    await (await PostgresMemory.open(MemoryConfig(url=config.url))).aclose()


async def test_a_server_that_says_nothing_has_its_share_of_the_time() -> None:
    """At whatever moment it falls silent, the next one of the address is asked then; the next opening asks it first."""
    with database() as url:

        async def open_behind(stage: Stage) -> None:
            async with fake_server(stage) as fake:
                config = PostgresConfig(behind(fake.port, url), timeout=4.0)
                for _ in range(2):
                    (await Connection.open(config, "test")).close()
                # With the default `sslmode`, libpq asks a server that ended the connection once more without TLS.
                assert fake.connections == 1, stage

        async with trio.open_nursery() as nursery:
            for stage in STAGES:
                nursery.start_soon(open_behind, stage)


async def test_a_server_that_refuses_is_passed_over() -> None:
    """Whichever code it gives, while it is asked to log in, after that, or at the first statement."""
    with database() as url:
        for stage in STAGES[3:]:
            for code in WRONG:
                async with fake_server(stage, code) as fake:
                    (await Connection.open(PostgresConfig(behind(fake.port, url)), "test")).close()
                    assert fake.connections > 0


async def test_every_opener_passes_over_a_server_that_says_nothing() -> None:
    """The store, the memory, the table of tokens, the projector, the doctor, and a copy."""
    openers: dict[str, Callable[[PostgresConfig], Awaitable[object]]] = {
        "store": opened_store,
        "memory": opened_memory,
        "tokens": lambda config: TokenTable(config).rows(),
        "projector": lambda config: trio.to_thread.run_sync(lambda: database_feed.home(config).open().close()),
        "doctor": examine,
        "status": look,
    }
    with database() as url:

        async def open_behind(opener: Callable[[PostgresConfig], Awaitable[object]]) -> None:
            async with fake_server("login") as fake:
                await opener(PostgresConfig(behind(fake.port, url, "&connect_timeout=2"), timeout=60.0))
                assert fake.connections == 1, opener

        async with trio.open_nursery() as nursery:
            for opener in openers.values():
                nursery.start_soon(open_behind, opener)


async def test_no_server_answers() -> None:
    """One error names all of them with their problems, and `connect_timeout` bounds each."""
    async with fake_server("login") as one, fake_server("session") as two, fake_server("startup", "57P03") as starting:
        ports = f"{one.port},{two.port},{starting.port}"
        url = f"postgresql://app:secret@127.0.0.1,127.0.0.1,127.0.0.1/db?port={ports}&connect_timeout=1"
        with pytest.raises(StoreError) as raised:
            await PostgresStore.open(PostgresConfig(url, timeout=3600.0))
        assert (raised.value.cause, raised.value.retryable) == ("unreachable", True)
        for fake, problem in ((one, "no answer within 1 s"), (two, "no answer within 1 s"), (starting, "57P03")):
            assert re.search(f"port {fake.port} failed: [^;]*{problem}", raised.value.message)
        assert "secret" not in repr(raised.value)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe a service in a file."""
    (tmp_path / "services").write_text("[shop]\nhost=a,b\nport=1,2\nconnect_timeout=7\n", encoding="utf-8")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("postgresql://a,b:2,[::1]:3/db", {}, ["a::5432", "b::2", "::1::3"]),
        ("postgresql://a,b/db?port=7", {}, ["a::7", "b::7"]),
        ("host=a,b hostaddr=1.2.3.4,::1", {}, ["a:1.2.3.4:5432", "b:::1:5432"]),
        ("hostaddr=1.2.3.4", {}, [":1.2.3.4:5432"]),
        ("host=/run/postgresql,a", {}, ["/run/postgresql::5432", "a::5432"]),
        ("dbname=db", {}, ["::5432"]),
        ("dbname=db", {"PGHOST": "a,b", "PGPORT": "6,7"}, ["a::6", "b::7"]),
        ("host=c", {"PGHOSTADDR": "1.2.3.4"}, ["c:1.2.3.4:5432"]),
        ("service=shop", {}, ["a::1", "b::2"]),
        ("dbname=db", {"PGSERVICE": "shop"}, ["a::1", "b::2"]),
        ("service=shop host=c port=3", {}, ["c::3"]),
    ],
)
def test_the_servers_of_an_address(
    service: None, monkeypatch: pytest.MonkeyPatch, url: str, environ: dict[str, str], expected: list[str]
) -> None:
    """They are libpq's, wherever it has them from."""
    del service
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    url = url if "//" in url else f"postgresql:///?{url.replace(' ', '&').replace('host=/run', 'host=%2Frun')}"
    address = Address.of(url, "test")
    assert [f"{each.host}:{each.address}:{each.port}" for each in address.servers] == expected
    assert address.limit == (7.0 if "shop" in f"{url}{environ}" else math.inf)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("host=a,b&port=1,2,3", "it has 2 hosts, 2 hostaddrs and 3 ports"),
        ("host=a,b&hostaddr=127.0.0.1", "it has 2 hosts, 1 hostaddrs and 2 ports"),
        ("host=a&port=x", "the port 'x' is not a number"),
        ("connect_timeout=soon", "connect_timeout must be a whole number of seconds, and is 'soon'"),
        ("service=nothing", 'definition of service "nothing" not found'),
    ],
)
async def test_an_address_that_fits_no_server_is_refused(query: str, problem: str) -> None:
    """The error names the part of it, and no other try will do better."""
    with pytest.raises(StoreError, match=re.escape(problem)) as raised:
        await Connection.open(PostgresConfig(f"postgresql://app:secret@/db?{query}"), "test")
    assert (raised.value.cause, raised.value.retryable) == ("cannot_open", False)
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    ("query", "reads", "rounds"),
    [
        ("", False, [("any", True)]),
        ("", True, [("any", True), ("any", False)]),
        ("target_session_attrs=read-write", False, [("any", True)]),
        ("target_session_attrs=any", False, [("any", False)]),
        ("target_session_attrs=standby", False, [("standby", False)]),
        ("target_session_attrs=prefer-standby", False, [("standby", False), ("any", False)]),
    ],
)
def test_the_rounds_of_an_address(query: str, reads: bool, rounds: list[tuple[str, bool]]) -> None:  # noqa: FBT001 - a column
    """A server that can be written is looked for, unless the address says otherwise."""
    address = Address.of(f"postgresql://a,b/db?load_balance_hosts=random&{query}", "test")
    attempts = address.attempts([Place("a", "127.0.0.1", "1"), Place("b", "127.0.0.1", "1")], reads=reads)
    assert [re.search(r"attrs=([a-z-]+)", each.conninfo)[1] for each in attempts[::2]] == [each for each, _ in rounds]  # type: ignore[index]
    assert [each.writable for each in attempts[::2]] == [writable for _, writable in rounds]
    for first in range(0, len(attempts), 2):
        assert {each.server.host for each in attempts[first : first + 2]} == {"a", "b"}


async def test_the_defaults_of_a_role_do_not_count() -> None:
    """Reads see their rows, writes are stored and are durable, and the doctor names the defaults."""
    bad = {
        "default_transaction_read_only": "on",
        "row_security": "off",
        "synchronous_commit": "off",
        "DateStyle": "'German, DMY'",
        "TimeZone": "'Asia/Kathmandu'",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "standard_conforming_strings": "off",
        "default_transaction_isolation": "serializable",
        "extra_float_digits": "-15",
        "idle_session_timeout": "'1min'",
        "array_nulls": "off",
        "session_replication_role": "replica",
        "search_path": "nowhere",
    }
    with database() as url:
        for name, value in bad.items():
            server().run("postgres", f"ALTER DATABASE {name_in(url)} SET {name} = {value}")
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a"), turn("a", 1))
            assert (await store.read(StoredMessages("a")))[1] == 4
        report = await examine(PostgresConfig(url))
        named = [each.message for each in report.findings if each.check == "settings"]
        for name in ("default_transaction_read_only = on", "row_security = off", "synchronous_commit = off"):
            assert any(name in message for message in named), name
        db = await Connection.open(PostgresConfig(url), "test")
        try:
            found: dict[str, str] = dict(
                await db.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY ($1::text[])", array(list(bad)))
            )
        finally:
            db.close()
        assert found == {
            **{name: FIXED.get(name, "") for name in bad},
            "default_transaction_read_only": "off",
            "synchronous_commit": "on",
            "search_path": "pg_catalog",
        }


async def test_a_setting_that_the_role_may_not_change_is_named() -> None:
    """It keeps the store from opening, and no other try will do better."""
    with database() as url:
        role = f"app_{name_in(url)}"
        server().run(name_in(url), f"CREATE ROLE {role} LOGIN")
        try:
            server().run(name_in(url), f"ALTER ROLE {role} SET session_replication_role = replica")
            with pytest.raises(StoreError, match="session_replication_role") as raised:
                await PostgresStore.open(PostgresConfig(url.replace("warren@", f"{role}@")))
            assert (raised.value.cause, raised.value.retryable) == ("permission", False)
        finally:
            server().run(name_in(url), f"DROP ROLE {role}")


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """Start a server whose settings are the test's."""
    needs_postgres()
    made = Server.make()
    try:
        fill(made, "postgres")
        yield made
    finally:
        made.remove()


async def read_for_ever(store: Store) -> None:
    """Read again and again: each connection that reads learns with an answer that its server cannot be written."""
    while True:
        await store.read(StoredMessages("a"))


async def test_a_server_that_is_made_read_only_is_left(own: Server) -> None:
    """Its connections end with the first refusal; nothing was stored, and all goes on when it can be written again."""
    pids = "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name IN ('warren: writer', 'warren: keeper')"
    async with postgres_opened(own.url("postgres"), lease=60.0) as store:
        await every(store, turn("a"))
        ((before,),) = own.run("postgres", pids)
        try:
            own.run("postgres", "ALTER SYSTEM SET default_transaction_read_only = on")
            own.run("postgres", "SELECT pg_reload_conf()")
            await until(lambda: own.run("postgres", "SHOW default_transaction_read_only") == [("on",)])
            (refused,) = await store.write([turn("a", 1)])
            assert (refused.cause, refused.retryable) == ("read_only", True)
            with pytest.raises(StoreError) as raised:
                await read_for_ever(store)
            assert raised.value.cause == "read_only"
            with pytest.raises(StoreError) as raised:
                await store.renew()
            assert raised.value.cause == "read_only"
            with pytest.raises(StoreError, match="default_transaction_read_only = on") as raised:
                await PostgresStore.open(PostgresConfig(own.url("postgres")))
            assert raised.value.cause == "read_only"
            await examine(PostgresConfig(own.url("postgres")))
        finally:
            own.run("postgres", "ALTER SYSTEM RESET default_transaction_read_only")
            own.run("postgres", "SELECT pg_reload_conf()")
        assert causes(await store.write([turn("a", 1)])) == ["ok"]
        await store.renew()
        ((after,),) = own.run("postgres", pids)
        assert not set(before) & set(after)


def standby_of(primary: Server) -> Server:
    """Return a standby of a server, which is not started."""
    assert primary.programs is not None
    place = primary.folder / "standby"
    command = (primary.programs / "pg_basebackup", "--checkpoint=fast", "-R", "-D", place / "data")
    run_as_server(primary.folder, "mkdir", place)
    run_as_server(primary.folder, *command, "-d", primary.url("postgres"))
    return Server(place, primary.flags, primary.programs, port=5433)


def run_as_server(folder: Path, *command: Path | str) -> None:
    """Run a command as the user of a server."""
    user = folder.stat()
    subprocess.run(
        command, check=True, capture_output=True, cwd=folder, user=user.st_uid, group=user.st_gid, extra_groups=[]
    )


async def test_a_demoted_server_is_left_for_its_successor() -> None:
    """Of two servers the one that can be written is used, whichever comes first, before and after they change roles."""
    needs_postgres()
    one = await trio.to_thread.run_sync(Server.make)
    two = one
    try:
        await trio.to_thread.run_sync(fill, one, "postgres")
        two = await trio.to_thread.run_sync(standby_of, one)
        await trio.to_thread.run_sync(two.start)
        folders = one.folder, two.folder
        url = f"postgresql://warren@/postgres?host={folders[0]},{folders[1]}&port=5432,5433"
        other_way = f"postgresql://warren@/postgres?host={folders[1]},{folders[0]}&port=5433,5432"
        patient = partial(postgres_opened, timeout=30.0, lease=60.0)
        async with patient(url) as store, patient(other_way) as other:
            await every(store, turn("a"))
            await every(other, turn("b"))
            await trio.to_thread.run_sync(one.stop)
            await trio.to_thread.run_sync(two.run, "postgres", "SELECT pg_promote()")
            run_as_server(one.folder, "touch", one.folder / "data" / "standby.signal")
            await trio.to_thread.run_sync(one.start)
            for each, session_id in ((store, "a"), (other, "b")):
                assert causes(await each.write([turn(session_id, 1)])) == ["ok"]
                assert (await each.read(StoredMessages(session_id)))[1] == 4
        (finding,) = [
            each for each in (await examine(PostgresConfig(one.url("postgres")))).findings if each.check == "standby"
        ]
        assert finding.level == "problem"
        with pytest.raises(StoreError, match="takes no writes") as raised:
            await PostgresStore.open(PostgresConfig(one.url("postgres")))
        assert (raised.value.cause, raised.value.retryable) == ("read_only", True)
    finally:
        await trio.to_thread.run_sync(two.stop)
        await trio.to_thread.run_sync(one.remove)


async def test_a_server_that_freezes_is_left_for_the_next_one() -> None:
    """The call that it does not answer ends, and the next ones are answered elsewhere."""
    with database() as url:
        async with wire_to(url) as wire:
            port = urlsplit(wire.url).port
            assert port is not None
            async with postgres_opened(behind(port, url, "&sslmode=disable"), timeout=0.8, lease=60.0) as store:
                await every(store, turn("a"))
                async with trio.open_nursery() as nursery:  # on two connections
                    nursery.start_soon(store.read, StoredMessages("a"))
                    nursery.start_soon(store.read, StoredMessages("a"))
                wire.hold()
                (unknown,) = await store.write([turn("a", 1)])
                assert isinstance(unknown, StoreError)
                assert causes(await store.write([turn("b")])) == ["ok"]
                with pytest.raises(StoreError) as raised:  # on one of the two
                    await store.read(StoredMessages("a"))
                assert raised.value.cause == "unreachable"
                assert (await store.read(StoredMessages("a")))[1] == 2
                wire.go_on()


async def test_a_server_that_freezes_does_not_keep_a_projector() -> None:
    """A statement without an answer ends, so that the thread of the projector can."""
    with database() as url:
        async with wire_to(url) as wire:
            feed = await trio.to_thread.run_sync(database_feed.home(PostgresConfig(wire.url, timeout=1.0)).open)
            wire.hold()
            with pytest.raises(psycopg.OperationalError):
                await trio.to_thread.run_sync(feed.count)
            feed.close()
