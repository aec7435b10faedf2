"""Nodes in any home: who lives, who has a session, who was asked to drain, and the secret that they share."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import apsw
import psycopg
import pytest

from tests.storage.conformance.homes import Home, done, ephemeral
from tests.storage.samples import opened, turn
from tests.support.postgres import database
from warren.base.nodes import Announcement, NodeLoad
from warren.base.version import VERSION
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.maintenance.backup import back_up, restore
from warren.storage.membership import SECRETS, SecretOf
from warren.storage.operations import Archive, Claim, Claimed, Delete, Lease, LeaseHeld, Release
from warren.storage.postgres import PostgresStore
from warren.storage.queries import ANY_TENANT, Holders, LivingNodes, SessionHolder, SessionRow
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.store import Store

BUSY: Final = Announcement("north", "ws://10.0.0.1:4600", draining=False, load=NodeLoad(7, 2, 3))


async def test_a_node_is_listed_as_it_has_announced_itself(home: Home, tmp_path: Path) -> None:
    """With its release and the time of its start, and the newest load; a renewal without words leaves them."""
    async with home(tmp_path) as store:
        assert await store.renew(BUSY) is False
        assert store.key is not None
        for _ in range(2):
            (node,) = await store.read(LivingNodes())
            assert (node.key, node.name, node.address, node.release) == (store.key, "north", BUSY.address, VERSION)
            assert (node.draining, node.load, node.load.full) == (False, NodeLoad(7, 2, 3), False)
            assert timedelta(0) <= datetime.now(UTC) - node.started_at < timedelta(minutes=10)
            await store.renew()
        await store.renew(Announcement("north", None, draining=True, load=NodeLoad(3, 3, 3)))
        (node,) = await store.read(LivingNodes())
        assert (node.address, node.draining, node.load.full) == (None, True, True)


async def test_a_process_that_is_no_node_is_listed_without_an_address(home: Home, tmp_path: Path) -> None:
    """By its program; from its first write on at the latest."""
    async with home(tmp_path) as store:
        await store.renew()
        await done(store, turn("a"))
        (node,) = await store.read(LivingNodes())
        assert (node.key, node.address, node.draining, node.load) == (store.key, None, False, NodeLoad())
        assert "process" in node.name
        assert not node.load.full
        assert await store.ask_to_drain(node.name) is False


async def test_the_holder_of_a_session_is_found(home: Home, tmp_path: Path) -> None:
    """This process itself; nobody has a session that was put back, was deleted, or is not here."""
    async with home(tmp_path) as store:
        await store.renew(BUSY)
        await store.write([turn("a"), turn("b"), turn("c"), Archive("c")])
        found = await store.read(SessionHolder("a", ANY_TENANT))
        assert found is not None
        assert (found.key, found.name) == (store.key, "north")
        await store.write([Release("a", Lease(1)), Delete("b")])
        assert [await store.read(SessionHolder(each, ANY_TENANT)) for each in ("a", "b", "x")] == [None, None, None]


async def test_the_holders_of_many_sessions_are_found_at_once(home: Home, tmp_path: Path) -> None:
    """With the number of the last stored event; a session that was deleted, or is not here, is left out."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b"), turn("c")])
        await store.write([Release("a", Lease(1)), Delete("b")])
        found = await store.read(Holders({"a", "b", "c", "x"}))
        records = {each: await store.read(SessionRow(each, ANY_TENANT)) for each in ("a", "c")}
        assert {each: held.holder for each, held in found.items()} == {"a": None, "c": store.key}
        assert {each: held.epoch for each, held in found.items()} == {"a": 1, "c": 1}
        assert {each: held.last_seq for each, held in found.items()} == {
            each: record.last_seq for each, record in records.items() if record is not None
        }
        assert await store.read(Holders(set())) == {}


async def test_a_node_learns_that_it_was_asked_to_drain(home: Home, tmp_path: Path) -> None:
    """By each of its renewals from then on; nobody else is asked."""
    async with home(tmp_path) as store:
        await store.renew(BUSY)
        assert await store.ask_to_drain("south") is False
        assert await store.renew(BUSY) is False
        assert await store.ask_to_drain("north") is True
        assert [await store.renew(BUSY), await store.renew()] == [True, True]


@pytest.mark.parametrize("of", SECRETS)
async def test_the_secrets_stay_and_are_not_shown(home: Home, tmp_path: Path, of: SecretOf) -> None:
    """Each has 32 bytes, which are in no representation of the store."""
    async with home(tmp_path) as store:
        secret = await store.secret(of)
        assert len(secret) == 32
        assert await store.secret(of) == secret
        assert len({await store.secret(each) for each in SECRETS}) == len(SECRETS)
        shown = repr(store) + repr(await store.read(LivingNodes()))
        assert secret.hex() not in shown
        assert repr(secret) not in shown


async def test_the_times_of_a_lease_fit_each_other(home: Home, tmp_path: Path) -> None:
    """At least two renewals may come late before the leases are no longer proved, and that is before they end."""
    async with home(tmp_path) as store:
        assert 0 < 2 * store.renewal < store.proof
        assert store.renewal < store.lease
        if home is not ephemeral:
            assert store.proof < store.lease


