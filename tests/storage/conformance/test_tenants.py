"""The reads of a store for the callers of one tenant find nothing of another one."""

from pathlib import Path

import attrs

from tests.storage.conformance.homes import Home, done, put
from tests.storage.samples import NOW, turn, updated
from warren.creation import Creation
from warren.peers import Peer
from warren.requests import ForkRequest
from warren.storage import Commit, Delete, Fork
from warren.storage.store import TenantReads


def of_tenant(session_id: str, tenant: str, name: str) -> Commit:
    """Return the first commit of a session of a tenant, which has a name, a label and an idempotency key."""
    commit = updated(turn(session_id, labels={"team": "red"}), tenant=tenant, owner="ann", peer=Peer(name, ()))
    return attrs.evolve(commit, creation=Creation("k", {}))


async def seen(reads: TenantReads, session_id: str) -> list[object]:
    """Return the answers of all reads about a session."""
    return [
        await reads.has(session_id),
        await reads.record(session_id),
        await reads.holder(session_id),
        await reads.inbox(session_id),
        await reads.lost(session_id, 9),
        await reads.history(session_id),
    ]


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
