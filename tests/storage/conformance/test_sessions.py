"""Sessions in any home: commits, leases, labels, the event log, endings."""

from pathlib import Path

import attrs
import pytest

from tests.storage.conformance.homes import Home, done, forget
from tests.storage.samples import causes, entry, moved, turn, updated
from warren.base.errors import InvalidParamsError, SessionNotFoundError, StoreError, WarrenError
from warren.calls.creation import Creation
from warren.conversation import codec
from warren.conversation.agents import AgentRef
from warren.conversation.messages import SystemMessage
from warren.conversation.peers import Peer
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import (
    Archive,
    Claim,
    Claimed,
    Commit,
    DeclineHandover,
    Delete,
    Erased,
    Label,
    Lease,
    Release,
    RequestHandover,
)
from warren.storage.queries import (
    ANY_TENANT,
    CreatedUnder,
    DueErasures,
    HandoverAnswer,
    InstructionsBefore,
    LastStored,
    LostEvents,
    ModelContext,
    PeerNamed,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredHistory,
    StoredMessages,
    StoreNews,
    WaitingInputs,
)
from warren.storage.store import Store


async def claimed(store: Store, session_id: str = "a") -> Claimed:
    """Take a session's lease, which is free."""
    found = await done(store, Claim(session_id))
    assert isinstance(found, Claimed)
    return found


async def test_a_commit_is_read_as_it_was_written(home: Home, tmp_path: Path) -> None:
    """Record, messages, events and context of two turns come back as they are."""
    async with home(tmp_path) as store:
        first, second = turn("a"), turn("a", 1)
        assert await store.write([first, second]) == [None, None]
        stored = await store.read(SessionStart("a"))
        assert stored is not None
        assert (stored.record, stored.seq_floor) == (second.record, second.record.last_seq)
        assert await store.read(SessionRow("a", ANY_TENANT)) == second.record
        assert await store.read(StoredMessages("a")) == ([*first.messages, *second.messages], 4)
        assert (await store.read(ModelContext("a", 0, 4))).rows == [
            row.body for row in (*first.messages, *second.messages)
        ]
        page = await store.read(StoredHistory("a", "default", offset=1, limit=2))
        assert [row.position for row in page.rows] == [1, 2]
        assert (page.total, page.kept_from, page.left_out) == (4, 0, ())


async def test_unknown_sessions_are_empty(home: Home, tmp_path: Path) -> None:
    """A read of a session that is not here finds nothing; a change of it is refused."""
    async with home(tmp_path) as store:
        assert await store.read(SessionStart("x")) is None
        assert await store.read(SessionRow("x", ANY_TENANT)) is None
        assert await store.read(StoredMessages("x")) == ([], 0)
        assert (await store.read(StoredHistory("x", "default"))).total == 0
        assert (await store.read(StoredEvents("x"))).rows == []
        assert await store.read(WaitingInputs("x", ANY_TENANT)) == []
        assert await done(store, Claim("x")) is None
        for operation in (Archive("x"), Delete("x"), Label("x", {}), RequestHandover("x")):
            with pytest.raises(SessionNotFoundError):
                await done(store, operation)


async def test_a_refused_commit_changes_nothing_and_spoils_nothing(home: Home, tmp_path: Path) -> None:
    """Of a group the commit that repeats rows fails alone, whole."""
    async with home(tmp_path) as store:
        repeated = Commit(turn("a", 5).record, turn("a").messages, turn("a", 5).events)
        seen = Commit(turn("a", 5).record, turn("a", 1).messages, turn("a").events)
        outcomes = await store.write([turn("a"), repeated, seen, turn("b"), turn("a", 1)])
        assert causes(outcomes) == ["ok", "conflict", "conflict", "ok", "ok"]
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 1).record
        assert len((await store.read(StoredEvents("a"))).rows) == 6


