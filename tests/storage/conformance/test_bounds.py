"""Bounds of the in-memory store: its logs do not grow for ever."""

from tests.storage.conformance.homes import done
from tests.storage.samples import turn
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import Archive
from warren.storage.queries import StoredEvents


async def test_the_newest_events_stay() -> None:
    """The oldest rows of a log give way, and a replay tells up to which number."""
    store = EphemeralStore(keep_events=4)
    for number in range(3):
        await done(store, turn("a", number))
    replay = await store.read(StoredEvents("a"))
    assert ([row.seq for row in replay.rows], replay.gone) == ([6, 7, 8, 9], 5)


async def test_a_reader_gets_the_end_of_an_archived_session() -> None:
    """Its log stays for readers that are behind, until others have ended after it."""
    store = EphemeralStore(keep_events=7)
    for session_id in "abc":
        await done(store, turn(session_id))
        await done(store, Archive(session_id))
    assert [len((await store.read(StoredEvents(each))).rows) for each in "abc"] == [0, 3, 3]
