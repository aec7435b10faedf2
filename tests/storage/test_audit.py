"""The audit of a file and of a database: only added to, until its retention ends; the same after a kill and a copy."""

import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tests.storage.audited import created, said
from tests.storage.conformance.homes import done
from tests.storage.samples import NOW, opened, used, written
from tests.support.postgres import database
from warren.base.retention import Retention
from warren.base.tenant_limits import TokenLimits
from warren.calls.operators import AuditRequest
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.maintenance import retention
from warren.storage.maintenance.postgres import retention as of_database
from warren.storage.operations import Archive, Audit, Lease, Release
from warren.storage.postgres import PostgresStore
from warren.storage.queries import ANY_TENANT, AuditEntries, LedgerSums
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.store import Store
from warren.transport.access.token_list import Token, hash_of
from warren.transport.access.token_table import open_table, row_of

CHANGES = (
    "UPDATE {0} SET who = 'nobody'",
    "DELETE FROM {0}",
    "REPLACE INTO {0} SELECT number, at, tenant, 'nobody', action, outcome, session_id, node, source, details FROM {0}",
)
VICTIM = """
import sys
from pathlib import Path
import trio
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor

async def main():
    place = sys.argv[1]
    store = PostgresConfig(place) if "://" in place else StoreConfig(Path(place))
    async with open_supervisor(Config(store=store)) as service:
        async with trio.open_nursery() as nursery:
            async def work():
                while True:
                    one = (await service.create_session(None)).session_id
                    two = (await service.fork(one)).state.session_id
                    await service.archive(two)
                    await service.delete(one)
                    print("again", flush=True)
            for _ in range(8):
                nursery.start_soon(work)

trio.run(main)
"""


async def test_rows_of_a_file_are_only_added(tmp_path: Path) -> None:
    """Whatever program tries it: changes and removals are refused; retention removes old ones, and says so."""
    async with opened(tmp_path) as store:
        await written(store, created("a"), Audit((said("interrupt", "a", after=9 * 86_400),)), Release("a", Lease(1)))
        await written(store, created("b"), Release("b", Lease(1)), Archive("b", said("archive", "b")))
    db = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
    for change in CHANGES:
        with pytest.raises(apsw.ConstraintError):
            db.execute(change.format("audit"))
    db.close()
    config = StoreConfig(tmp_path / "store")
    now = NOW + timedelta(days=10)
    plan = retention.plan(config, Retention(audit=5 * 86_400, archived=86_400), now)
    assert (plan.entries, plan.sessions) == (3, ("b",))
    assert retention.prune(config, plan, rest=lambda _seconds: None).entries == 3
    async with opened(tmp_path) as store:
        left = (await store.read(AuditEntries(ANY_TENANT, AuditRequest()))).entries
    assert [(each.action, each.who, each.session_id) for each in left] == [
        ("interrupt", "ann", "a"),
        ("delete", "retention", "b"),
        ("prune", "retention", None),
    ]
    assert (left[1].tenant, left[2].details["entries"]) == ("default", "3")
    db = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
    with pytest.raises(apsw.ConstraintError):
        db.execute("DELETE FROM audit")
    db.close()


@pytest.mark.parametrize("kind", ["file", "database"])
async def test_old_hours_of_the_ledger_can_go(kind: str, tmp_path: Path) -> None:
    """Whole hours by their end, of all tenants, in steps; those of today stay whatever the age is."""
    with database() if kind == "database" else nullcontext(str(tmp_path)) as place:
        file, url = StoreConfig(tmp_path), PostgresConfig(place if kind == "database" else "postgresql://h/d")
        store: Store = await (PostgresStore.open(url) if kind == "database" else SqliteStore.open(file))
        for number in range(30):  # one in each hour from 12:00:00 on
            await done(store, used("a", number))
            await done(store, used("b", number, tenant="other"))

        async def pruned(age: float, now: datetime) -> tuple[int, int]:
            ages = Retention(usage=age)
            if kind == "database":
                planned = await of_database.plan(url, ages, now)
                return planned.usage, (await of_database.prune(url, planned)).usage
            plan = retention.plan(file, ages, now)
            return plan.usage, retention.prune(file, plan, rest=lambda _seconds: None).usage

        day = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
        assert await pruned(60.0, day + timedelta(hours=23)) == (0, 0)
        assert await pruned(3_600.0, day + timedelta(hours=15, minutes=59, days=1)) == (24, 24)
        assert min(await store.read(LedgerSums("other", "hour"))) == "2026-03-02T00:00:00Z"
        assert await pruned(36 * 3_600.0, day + timedelta(hours=15, minutes=59, days=2)) == (2 * 3, 2 * 3)
        assert min(await store.read(LedgerSums(ANY_TENANT, "hour"))) == "2026-03-02T03:00:00Z"
        await store.aclose()


