"""Sessions whose rows others change while they are claimed: none is taken from the living, or said to be gone."""

from typing import Any, Final

import psycopg
import pytest
import trio

from tests.storage.conformance.faults import postgres_opened
from tests.storage.conformance.homes import done, put
from tests.storage.samples import turn
from tests.support.postgres import database, name_in, server
from tests.support.waiting import until
from warren.base.errors import LeasedError
from warren.storage.operations import Claim, Claimed, Enqueued, LeaseHeld, Operation
from warren.storage.queries import ANY_TENANT, SessionHolder

WAITS: Final = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
DIES: Final = "UPDATE warren.holders SET expires_at = clock_timestamp() - interval '1 s' WHERE key = %s"
LOCKS: Final = b"SELECT FROM warren.sessions WHERE session_id = 'a' FOR UPDATE"
TAKES: Final = b"UPDATE warren.sessions SET holder = %s, epoch = epoch + 1 WHERE session_id = 'a'"
LEAVES: Final = b"UPDATE warren.sessions SET holder = NULL, last_seq = last_seq WHERE session_id = 'a'"
PATIENT: Final[dict[str, Any]] = {"timeout": 20.0, "lock_timeout": 20.0, "lease": 60.0}
OPERATIONS: Final = pytest.mark.parametrize("operation", [Claim("a"), put("hi", key="k")], ids=["claim", "enqueue"])


@OPERATIONS
async def test_a_session_is_not_taken_from_a_process_that_has_just_come(operation: Operation[Any]) -> None:
    """A statement that waits for a session's row heeds its new holder, also one that came after it began to wait."""
    results = list[Any]()
    with database() as url:
        async with postgres_opened(url, **PATIENT) as dead, postgres_opened(url, **PATIENT) as late:
            await done(dead, turn("a"))
            await done(late, turn("b"))
            server().run(name_in(url), DIES, dead.key)
            with psycopg.connect(url) as other:
                other.execute(LOCKS)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(apply, late, operation, results)
                    await until(lambda: server().run(name_in(url), WAITS))
                    async with postgres_opened(url, **PATIENT) as winner:
                        await done(winner, turn("c"))
                        other.execute(TAKES, (winner.key,))
                        other.commit()
                        await until(lambda: results)
                        found = await late.read(SessionHolder("a", ANY_TENANT))
                        assert found is not None
                        assert found.key == winner.key
    assert isinstance(results[0], LeaseHeld | LeasedError), results


@OPERATIONS
async def test_a_session_is_found_while_its_rows_change(operation: Operation[Any]) -> None:
    """A statement that waits for the row of a session whose holder leaves, and is removed meanwhile, finds it."""
    results = list[Any]()
    with database() as url:
        async with postgres_opened(url, **PATIENT) as late:
            await done(late, turn("b"))
            async with postgres_opened(url, **PATIENT) as leaving:
                await done(leaving, turn("a"))
                with psycopg.connect(url) as other:
                    other.execute(LOCKS)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(apply, late, operation, results)
                        await until(lambda: server().run(name_in(url), WAITS))
                        await leaving.aclose()
                        other.execute(LEAVES)
                        other.commit()
    assert isinstance(results[0], Claimed | Enqueued), results


async def apply(store: Any, operation: Operation[Any], results: list[Any]) -> None:
    """Apply an operation, and keep its outcome."""
    results += await store.write([operation])
