"""Notices for other sessions: processes lock the rows in one order, and a damaged notice is made up for."""

from typing import Any, Final

import attrs
import trio

from tests.storage.conformance.faults import postgres_opened
from tests.storage.conformance.homes import done
from tests.storage.samples import NOW, turn
from tests.support.postgres import database, name_in, server
from warren.base.errors import WarrenError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation.delegation import Delegation
from warren.conversation.inputs import Input
from warren.conversation.records import SessionRecord
from warren.storage.operations import FIRST, NOTHING, Archive, Claim, Commit, Delegate, EndInputs, Operation, Sent
from warren.storage.queries import ANY_TENANT, WaitingInputs

DEADLOCKS: Final = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
ROUNDS: Final = 100


def telling(session_id: str, number: int, to: str) -> Commit:
    """Return a turn of a session, which tells another one."""
    notice = Input(f"{session_id} {number}", "cancel", "", NOW, starts=False)
    return attrs.evolve(turn(session_id, number), sends=(Sent(to, notice),))


async def test_sessions_that_tell_each_other_do_not_lock_each_other_out() -> None:
    """A parent that cancels its child as that ends, in another process."""
    problems = list[WarrenError]()

    async def ends(store: Any, session_id: str, to: str) -> None:
        for number in range(1, ROUNDS):
            (outcome,) = await store.write([telling(session_id, number, to)])
            if isinstance(outcome, WarrenError):
                problems.append(outcome)
                return

    with database() as url:
        async with (
            postgres_opened(url, timeout=20.0, lock_timeout=20.0) as one,
            postgres_opened(url, timeout=20.0, lock_timeout=20.0) as other,
        ):
            for number in range(5):
                await done(one, turn(f"a{number}"))
                await done(other, turn(f"b{number}"))
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(ends, one, f"a{number}", f"b{number}")
                    nursery.start_soon(ends, other, f"b{number}", f"a{number}")
        assert not problems
        assert server().run(name_in(url), DEADLOCKS) == [(0,)]


async def test_parents_that_are_archived_do_not_lock_their_children_out() -> None:
    """Nor the other way round: the children end just then, in another process."""
    problems = list[WarrenError]()

    async def write(store: Any, *operations: Operation[Any]) -> None:
        problems.extend([each for each in await store.write(operations) if isinstance(each, WarrenError)])

    with database() as url:
        async with (
            postgres_opened(url, timeout=20.0, lock_timeout=20.0) as one,
            postgres_opened(url, timeout=20.0, lock_timeout=20.0) as other,
        ):
            for number in range(20):
                parent, child = f"b{number:02}", f"a{number:02}"
                await done(one, turn(parent))
                record = SessionRecord(child, NOW, NOW, "m", delegation=Delegation(parent))
                await done(other, Delegate(record, (), Input(child, "queue", "work", NOW, FIRST_PROMPT), 9))
            parents = [Archive(f"b{number:02}", None, FIRST) for number in range(20)]
            ends = [
                EndInputs(f"a{number:02}", NOTHING, (telling("a", 1, f"b{number:02}").sends)) for number in range(20)
            ]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, one, *parents)
                nursery.start_soon(write, other, *reversed(ends))
        assert not problems
        assert server().run(name_in(url), DEADLOCKS) == [(0,)]


async def test_a_damaged_prompt_of_a_child_is_told_its_parent() -> None:
    """The parent looks how the child has ended, and a session does so that has lost a notice itself."""
    with database() as url:
        async with postgres_opened(url) as store:
            await done(store, turn("a"))
            record = SessionRecord("b", NOW, NOW, "m", delegation=Delegation("a"))
            await done(store, Delegate(record, (), Input("prompt", "queue", "work", NOW, FIRST_PROMPT), 9))
            for session_id, notices in (("b", ["look"]), ("a", ["look"])):
                server().run(name_in(url), "UPDATE warren.inbox SET body = 'no JSON' WHERE outcome IS NULL")
                claimed = await done(store, Claim(session_id))
                assert len(claimed.lost) == 1
                found = await store.read(WaitingInputs("a", ANY_TENANT))
                assert [each.input.kind for each in found] == notices