async def test_a_lease_is_needed_to_write(home: Home, tmp_path: Path) -> None:
    """A commit under a lease that was put back is refused; the next claim has a higher epoch, a second one the same."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        assert (await claimed(store)).lease == Lease(1)
        await done(store, Release("a", Lease(1)))
        with pytest.raises(StoreError) as refused:
            await done(store, turn("a", 1))
        assert refused.value.cause == "lease_lost"
        again = await claimed(store)
        assert again.lease.epoch > 1
        assert again.record == turn("a").record
        await done(store, Release("a", Lease(1)))  # a lease of long ago
        assert (await claimed(store)).lease == again.lease
        commit = turn("a", 1)
        await done(store, Commit(commit.record, commit.messages, commit.events, lease=again.lease))
        assert await store.read(SessionRow("a", ANY_TENANT)) == commit.record


async def test_a_commit_is_refused_without_what_it_follows(home: Home, tmp_path: Path) -> None:
    """It names the messages and events before it: behind others, or behind none, nothing of it is stored."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        for base in ((2, 2), (4, 3), (0, 0)):
            outcomes = await store.write([attrs.evolve(turn("a", 1), base=base), turn("b")])
            assert causes(outcomes)[0] == "conflict", base
        (unknown,) = await store.write([attrs.evolve(turn("x", 1), base=(2, 3))])
        assert isinstance(unknown, WarrenError)
        assert await store.read(SessionRow("x", ANY_TENANT)) is None
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a").record
        assert await store.write([attrs.evolve(turn("a", 1), base=(2, 3))]) == [None]
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 1).record


async def test_the_last_stored_event_before_a_number(home: Home, tmp_path: Path) -> None:
    """It is the number itself as long as that is stored; None of a session that is not here."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        assert [await store.read(LastStored("a", up_to)) for up_to in (0, 2, 3, 10**6)] == [0, 2, 3, 3]
        assert await store.read(LastStored("x", 5)) is None


async def test_nobody_else_is_asked(home: Home, tmp_path: Path) -> None:
    """With one process there is nobody to ask for a session, and no news."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        assert await done(store, RequestHandover("a")) is False
        await done(store, DeclineHandover("a"))
        assert await store.read(HandoverAnswer("a")) is True
        version = await store.version_of_others()
        await done(store, turn("a", 1))
        assert await store.version_of_others() == version
        news = await store.read(StoreNews(["a", "x"], 0))
        assert (list(news.wanted), list(news.arrived), news.last_seqs) == ([], [], {"a": 6})
        await store.renew()
        assert store.lapses == 0
        assert store.lease > 0


