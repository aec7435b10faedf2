"""The reads of a store for the callers of one tenant find nothing of another one."""

from pathlib import Path

from tests.storage.conformance.homes import Home, done, put
from tests.storage.files import BYTES, blob
from tests.storage.samples import NOW, turn, updated
from tests.storage.tenants import of_tenant, seen
from warren.requests import ForkRequest
from warren.storage import FIRST, Archive, Attach, Delete, Fork, Release


async def test_a_session_of_another_tenant_is_as_one_that_is_not_here(home: Home, tmp_path: Path) -> None:
    """Each read has the same answer, also after the session was deleted; its own tenant finds it."""
    async with home(tmp_path) as store:
        await done(store, of_tenant("a", "acme", "scout"))
        await done(store, put("hi"))
        acme, other = store.of("acme"), store.of("other")
        assert await seen(other, "a") == await seen(other, "unknown")
        mine = await seen(acme, "a")
        assert mine[0]
        assert mine[1] == of_tenant("a", "acme", "scout").record
        assert all(mine[2:4])
        await done(store, Delete("a"))
        assert await seen(other, "a") == await seen(other, "unknown")
        assert (await acme.has("a"), await acme.record("a")) == (True, None)


async def test_lists_names_and_keys_are_of_one_tenant(home: Home, tmp_path: Path) -> None:
    """Two tenants have sessions of the same name, labels and idempotency key."""
    async with home(tmp_path) as store:
        for tenant in ("acme", "other"):
            await done(store, of_tenant(f"of {tenant}", tenant, "scout"))
        for tenant in ("acme", "other"):
            reads = store.of(tenant)
            assert [each.session_id for each in await reads.list()] == [f"of {tenant}"]
            assert [each.session_id for each in await reads.list(labels={"team": "red"})] == [f"of {tenant}"]
            assert await reads.named("scout") == f"of {tenant}"
            created = await reads.creation("k")
            assert created is not None
            assert created.session_id == f"of {tenant}"
        nobody = store.of("default")
        assert [*await nobody.list(), await nobody.named("scout"), await nobody.creation("k")] == [None, None]


async def test_a_fork_has_the_tenant_of_the_original_and_an_owner_of_its_own(home: Home, tmp_path: Path) -> None:
    """It is stored with both."""
    async with home(tmp_path) as store:
        await done(store, of_tenant("a", "acme", "scout"))
        record = await done(store, Fork("b", NOW, ForkRequest("a"), "bob"))
        assert (record.tenant, record.owner) == ("acme", "bob")
        assert await store.record("b") == record


async def test_counts_of_a_tenant(home: Home, tmp_path: Path) -> None:
    """Sessions that are archived or deleted do not count; bytes count until they are deleted."""
    async with home(tmp_path) as store:
        for session_id, owner in (("a", "ann"), ("b", "ann"), ("c", "bob")):
            await done(store, updated(turn(session_id), tenant="acme", owner=owner))
        await done(store, updated(turn("d"), tenant="other", owner="ann"))
        acme, other = store.of("acme"), store.of("other")
        assert [await acme.sessions(), await acme.sessions("ann"), await acme.sessions("eve")] == [3, 2, 0]
        assert await store.of("nobody").sessions() == await store.of("nobody").stored_bytes() == 0
        one = await other.stored_bytes()
        assert one > 0
        assert await acme.stored_bytes() == 3 * one
        await done(store, Archive("a"))
        await done(store, Delete("b"))
        assert [await acme.sessions(), await acme.sessions("ann"), await other.sessions()] == [1, 0, 1]
        assert await other.stored_bytes() == one
        assert await acme.stored_bytes() in (one, 2 * one)  # without a store an archived session is gone
        assert "b" not in await acme.owned("ann")
        assert (await acme.stored_bytes("ann"), await acme.stored_bytes("bob")) in ((0, one), (one, one))


async def test_counts_of_an_owner(home: Home, tmp_path: Path) -> None:
    """Bytes are those of its sessions; a file that sessions of two owners have counts for both, once for the tenant."""
    async with home(tmp_path) as store:
        for session_id, owner, tenant in (("a", "ann", "acme"), ("b", "bob", "acme"), ("c", "ann", "other")):
            await done(store, updated(turn(session_id), tenant=tenant, owner=owner))
            await done(store, Attach(session_id, (blob(),)))
        acme = store.of("acme")
        assert (await acme.owned("ann"), await acme.owned("eve")) == (["a"], [])
        ann, bob, both = await acme.stored_bytes("ann"), await acme.stored_bytes("bob"), await acme.stored_bytes()
        assert ann == bob > len(BYTES)
        assert both == ann + bob - len(BYTES)


async def test_tenants_take_turns_with_work_that_is_left(home: Home, tmp_path: Path) -> None:
    """Sessions with work are listed in rounds, each of which has one of each tenant."""
    async with home(tmp_path) as store:
        for number, tenant in enumerate(("a", "a", "a", "b", "b", "c")):
            session_id = f"{tenant}{number}"
            await done(store, updated(turn(session_id), tenant=tenant))
            await done(store, put("hi", session_id=session_id))
            await done(store, Release(session_id, FIRST))
        assert list(await store.sessions_that_wait()) == ["a0", "b3", "c5", "a1", "b4", "a2"]