async def test_rows_of_a_database_are_only_added() -> None:
    """The same, and for TRUNCATE."""
    with database() as url:
        store = await PostgresStore.open(PostgresConfig(url))
        for operation in (created("a"), Audit((said("interrupt", "a", after=9 * 86_400),))):
            await done(store, operation)
        with psycopg.connect(url, autocommit=True) as db:
            for change in (*CHANGES[:2], "TRUNCATE {0}"):
                with pytest.raises(psycopg.errors.RaiseException):
                    db.execute(change.format("warren.audit").encode())
        config = PostgresConfig(url)
        plan = await of_database.plan(config, Retention(audit=5 * 86_400), NOW + timedelta(days=10))
        assert (await of_database.prune(config, plan)).entries == 1
        left = (await store.read(AuditEntries(ANY_TENANT, AuditRequest()))).entries
        assert [each.action for each in left] == ["interrupt", "prune"]
        await store.aclose()


async def test_the_database_notes_its_tokens() -> None:
    """Whoever changes the table, by the name of the token and without its hash; a change that is taken back is none."""
    with database() as url:
        async with open_table(PostgresConfig(url)) as table:
            limits = TokenLimits(tokens_per_day=200, sessions=5)
            token = Token(
                hash=hash_of("t"), tenant="acme", name="ci", scopes=("session:read",), expires=NOW, limits=limits
            )
            await table.add(row_of(token))
            with psycopg.connect(url) as db:
                db.execute("UPDATE warren.tokens SET scopes = '{memory:read}'")
                db.rollback()
                db.execute("UPDATE warren.tokens SET scopes = '{session:read,session:write}'")
                db.execute('UPDATE warren.tokens SET limits = \'{"tokens_per_day": 100000, "sessions": null}\'')
                db.execute("UPDATE warren.tokens SET limits = '{}'")
            await table.remove([token.hash])
        store = await PostgresStore.open(PostgresConfig(url))
        entries = (await store.read(AuditEntries("acme", AuditRequest()))).entries
        await store.aclose()
        assert [(each.action, each.outcome, each.who, each.details) for each in entries] == [
            (action, "done", "", {"name": "ci", "scopes": scopes, "expires": "2026-03-01T12:00:00+00:00", **limited})
            for action, scopes, limited in (
                ("token_added", "session:read", {"limits": "sessions=5 tokens_per_day=200"}),
                ("token_changed", "session:read session:write", {"limits": "sessions=5 tokens_per_day=200"}),
                ("token_changed", "session:read session:write", {"limits": "tokens_per_day=100000"}),
                ("token_changed", "session:read session:write", {}),
                ("token_removed", "session:read session:write", {}),
            )
        ]


@pytest.mark.parametrize("kind", ["file", "database"])
def test_after_a_kill_each_change_has_its_entry(kind: str, tmp_path: Path) -> None:
    """Of each session that is there, archived or deleted the table says how it became so, once, and of no other."""
    with database() if kind == "database" else nullcontext(str(tmp_path)) as place:
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, place], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        for _ in range(20):
            assert victim.stdout.readline() == "again\n"
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        victim.stdout.close()
        if kind == "database":
            with psycopg.connect(place, autocommit=True) as db:
                entries: Counter[Any] = Counter(db.execute("SELECT session_id, action FROM warren.audit").fetchall())
                of_sessions = "SELECT session_id, state, details::json -> 'parent' IS NOT NULL FROM warren.sessions"
                rows: list[Any] = db.execute(of_sessions).fetchall()
        else:
            with closing(apsw.Connection(str(tmp_path / FILE_NAME))) as file:
                entries = Counter(file.execute("SELECT session_id, action FROM audit").fetchall())
                of_sessions = "SELECT session_id, state, json_extract(details, '$.parent') IS NOT NULL FROM sessions"
                rows = file.execute(of_sessions).fetchall()
    expected = Counter[Any]()
    forks = {row[0] for row in entries if row[1] == "fork"}
    for session_id, state, is_fork in rows:
        expected[session_id, "fork" if session_id in forks else "create"] += 1
        assert not is_fork or session_id in forks
        expected.update({1: [(session_id, "archive")], 2: [(session_id, "delete")]}.get(state, []))
    assert entries == expected
    assert len(entries) > 60