async def test_the_log_is_read_from_any_event_on(home: Home, tmp_path: Path) -> None:
    """A replay begins above a number and has as many rows as it may."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("a", 1)])
        assert [row.seq for row in (await store.read(StoredEvents("a", after_seq=2))).rows] == [3, 4, 5, 6]
        assert [row.seq for row in (await store.read(StoredEvents("a", after_seq=2, limit=2))).rows] == [3, 4]
        replay = await store.read(StoredEvents("a"))
        assert (replay.rows[:3], replay.gone) == (list(turn("a").events), 0)
        assert await store.read(LostEvents("a", "default", 6)) is None


async def test_allowed_tools_are_taken_back(home: Home, tmp_path: Path) -> None:
    """Those that are named, and nothing else of the record changes; a change of the labels leaves them alone."""
    allowed = ("dig", "nul \0", "fill")
    async with home(tmp_path) as store:
        await done(store, updated(turn("a"), allowed_tools=allowed))
        await done(store, Label("a", {"n": "1"}))
        before = await store.read(SessionRow("a", ANY_TENANT))
        assert before is not None
        assert before.allowed_tools == allowed
        labelled = await done(store, Label("a", {}, ask_again=("nul \0", "none")))
        assert (
            labelled.record
            == await store.read(SessionRow("a", ANY_TENANT))
            == before.changed(allowed_tools=("dig", "fill"))
        )


@pytest.mark.parametrize(("ask_again", "cause"), [((), None), (("dig",), "lease_lost")])
async def test_a_process_that_was_taken_for_dead_allows_no_tool_again(
    home: Home, tmp_path: Path, ask_again: tuple[str, ...], cause: str | None
) -> None:
    """It hung, another process took the tool back, and it wakes up: its turn is not stored. Labels leave it alone."""
    async with home(tmp_path) as store:
        if isinstance(store, EphemeralStore):
            return  # nothing outlives its process
        await done(store, updated(turn("a"), allowed_tools=("dig",)))
        wake = forget(store)
        await done(store, Label("a", {"n": "1"}, ask_again=ask_again))
        wake()
        (outcome,) = await store.write([updated(turn("a", 1), allowed_tools=("dig",))])
        assert getattr(outcome, "cause", None) == cause
        found = await store.read(SessionRow("a", ANY_TENANT))
        assert found is not None
        assert found.allowed_tools == (() if ask_again else ("dig",))


async def test_labels_and_titles_survive_turns(home: Home, tmp_path: Path) -> None:
    """A turn that ends later brings neither old labels nor an old title back; each change has a higher number."""
    async with home(tmp_path) as store:
        await done(store, turn("a", labels={"team": "red", "app": "x"}))
        one = await done(store, Label("a", {"team": "blue", "app": None}, "mine"))
        two = await done(store, Label("a", {"n": "1"}))
        assert two.change > one.change
        await done(store, updated(turn("a", 1, labels={"team": "red"}), title="first words"))
        record = await store.read(SessionRow("a", ANY_TENANT))
        assert record is not None
        assert (record.labels, record.title, record.turns) == ({"team": "blue", "n": "1"}, "mine", 2)


async def test_a_page_is_the_newest_first(home: Home, tmp_path: Path) -> None:
    """Sessions are listed by their last turn, then by id, and by labels."""
    async with home(tmp_path) as store:
        red = {"team": "red"}
        await store.write([turn("c", labels=red), turn("a"), turn("b", labels=red), turn("a", 1)])
        assert [each.session_id for each in await store.read(SessionList("default"))] == ["a", "b", "c"]
        assert [each.session_id for each in await store.read(SessionList("default", offset=1, limit=1))] == ["b"]
        assert [each.session_id for each in await store.read(SessionList("default", labels=red))] == ["b", "c"]


async def test_a_compaction_moves_the_head(home: Home, tmp_path: Path) -> None:
    """The context is the first message, the newest summary and the rows from the head on; history has the move."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), moved(turn("a", 1), entry(2, 2))])
        context = await store.read(ModelContext("a", 2, 4))
        assert context.first == turn("a").messages[0].body
        assert context.compaction == entry(2, 2)
        assert context.rows == [row.body for row in turn("a", 1).messages]
        assert (await store.read(StoredHistory("a", "default"))).compactions == [entry(2, 2)]
        assert (await store.read(StoredHistory("a", "default", offset=2))).compactions == []


async def test_newer_instructions_are_the_first_of_the_context(home: Home, tmp_path: Path) -> None:
    """Whether the head has moved past them or not; those before a position are found, the newest of them."""
    first, second = turn("a"), moved(turn("a", 1), entry(2, 3))
    told = [attrs.evolve(first.messages[0], body=codec.encode(SystemMessage("Be brief.")))]
    told.append(attrs.evolve(second.messages[0], body=codec.encode(SystemMessage('Be "kind".', AgentRef("a", "v")))))
    async with home(tmp_path) as store:
        first = attrs.evolve(first, messages=(told[0], first.messages[1]))
        await store.write([first])
        assert (await store.read(ModelContext("a", 0, 2))).first is None
        await store.write([attrs.evolve(second, messages=(told[1], second.messages[1]))])
        for head in (0, 3):
            context = await store.read(ModelContext("a", head, 4, 2))
            assert context.first == told[1].body
            assert context.compaction == (entry(2, 3) if head else None)
            assert len(context.rows) == 4 - head
        for at, found in ((0, None), (1, told[0]), (2, told[0]), (3, told[1]), (9, told[1])):
            assert await store.read(InstructionsBefore("a", at)) == found
        assert await store.read(InstructionsBefore("b", 9)) is None


