"""The reads of a store for the callers of one tenant find nothing of another one."""

from pathlib import Path

from tests.storage.conformance.homes import Home, done, put
from tests.storage.files import BYTES, blob
from tests.storage.samples import NOW, turn, updated
from tests.storage.tenants import of_tenant, seen
from warren.calls.sessions import ForkRequest
from warren.storage.operations import FIRST, Archive, Attach, Delete, Fork, Release
from warren.storage.queries import (
    ANY_TENANT,
    CreatedUnder,
    HasSession,
    OwnedSessions,
    PeerNamed,
    SessionCount,
    SessionList,
    SessionRow,
    StoredBytes,
    WaitingSessions,
)


async def test_a_session_of_another_tenant_is_as_one_that_is_not_here(home: Home, tmp_path: Path) -> None:
    """Each read has the same answer, also after the session was deleted; its own tenant finds it."""
    async with home(tmp_path) as store:
        await done(store, of_tenant("a", "acme", "scout"))
        await done(store, put("hi"))
        assert await seen(store, "other", "a") == await seen(store, "other", "unknown")
        mine = await seen(store, "acme", "a")
        assert mine[0]
        assert mine[1] == of_tenant("a", "acme", "scout").record
        assert all(mine[2:4])
        await done(store, Delete("a"))
        assert await seen(store, "other", "a") == await seen(store, "other", "unknown")
        assert (await store.read(HasSession("a", "acme")), await store.read(SessionRow("a", "acme"))) == (True, None)


async def test_lists_names_and_keys_are_of_one_tenant(home: Home, tmp_path: Path) -> None:
    """Two tenants have sessions of the same name, labels and idempotency key."""
    async with home(tmp_path) as store:
        for tenant in ("acme", "other"):
            await done(store, of_tenant(f"of {tenant}", tenant, "scout"))
        for tenant in ("acme", "other"):
            for labels in ({}, {"team": "red"}):
                found = await store.read(SessionList(tenant, labels=labels))
                assert [each.session_id for each in found] == [f"of {tenant}"]
            assert await store.read(PeerNamed(tenant, "scout")) == f"of {tenant}"
            created = await store.read(CreatedUnder(tenant, "k"))
            assert created is not None
            assert created.session_id == f"of {tenant}"
        assert await store.read(SessionList("default")) == []
        assert await store.read(PeerNamed("default", "scout")) is None
        assert await store.read(CreatedUnder("default", "k")) is None


async def test_a_fork_has_the_tenant_of_the_original_and_an_owner_of_its_own(home: Home, tmp_path: Path) -> None:
    """It is stored with both."""
    async with home(tmp_path) as store:
        await done(store, of_tenant("a", "acme", "scout"))
        record = await done(store, Fork("b", NOW, ForkRequest("a"), "bob"))
        assert (record.tenant, record.owner) == ("acme", "bob")
        assert await store.read(SessionRow("b", ANY_TENANT)) == record


async def test_counts_of_a_tenant(home: Home, tmp_path: Path) -> None:
    """Sessions that are archived or deleted do not count; bytes count until they are deleted."""
    async with home(tmp_path) as store:
        for session_id, owner in (("a", "ann"), ("b", "ann"), ("c", "bob")):
            await done(store, updated(turn(session_id), tenant="acme", owner=owner))
        await done(store, updated(turn("d"), tenant="other", owner="ann"))
        counted = [store.read(SessionCount("acme", owner)) for owner in (None, "ann", "eve")]
        assert [await each for each in counted] == [3, 2, 0]
        assert await store.read(SessionCount("nobody")) == await store.read(StoredBytes("nobody")) == 0
        one = await store.read(StoredBytes("other"))
        assert one > 0
        assert await store.read(StoredBytes("acme")) == 3 * one
        await done(store, Archive("a"))
        await done(store, Delete("b"))
        counted = [store.read(SessionCount(*of)) for of in (("acme",), ("acme", "ann"), ("other",))]
        assert [await each for each in counted] == [1, 0, 1]
        assert await store.read(StoredBytes("other")) == one
        assert await store.read(StoredBytes("acme")) in (one, 2 * one)  # without a store an archived session is gone
        assert "b" not in await store.read(OwnedSessions("acme", "ann"))
        assert await store.read(StoredBytes("acme", "ann")) in (0, one)
        assert await store.read(StoredBytes("acme", "bob")) == one


async def test_counts_of_an_owner(home: Home, tmp_path: Path) -> None:
    """Bytes are those of its sessions; a file that sessions of two owners have counts for both, once for the tenant."""
    async with home(tmp_path) as store:
        for session_id, owner, tenant in (("a", "ann", "acme"), ("b", "bob", "acme"), ("c", "ann", "other")):
            await done(store, updated(turn(session_id), tenant=tenant, owner=owner))
            await done(store, Attach(session_id, (blob(),)))
        assert await store.read(OwnedSessions("acme", "ann")) == ["a"]
        assert await store.read(OwnedSessions("acme", "eve")) == []
        ann, bob, both = [await store.read(StoredBytes("acme", owner)) for owner in ("ann", "bob", None)]
        assert ann == bob > len(BYTES)
        assert both == ann + bob - len(BYTES)


async def test_work_that_is_left_has_its_tenant(home: Home, tmp_path: Path) -> None:
    """Sessions with work are listed in the order of their creation."""
    async with home(tmp_path) as store:
        for number, tenant in enumerate(("a", "b", "a", "c")):
            session_id = f"{tenant}{number}"
            await done(store, updated(turn(session_id), tenant=tenant))
            await done(store, put("hi", session_id=session_id))
            await done(store, Release(session_id, FIRST))
        found = await store.read(WaitingSessions())
        assert list(found.items()) == [("a0", "a"), ("b1", "b"), ("a2", "a"), ("c3", "c")]
