"""The wire to the database loses the answers of commits, and nothing else."""

from tests.storage.conformance.faults import postgres_opened
from tests.storage.conformance.homes import put
from tests.storage.samples import causes, turn
from tests.support.postgres import database
from warren.storage.operations import Claim
from warren.storage.queries import StoredMessages
from warren.transport.load.failover.wire import wired


async def test_the_answers_of_commits_are_lost_and_the_turns_are_stored() -> None:
    """Each with its connection, whether the group is one statement or a transaction; a claim gets its answer."""
    with database() as url:
        async with wired(url) as (wire, through), postgres_opened(through, timeout=20.0, lease=60.0) as store:
            assert causes(await store.write([turn("a"), turn("b")])) == ["ok", "ok"]
            wire.swallows = True
            assert causes(await store.write([turn("a", 1)])) == ["ok"]
            assert wire.swallowed == 1
            assert causes(await store.write([turn("a", 2), put("hi", session_id="b"), Claim("b")])) == ["ok"] * 3
            assert wire.swallowed == 2
            wire.mend()
            assert causes(await store.write([turn("a", 3)])) == ["ok"]
            assert wire.swallowed == 2
            assert (await store.read(StoredMessages("a")))[1] == 8
