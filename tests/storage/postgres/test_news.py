"""Changes of other processes: none is missed, in whichever order transactions are committed."""

import attrs
import psycopg

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.conformance.homes import done, put
from tests.storage.samples import turn
from tests.support.postgres import database
from warren.conversation import codec
from warren.storage.operations import Claim, Claimed, Enqueue, Enqueued
from warren.storage.queries import StoreNews

LATE = """
    INSERT INTO warren.inbox (session, number, id, starts, body)
    SELECT key, nextval('warren.inputs'), 'late', true, %s FROM warren.sessions WHERE session_id = 'a'
"""


def anywhere(text: str, session_id: str) -> Enqueue:
    """Return the operation that puts a text into an inbox, whichever process has the session."""
    return attrs.evolve(put(text, session_id=session_id), anywhere=True)


async def test_an_input_that_is_committed_late_is_found() -> None:
    """Its number and its transaction are older than those of an input that was seen before."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as owner, postgres_opened(url, lease=60.0) as other:
            await every(owner, turn("a"), turn("b"))
            news = await owner.read(StoreNews([], 0))
            late = put("late").input
            with psycopg.connect(url) as slow:
                slow.execute(LATE.encode(), (codec.encode(late).decode(),))
                assert isinstance(await done(other, anywhere("early", "b")), Enqueued)
                news = await owner.read(StoreNews([], news.inbox_to))
                assert [(session, each.input.text) for session, each in news.arrived] == [("b", "early")]
            news = await owner.read(StoreNews([], news.inbox_to))
            assert ("a", "late") in [(session, each.input.text) for session, each in news.arrived]
            news = await owner.read(StoreNews([], news.inbox_to))
            assert list(news.arrived) == []


async def test_a_claim_knows_the_numbers_that_were_given() -> None:
    """An input that comes later has a higher number than the one that the claim tells of."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as owner, postgres_opened(url, lease=60.0) as other:
            await every(owner, turn("a"), turn("b"))
            first = await done(other, anywhere("first", "a"))
            claimed = await done(owner, Claim("a"))
            assert isinstance(claimed, Claimed)
            second = await done(other, anywhere("second", "a"))
            assert isinstance(first, Enqueued)
            assert isinstance(second, Enqueued)
            assert first.elsewhere
            assert first.numbered.number <= claimed.inbox_to < second.numbered.number


async def test_the_version_changes_with_others_alone() -> None:
    """With each group of another process, also when that one leaves; with none of this one."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as owner:
            await every(owner, turn("a"))
            versions = [await owner.version_of_others()]
            await every(owner, turn("a", 1))
            assert await owner.version_of_others() == versions[0]
            async with postgres_opened(url, lease=60.0) as other:
                for number in range(2):
                    await every(other, turn("b", number))
                    versions.append(await owner.version_of_others())
            versions.append(await owner.version_of_others())
            assert len(set(versions)) == 4
