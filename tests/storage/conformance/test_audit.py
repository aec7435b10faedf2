"""The audit in any home: an entry is there if its change is, and each tenant reads its own."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.storage.audited import created, said
from tests.storage.conformance.homes import Home, done
from tests.storage.samples import NOW, turn, updated
from warren.base.errors import SessionNotFoundError, StoreError
from warren.calls.operators import AuditRequest
from warren.calls.sessions import ForkRequest
from warren.storage.operations import Archive, Audit, Delete, Fork, Lease
from warren.storage.queries import ANY_TENANT, AuditEntries, SessionStart
from warren.storage.store import Store


async def told(store: Store, **wanted: Any) -> list[tuple[str, str | None]]:
    """Return the actions and the sessions of the whole audit."""
    page = await store.read(AuditEntries(ANY_TENANT, AuditRequest(**wanted)))
    assert not page.damaged
    return [(each.action, each.session_id) for each in page.entries]


async def test_an_entry_is_there_if_its_change_is(home: Home, tmp_path: Path) -> None:
    """Each change has one, also if it is asked for twice; a change that is refused has none."""
    async with home(tmp_path) as store:
        await done(store, created("a"))
        await done(store, Fork("b", NOW, ForkRequest("a"), "ann", said("fork", "b", after=1)))
        await done(store, Archive("b", said("archive", "b", after=2), Lease(0)))  # nobody has had it
        await done(store, Delete("a", said("delete", "a", after=3)))
        expected = [("create", "a"), ("fork", "b"), ("archive", "b"), ("delete", "a")]
        assert await told(store) == expected
        await done(store, Delete("a", said("delete", "a", after=4)))
        for refused in (Archive("x", said("archive", "x")), Fork("c", NOW, ForkRequest("x"), "ann", said("fork", "c"))):
            with pytest.raises(SessionNotFoundError):
                await done(store, refused)
        with pytest.raises((SessionNotFoundError, StoreError)):
            await done(store, created("a"))
        assert await told(store) == expected
        if await store.read(SessionStart("b")) is not None:  # an archived session that is gone cannot be archived again
            await done(store, Archive("b", said("archive", "b", after=5)))
            assert await told(store) == expected


async def test_a_group_of_which_one_fails(home: Home, tmp_path: Path) -> None:
    """The others are stored one by one, with an entry each; the failed one leaves none behind."""
    async with home(tmp_path) as store:
        await done(store, created("a"))
        broken = updated(created("c"), session_id="a")  # its messages are there already
        outcomes = await store.write([created("b"), broken, created("d"), turn("e")])
        assert [isinstance(each, Exception) for each in outcomes] == [False, True, False, False]
        assert sorted(await told(store), key=str) == [("create", "a"), ("create", "b"), ("create", "d")]


async def test_a_page_of_the_audit(home: Home, tmp_path: Path) -> None:
    """Oldest first, of a tenant, a time, an action, a session, from a cursor on; an entry comes back as it was."""
    whole = said(
        "login",
        None,
        after=2,
        who="",
        tenant=None,
        outcome="refused",
        node="n\u00fc",
        source="::1",
        details={"a": "\0b"},
    )
    entries = [
        *(said("interrupt", f"s{number}", after=number) for number in (4, 3, 1)),
        said("approve", "s1", after=1, details={"call": "c"}),
        said("deny", "of acme", after=5, tenant="acme", who="bob"),
        whole,
    ]
    async with home(tmp_path) as store:
        await done(store, Audit(tuple(entries)))
        found = (await store.read(AuditEntries(ANY_TENANT, AuditRequest()))).entries
        assert [each.at for each in found] == sorted(each.at for each in entries)
        assert len({each.number for each in found}) == 6
        assert attrs.evolve(found[2], number=0) == whole
        mine = await store.read(AuditEntries("default", AuditRequest(limit=3)))
        assert [each.session_id for each in mine.entries] == ["s1", "s1", "s3"]
        rest = await store.read(AuditEntries("default", AuditRequest(limit=3, cursor=mine.cursor)))
        assert [each.session_id for each in rest.entries] == ["s4"]
        end = await store.read(AuditEntries("default", AuditRequest(cursor=rest.cursor)))
        assert (end.entries, end.cursor) == ((), rest.cursor)
        assert [each.who for each in (await store.read(AuditEntries("acme", AuditRequest()))).entries] == ["bob"]
        assert (await store.read(AuditEntries("other", AuditRequest()))).entries == ()
        assert await told(store, action="interrupt", since=NOW + timedelta(seconds=3)) == [
            ("interrupt", "s3"),
            ("interrupt", "s4"),
        ]
        assert await told(store, session_id="s1", until=NOW + timedelta(seconds=2)) == [
            ("interrupt", "s1"),
            ("approve", "s1"),
        ]
