"""The reads of a store for the callers of one tenant find nothing of another one."""

from pathlib import Path

from tests.storage.conformance.homes import Home, done, put
from tests.storage.samples import NOW
from tests.storage.tenants import of_tenant, seen
from warren.requests import ForkRequest
from warren.storage import Delete, Fork


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