Pair = Callable[[Path], AbstractAsyncContextManager[tuple[Store, Store]]]


@asynccontextmanager
async def two_on_sqlite(path: Path) -> AsyncIterator[tuple[Store, Store]]:
    """Open one file twice, as two processes do."""
    async with opened(path) as one, opened(path) as two:
        yield one, two


@asynccontextmanager
async def two_on_postgres(_path: Path) -> AsyncIterator[tuple[Store, Store]]:
    """Open one database twice, as two processes do."""
    with database() as url:
        async with AsyncExitStack() as stack:
            stores = []
            for _ in range(2):
                store = await PostgresStore.open(PostgresConfig(url))
                stack.push_async_callback(store.aclose)
                stores.append(store)
            yield stores[0], stores[1]


@pytest.fixture(params=[two_on_sqlite, two_on_postgres])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Two processes on one store, in each home that can have two."""
    found: Pair = request.param
    return found


async def test_two_nodes_see_each_other(pair: Pair, tmp_path: Path) -> None:
    """Both list both, find the holder of a session, and have one secret; one that has left is gone."""
    async with pair(tmp_path) as (one, two):
        await one.renew(BUSY)
        await two.renew(Announcement("south", "ws://10.0.0.2:4600"))
        assert one.key != two.key
        for store in (one, two):
            assert [(each.key, each.name) for each in await store.read(LivingNodes())] == [
                (one.key, "north"),
                (two.key, "south"),
            ]
        assert await one.secret() == await two.secret()
        await done(one, turn("a"))
        found = await two.read(SessionHolder("a", ANY_TENANT))
        assert found is not None
        assert (found.key, found.address, found.load) == (one.key, BUSY.address, BUSY.load)
        held = await done(two, Claim("a"))
        assert isinstance(held, LeaseHeld)
        await one.aclose()
        assert await two.read(SessionHolder("a", ANY_TENANT)) is None
        assert [each.name for each in await two.read(LivingNodes())] == ["south"]
        assert isinstance(await done(two, Claim("a")), Claimed)
        found = await two.read(SessionHolder("a", ANY_TENANT))
        assert found is not None
        assert found.name == "south"


async def test_a_node_is_asked_by_another_one(pair: Pair, tmp_path: Path) -> None:
    """The request reaches the node of that name alone."""
    async with pair(tmp_path) as (one, two):
        await one.renew(BUSY)
        await two.renew(Announcement("south"))
        assert await two.ask_to_drain("north") is True
        assert [await one.renew(BUSY), await two.renew()] == [True, False]


@pytest.mark.parametrize("of", SECRETS)
async def test_a_damaged_secret_gives_way_to_a_new_one(tmp_path: Path, of: SecretOf) -> None:
    """A text that is no secret is not used as one; the other secret stays."""
    async with opened(tmp_path) as store:
        before = {each: await store.secret(each) for each in SECRETS}
        with closing(apsw.Connection(str(tmp_path / "store" / FILE_NAME))) as db:
            db.execute(f"UPDATE cluster SET {SECRETS[of]} = substr({SECRETS[of]}, 3)")  # noqa: S608 - a column of ours
        again = await store.secret(of)
        assert len(again) == 32
        assert {each for each in SECRETS if await store.secret(each) != before[each]} == {of}
        assert await store.secret(of) == again


async def test_a_copy_of_a_store_is_another_cluster(tmp_path: Path) -> None:
    """A backup has neither the nodes nor their secret; it takes the completion tokens that are out there."""
    config = StoreConfig(tmp_path / "store")
    async with opened(tmp_path) as store:
        await store.renew(BUSY)
        await done(store, turn("a"))
        secret, signs = await store.secret(), await store.secret("completions")
        assert secret != signs
        back_up(config, tmp_path / "copy.sqlite3")
    assert secret.hex().encode() not in (tmp_path / "copy.sqlite3").read_bytes()
    restore(tmp_path / "copy.sqlite3", StoreConfig(tmp_path / "new" / "store"))
    async with opened(tmp_path / "new") as store:
        assert await store.read(LivingNodes()) == []
        assert await store.secret() != secret
        assert await store.secret("completions") == signs


# A process of the release before nodes: it knows the columns of that time alone.
OLD_ENTRY: Final = """
    INSERT INTO warren.holders (name, version, expires_at, graced_until)
    VALUES ('an older release', 2, now() + interval '1 h', now() + interval '1 h')
    RETURNING key
"""


async def test_a_process_of_an_older_release_is_listed() -> None:
    """It says nothing of itself; a session that it has is found."""
    with database() as url:
        store = await PostgresStore.open(PostgresConfig(url))
        with closing(psycopg.connect(url, autocommit=True)) as db:
            await done(store, turn("a"))
            row = db.execute(OLD_ENTRY).fetchone()
            assert row is not None
            db.execute("UPDATE warren.sessions SET holder = %s", row)
            found = await store.read(SessionHolder("a", ANY_TENANT))
            assert found is not None
            assert (found.key, found.name, found.address, found.release) == (row[0], "an older release", None, "")
            assert isinstance(await done(store, Claim("a")), LeaseHeld)
        await store.aclose()