async def test_a_name_has_one_session(home: Home, tmp_path: Path) -> None:
    """A second session of a name is refused until the first one is archived."""
    async with home(tmp_path) as store:
        peer = Peer("ann", ("bob",))
        await done(store, updated(turn("a"), peer=peer))
        await done(store, updated(turn("a", 1), peer=peer))
        assert await store.read(PeerNamed("default", "ann")) == "a"
        with pytest.raises(InvalidParamsError):
            await done(store, updated(turn("b"), peer=peer))
        assert await store.read(SessionRow("b", ANY_TENANT)) is None
        await done(store, Archive("a"))
        assert await store.read(PeerNamed("default", "ann")) is None
        await done(store, updated(turn("b"), peer=peer))
        assert await store.read(PeerNamed("default", "ann")) == "b"


async def test_a_key_creates_one_session(home: Home, tmp_path: Path) -> None:
    """A second session under an idempotency key is refused, also after the first one has ended."""
    async with home(tmp_path) as store:
        first, second = turn("a"), turn("b")
        creation = Creation("k", {"prompt": "digest"})
        await done(store, Commit(first.record, first.messages, creation=creation))
        for _ in range(2):
            with pytest.raises(StoreError) as refused:
                await done(store, Commit(second.record, second.messages, creation=creation))
            assert refused.value.cause == "key_used"
            found = await store.read(CreatedUnder("default", "k"))
            assert found is not None
            assert (found.session_id, found.params, found.outcome) == ("a", {"prompt": "digest"}, None)
            await done(store, Archive("a"))
        assert await store.read(CreatedUnder("default", "other")) is None


async def test_an_archive_follows_what_was_loaded(home: Home, tmp_path: Path) -> None:
    """Under a lease that somebody has had since, a session is not archived: it may have a turn that is open."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, Release("a", Lease(1)))
        lease = (await claimed(store)).lease
        with pytest.raises(StoreError) as refused:
            await done(store, Archive("a", lease=Lease(1)))
        assert refused.value.cause == "lease_lost"
        assert [each.session_id for each in await store.read(SessionList("default"))] == ["a"]
        await done(store, Archive("a", lease=lease))
        assert await store.read(SessionList("default")) == []


@pytest.mark.parametrize("end", [Archive, Delete])
async def test_an_ended_session_takes_nothing(home: Home, tmp_path: Path, end: type[Archive | Delete]) -> None:
    """It is not listed, ends twice without an error, and takes no labels."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        await done(store, end("a"))
        await done(store, end("a"))
        assert [each.session_id for each in await store.read(SessionList("default"))] == ["b"]
        with pytest.raises(SessionNotFoundError):
            await done(store, Label("a", {"n": "1"}))
        await done(store, Erased("a"))
        assert await store.read(DueErasures()) == []


async def test_a_deleted_session_does_not_come_back(home: Home, tmp_path: Path) -> None:
    """A turn that is stored too late is refused, and nothing of the session is left."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, Delete("a"))
        with pytest.raises(SessionNotFoundError):
            await done(store, turn("a", 1))
        assert await store.read(SessionRow("a", ANY_TENANT)) is None
        assert await store.read(StoredMessages("a")) == ([], 0)
        assert await done(store, Claim("a")) is None


async def test_a_closed_store_answers_so(home: Home, tmp_path: Path) -> None:
    """Reads and writes after the end fail with a cause; closing twice is fine."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await store.aclose()
        await store.aclose()
        assert causes(await store.write([turn("b"), turn("c")])) == ["closed", "closed"]
        for read in (
            store.read(SessionStart("a")),
            store.read(SessionRow("a", ANY_TENANT)),
            store.read(SessionList("default")),
            store.read(WaitingInputs("a", ANY_TENANT)),
        ):
            with pytest.raises(StoreError) as raised:
                await read
            assert raised.value.cause == "closed"
