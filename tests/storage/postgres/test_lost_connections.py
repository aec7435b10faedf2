"""Connections that break: each operation is applied once, its caller learns the outcome, and the store goes on."""

from contextlib import suppress

import attrs
import psycopg
import pytest
import trio

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.conformance.homes import put
from tests.storage.samples import NOW, causes, turn
from tests.support.postgres import Server, database, fill, name_in, needs_postgres, server
from tests.support.postgres_proxy import wire_to
from tests.support.waiting import until
from warren.base.errors import StoreError, WarrenError
from warren.calls.sessions import ForkRequest
from warren.settings.config import PostgresConfig
from warren.storage.operations import Claim, Claimed, Delete, Enqueued, Fork, Label, Labelled, Operation
from warren.storage.postgres import PostgresStore
from warren.storage.queries import ANY_TENANT, SessionRow, StoredEvents, StoredMessages, WaitingInputs
from warren.storage.store import Store

END_ALL = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
END_KEEPER = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE application_name = 'warren: keeper' AND datname = current_database()
"""
LOCK = """
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


PURE = (turn("a", 1), turn("b"))
MIXED = (turn("a", 1), put("hello", key="k", session_id="b"), turn("c"), Label("a", {"n": "1"}), Claim("b"))


@pytest.mark.parametrize(("group", "step"), [(PURE, 1), (MIXED, 4)], ids=["pure", "mixed"])
async def test_a_connection_may_break_at_some_pieces_of_a_commit(
    group: tuple[Operation[object], ...], step: int
) -> None:
    """The group is tried again, or its lost answer is found; nothing is stored twice, and results are the same."""
    await break_connections(group, step)


@pytest.mark.soak
async def test_a_connection_may_break_at_any_piece_of_a_commit() -> None:
    """The same at each piece of a group of every kind of operation; each takes a database of its own."""
    await break_connections(MIXED, 1)


async def break_connections(group: tuple[Operation[object], ...], step: int) -> None:
    """Cut the connection at the first piece of a commit, and at one of `step` pieces after it."""
    moment, reached = 1 - step, True
    while reached:
        moment += step
        with database() as url:
            async with wire_to(url) as wire, postgres_opened(wire.url, timeout=20.0, lease=60.0) as store:
                await every(store, *([turn("a")] if group is PURE else [turn("a"), turn("b"), turn("x")]))
                if group is MIXED:  # the server knows its statements then, which halves the pieces
                    await store.write([turn("x", 1), put("x", key="x", session_id="x"), Label("x", {}), Claim("x")])
                wire.closes, wire.fail_at = False, wire.carried + moment
                outcomes = await store.write(group)
                reached, wire.fail_at = wire.cuts > 0, None
                assert not [each for each in outcomes if isinstance(each, WarrenError)], (moment, outcomes)
                assert await store.read(SessionRow("a", ANY_TENANT)) is not None
                assert (await store.read(StoredMessages("a")))[1] == 4
                assert len((await store.read(StoredEvents("a"))).rows) == 6
                if group is MIXED:
                    _, entered, _, labelled, claimed = outcomes
                    assert isinstance(entered, Enqueued)
                    assert isinstance(labelled, Labelled)
                    assert isinstance(claimed, Claimed)
                    assert [each.input.text for each in await store.read(WaitingInputs("b", ANY_TENANT))] == ["hello"]
                    assert claimed.inbox == (entered.numbered,)
                    assert labelled.record.labels == {"n": "1"}
                assert causes(await store.write([turn("a", 1), turn("b", 1)])) == ["conflict", "ok"]
    assert moment > 2


async def test_a_lost_answer_tells_which_turns_were_fenced() -> None:
    """Of a group that is committed and whose answer is lost, the fenced turn is refused and its neighbour is not."""
    with database() as url:
        async with wire_to(url) as wire, postgres_opened(wire.url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"), turn("b"))
            server().run(name_in(url), "UPDATE warren.sessions SET epoch = 2 WHERE session_id = 'a'")
            wire.closes, wire.fail_way, wire.carried, wire.fail_at = False, "down", 0, 1
            assert causes(await store.write([turn("a", 1), turn("b", 1)])) == ["lease_lost", "ok"]
            assert wire.cuts == 1
            assert [(await store.read(StoredMessages(each)))[1] for each in "ab"] == [2, 4]


async def test_a_turn_that_was_stored_counts_as_stored_after_a_takeover() -> None:
    """Its answer is lost, and another process takes the session before this one can ask: it is no fenced turn."""
    with database() as url:
        async with wire_to(url) as wire, postgres_opened(wire.url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"))
            wire.fail_way, wire.carried, wire.fail_at = "down", 0, 1
            async with trio.open_nursery() as nursery:

                async def write() -> None:
                    assert causes(await store.write([turn("a", 1)])) == ["ok"]

                nursery.start_soon(write)
                await until(lambda: wire.cuts > 0)
                take = "UPDATE warren.sessions SET epoch = epoch + 1, holder = 99 WHERE turns = 2 RETURNING 1"
                await until(lambda: bool(server().run(name_in(url), take)))
                wire.closed = False
            assert (await store.read(StoredMessages("a")))[1] == 4


async def renewed(store: Store) -> None:
    """Renew once the server answers in time: it is back, on a machine that may be busy."""
    with trio.fail_after(30):
        while True:
            with suppress(StoreError):
                await store.renew()
                return
            await trio.sleep(0.05)


async def test_a_server_that_is_away_is_waited_for() -> None:
    """Writes and reads fail after their time, and the same calls succeed when it is back."""
    with database() as url:
        async with wire_to(url) as wire, postgres_opened(wire.url, timeout=0.2, lease=60.0) as store:
            await every(store, turn("a"))
            wire.closed = True
            wire.cut()
            for _ in range(2):
                (refused,) = await store.write([turn("b")])
                assert (refused.cause, refused.retryable, refused.session_id) in {
                    ("unreachable", True, "b"),
                    ("outcome_unknown", False, "b"),
                }
                with pytest.raises(StoreError) as raised:
                    await store.read(SessionRow("a", ANY_TENANT))
                assert (raised.value.cause, raised.value.retryable) == ("unreachable", True)
                with pytest.raises(StoreError) as raised:
                    await store.renew()
                assert (raised.value.cause, raised.value.retryable) == ("unreachable", True)
            wire.closed = False
            await renewed(store)
            assert store.lapses == 0
            await every(store, turn("b"), turn("a", 1))
            assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 1).record


async def test_a_server_that_hangs_does_not_hang_its_client() -> None:
    """A call that gets no answer ends; nothing is stored twice when the server goes on."""
    with database() as url:
        async with wire_to(url) as wire, postgres_opened(wire.url, timeout=0.2, lease=60.0) as store:
            await every(store, turn("a"))
            wire.answers = trio.Event()
            (unknown,) = await store.write([turn("a", 1)])
            assert (unknown.cause, unknown.retryable) == ("outcome_unknown", False)
            wire.answers.set()
            wire.cut()
            # A read comes after the outcome is settled: it does not change any more.
            stored = await store.read(SessionRow("a", ANY_TENANT))
            assert stored is not None
            assert causes(await store.write([turn("a", 1)])) == ["conflict" if stored.turns == 2 else "ok"]
            assert (await store.read(StoredMessages("a")))[1] == 4


async def test_sessions_of_the_server_may_be_ended_all_the_time() -> None:
    """While every connection is ended again and again, each turn is confirmed once and stored once."""
    with database() as url:
        async with postgres_opened(url, timeout=30.0, lease=60.0) as store:
            await every(store, *(turn(str(each)) for each in range(4)))
            async with trio.open_nursery() as nursery:

                async def write(session_id: str) -> None:
                    for number in range(1, 9):
                        assert causes(await store.write([turn(session_id, number)])) == ["ok"]
                        assert (await store.read(StoredMessages(session_id)))[1] == 2 * number + 2

                async def end_them() -> None:
                    while True:
                        server().run("postgres", END_ALL, name_in(url))
                        await trio.sleep(0.2)

                nursery.start_soon(end_them)
                async with trio.open_nursery() as writers:
                    for each in range(4):
                        writers.start_soon(write, str(each))
                nursery.cancel_scope.cancel()
            for each in range(4):
                assert len((await store.read(StoredEvents(str(each)))).rows) == 27


@pytest.mark.time_limit(240)
async def test_the_server_may_be_killed_and_started_again() -> None:
    """Turns wait for it; each that was confirmed is there afterwards, once."""
    needs_postgres()
    own = await trio.to_thread.run_sync(lambda: Server.make(durable=True))
    try:
        own.run("postgres", "CREATE DATABASE own")
        fill(own, "own")
        async with postgres_opened(own.url("own"), timeout=60.0, lease=120.0) as store:
            await every(store, turn("a"), turn("b"))
            confirmed = dict.fromkeys("ab", 1)
            async with trio.open_nursery() as nursery:

                async def write(session_id: str) -> None:
                    while True:
                        assert causes(await store.write([turn(session_id, confirmed[session_id])])) == ["ok"]
                        confirmed[session_id] += 1
                        await trio.lowlevel.checkpoint()  # a write cannot be cancelled

                for each in "ab":
                    nursery.start_soon(write, each)
                for _ in range(3):
                    before = dict(confirmed)
                    await until(lambda: all(confirmed[each] >= before[each] + 3 for each in "ab"))  # noqa: B023
                    own.kill()
                    await trio.to_thread.run_sync(own.start)
                nursery.cancel_scope.cancel()
            for session_id, count in confirmed.items():
                record = await store.read(SessionRow(session_id, ANY_TENANT))
                assert record is not None
                assert record.turns == count
                assert (await store.read(StoredMessages(session_id)))[1] == 2 * record.turns
                assert len((await store.read(StoredEvents(session_id, limit=10**6))).rows) == 3 * record.turns
    finally:
        await trio.to_thread.run_sync(own.remove)


async def test_a_lost_keeper_is_replaced_before_the_sessions_are_free() -> None:
    """The next renewal takes the lock again; after its grace the sessions may have gone, which counts as a lapse."""
    with database() as url:
        late = "UPDATE warren.holders SET graced_until = clock_timestamp()"
        async with postgres_opened(url, timeout=5.0, lease=600.0) as store:
            await every(store, turn("a"))
            server().run(name_in(url), END_KEEPER)
            assert not server().run(name_in(url), LOCK)
            with pytest.raises(StoreError):
                await store.renew()
            await store.renew()
            assert server().run(name_in(url), LOCK)
            assert store.lapses == 0
            server().run(name_in(url), late)
            await store.renew()
            assert store.lapses == 0  # it had its lock all the time
            server().run(name_in(url), END_KEEPER)
            server().run(name_in(url), late)
            with pytest.raises(StoreError):
                await store.renew()
            await store.renew()
            assert store.lapses == 1


async def test_two_openings_of_one_holder_do_not_write_at_once() -> None:
    """The older connection learns that it was replaced, and takes over again before it writes."""
    with database() as url:
        async with postgres_opened(url, timeout=5.0, lease=60.0) as one:
            await every(one, turn("a"))
            holder = one.me  # type: ignore[attr-defined]
            async with postgres_opened(url, holder=holder, timeout=5.0, lease=60.0) as two:
                for number, store in enumerate((two, one, two, one), 1):
                    await every(store, turn("a", number))
            assert (await one.read(StoredMessages("a")))[1] == 10


async def test_the_older_epoch_is_fenced_and_its_neighbours_are_not() -> None:
    """A process that counts as dead loses one session; of its next group only that turn is refused."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as late, postgres_opened(url, lease=60.0) as other:
            await every(late, turn("a"), turn("b"))
            assert await other.write([Claim("a")]) != [None]
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(b"UPDATE warren.holders SET expires_at = clock_timestamp()")
            (claimed,) = await other.write([Claim("a")])
            assert isinstance(claimed, Claimed)
            assert claimed.record.last_seq > 1_000_000
            assert causes(await late.write([turn("b", 1), turn("a", 1), turn("c")])) == ["ok", "lease_lost", "ok"]
            assert causes(await other.write([attrs.evolve(turn("a", 1), lease=claimed.lease)])) == ["ok"]
            assert (await late.read(StoredMessages("a")))[1] == 4


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    """Opening the store fails with a retryable error, also if the name of the host has no address."""
    needs_postgres()
    for host in ("127.0.0.1:1", "no-such-host.invalid", "no..host"):
        with pytest.raises(StoreError) as raised:
            await PostgresStore.open(PostgresConfig(f"postgresql://app:secret@{host}/db", timeout=5.0))
        assert (raised.value.cause, raised.value.retryable) == ("unreachable", True)
        assert "app:***@" in str(raised.value)
        assert "secret" not in repr(raised.value) + str(raised.value.__cause__) + str(raised.value.__context__)


async def test_a_fork_elsewhere_lets_turns_through_and_keeps_the_session() -> None:
    """While another process copies a session, its turns are stored and its inbox fills; a deletion has to wait."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a"))
            with psycopg.connect(url) as copying:
                lock = "SELECT FROM warren.sessions WHERE session_id = 'a' FOR "
                # A fork gets its lock beside a turn's, and waits for a deletion's: it is FOR KEY SHARE.
                for other, outcome in (("NO KEY UPDATE", "ok"), ("UPDATE", "locked")):
                    copying.execute((lock + other).encode())
                    assert causes(await store.write([Fork(f"beside {other}", NOW, ForkRequest("a"))])) == [outcome]
                    copying.rollback()
                copying.execute((lock + "KEY SHARE").encode())
                assert causes(await store.write([turn("a", 1), put("said"), Claim("a")])) == ["ok"] * 3
                assert causes(await store.write([Delete("a")])) == ["locked"]
            assert causes(await store.write([Delete("a")])) == ["ok"]
