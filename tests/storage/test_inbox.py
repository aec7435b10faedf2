"""Inputs that wait for sessions, as rows: numbered once, known by key, bounded, gone with their session."""

from pathlib import Path

import apsw
import pytest

from tests.storage.processes import Process
from tests.storage.samples import NOW, causes, opened, turn, updated, written
from warren.base.errors import InvalidParamsError, SessionNotFoundError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.inputs import Input
from warren.conversation.peers import Peer
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine, fix
from warren.storage.operations import (
    MAX_OUTCOMES,
    Archive,
    Claim,
    Claimed,
    Commit,
    Delete,
    EndInputs,
    Enqueue,
    Enqueued,
    InputOutcome,
)
from warren.storage.queries import ANY_TENANT, PeerNamed, WaitingInputs, WaitingSessions
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.file import FILE_NAME

DONE = b'{"result":null}'


def put(text: str, *, key: str | None = None, session_id: str = "a", starts: bool = True, limit: int = 100) -> Enqueue:
    """Return what puts a text into a session's inbox."""
    return Enqueue(session_id, Input(f"id of {text}", "queue", text, NOW, key, starts=starts), limit)


async def texts(store: SqliteStore, session_id: str = "a") -> list[str]:
    """Return what waits for a session."""
    return [each.input.text for each in await store.read(WaitingInputs(session_id, ANY_TENANT))]


def taking(commit: Commit, *taken: Enqueued, outcome: bytes = DONE) -> Commit:
    """Return a commit of a turn that took inputs."""
    numbers = tuple(each.numbered.number for each in taken)
    return Commit(commit.record, commit.messages, commit.events, inputs=InputOutcome(numbers, outcome))


def rows(path: Path) -> int:
    """Count the rows of all inboxes."""
    db = apsw.Connection(str(path / "store" / FILE_NAME))
    count = db.execute("SELECT count(*) FROM inbox").get
    db.close()
    return int(count)


async def test_inputs_wait_in_order_until_a_turn_takes_them(tmp_path: Path) -> None:
    """Each has a number of its own, above all before it; those whose turn is stored are gone, in one transaction."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"))
        one, two, other = await written(store, put("1"), put("2"), put("3", session_id="b"))
        assert [each.numbered.number for each in (one, two, other)] == [1, 2, 3]
        (lost,) = await store.write([taking(turn("a", 0), one)])  # its rows are there already
        assert causes([lost]) == ["conflict"]
        assert await texts(store) == ["1", "2"]
        await written(store, taking(turn("a", 1), one))
        assert (await texts(store), await texts(store, "b")) == (["2"], ["3"])
        await written(store, taking(turn("a", 2), two))
        (again,) = await written(store, put("4"))
        assert again.numbered.number == 4
    assert rows(tmp_path) == 2


async def test_a_key_is_taken_once(tmp_path: Path) -> None:
    """A second sending is the first one, whatever it says: while it waits, while a turn has it, and afterwards."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"))
        first, second = await written(store, put("1", key="k"), put("2", key="k"))
        assert (first.fresh, second.fresh, second.numbered, second.outcome) == (True, False, first.numbered, None)
        (elsewhere,) = await written(store, put("3", key="k", session_id="b"))
        assert elsewhere.fresh
        for number, outcome in enumerate((b"", DONE), 1):
            _, known = await written(store, taking(turn("a", number), first, outcome=outcome), put("1", key="k"))
            assert (known.fresh, known.outcome) == (False, outcome)
        assert await texts(store) == []


async def test_a_full_inbox_takes_what_it_knows(tmp_path: Path) -> None:
    """Past the limit a fresh input is refused and a known one is not; the rest of its group is written."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        group = [put("1", key="k", limit=1), put("2", limit=1), put("1", key="k", limit=1), turn("b")]
        assert causes(await store.write(group)) == ["ok", "inbox_full", "ok", "ok"]
        assert await texts(store) == ["1"]


async def test_what_was_settled_is_forgotten_in_time(tmp_path: Path) -> None:
    """Of very many keys the newest and that of the first prompt are remembered; what waits is never forgotten."""
    async with opened(tmp_path) as store:
        _, first, _ = await written(store, turn("a"), put("first", key=FIRST_PROMPT), put("waits", key="w"))
        await written(store, EndInputs("a", InputOutcome((first.numbered.number,), DONE)))
        extra = 5
        made = await written(store, *(put(f"{n}", key=f"{n}", limit=9_999) for n in range(MAX_OUTCOMES + extra)))
        await written(store, *(EndInputs("a", InputOutcome((each.numbered.number,), DONE)) for each in made))
        known = await written(store, *(put("x", key=f"{n}") for n in (0, extra - 1, extra, MAX_OUTCOMES + extra - 1)))
        assert [each.fresh for each in known] == [True, True, False, False]
        (asked,) = await written(store, put("x", key=FIRST_PROMPT))
        assert (asked.fresh, asked.outcome) == (False, DONE)
        assert (await texts(store))[0] == "waits"


@pytest.mark.parametrize("end", [Archive("a"), Delete("a")])
async def test_an_inbox_ends_with_its_session(tmp_path: Path, end: Archive | Delete) -> None:
    """An input that waits for a session that is retired is gone, and nothing is taken in any more."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), put("1", key="k"), end)
        (refused,) = await store.write([put("2")])
        assert isinstance(refused, SessionNotFoundError)
        assert list(await store.read(WaitingSessions())) == []
    assert rows(tmp_path) == 0


async def test_who_has_something_to_begin(tmp_path: Path) -> None:
    """Only those sessions are named for which something waits that begins a turn."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"), turn("c"))
        await written(store, put("1", starts=False), put("2", session_id="b"), put("3", session_id="c"))
        await written(store, EndInputs("c", InputOutcome((3,), DONE)))
        assert list(await store.read(WaitingSessions())) == ["b"]


async def test_another_process_has_the_session(tmp_path: Path) -> None:
    """Nothing is put into the inbox of a session that a living process has; one that died is no hindrance."""
    owner, guest = await Process.starting(tmp_path), await Process.starting(tmp_path)
    await owner.do(turn("a"))
    assert causes([await guest.do(put("1"))]) == ["leased"]
    assert rows(tmp_path) == 0
    owner.holder.die()
    assert (await guest.do(put("1"))).fresh
    assert [each.input.text for each in (await guest.claim()).inbox] == ["1"]
    for each in (owner, guest):
        await each.store.aclose(leave=False)


async def test_a_name_belongs_to_one(tmp_path: Path) -> None:
    """A second session of the name is refused whole, and its group is written; archived and deleted ones free it."""
    ann = [updated(turn(each), peer=Peer("ann")) for each in "abc"]
    async with opened(tmp_path) as store:
        outcomes = await store.write([ann[0], ann[1], turn("d")])
        assert isinstance(outcomes[1], InvalidParamsError)
        assert [outcomes[0], outcomes[2], await store.read(PeerNamed("default", "ann"))] == [None, None, "a"]
        await written(store, updated(turn("a", 1), peer=Peer("ann")), Archive("a"), ann[1])
        assert await store.read(PeerNamed("default", "ann")) == "b"
        await written(store, updated(turn("a", 2), peer=Peer("ann")), Delete("b"), ann[2])
        assert await store.read(PeerNamed("default", "ann")) == "c"
    db = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
    assert db.execute("SELECT peer FROM sessions WHERE session_id = 'b'").get is None
    db.close()


def spoil(path: Path, statement: str = "UPDATE inbox SET body = '{}' WHERE id = 'id of 1'") -> None:
    """Damage the file by a statement."""
    db = apsw.Connection(str(path / "store" / FILE_NAME))
    db.execute(statement)
    db.close()


async def test_a_damaged_input_names_its_session(tmp_path: Path) -> None:
    """A list of inputs leaves out one that cannot be read, and names it."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), put("1"))
        spoil(tmp_path)
        found = await store.read(WaitingInputs("a", ANY_TENANT))
        ((number, problem),) = [(each.row, each.problem) for each in found.damaged]
        assert (found, number) == ([], "1")
        assert "of session a is damaged" in problem


async def test_a_damaged_input_does_not_stop_its_session(tmp_path: Path) -> None:
    """The process that takes the session is told of the losses, and gets the rest; from then on these do not wait."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), put("1", key="k"), put("2"))
        spoil(tmp_path)
        (claimed,) = await store.write([Claim("a")])
        assert isinstance(claimed, Claimed)
        assert [each.input.text for each in claimed.inbox] == ["2"]
        assert ["of session a is damaged" in each for each in claimed.lost] == [True]
        assert await texts(store) == ["2"]
        assert causes(await store.write([put("1", key="k")])) == ["corrupt"]
        (claimed,) = await store.write([Claim("a")])
        assert isinstance(claimed, Claimed)
        assert claimed.lost == ()


async def test_the_doctor_knows_the_inbox(tmp_path: Path) -> None:
    """Rows of no session, inputs that cannot be read and names that do not fit are found; the names alone stay."""
    async with opened(tmp_path) as store:
        await written(store, updated(turn("a"), peer=Peer("ann")), turn("b"), put("1"))
    config = StoreConfig(tmp_path / "store")
    assert not [each for each in examine(config, full=True).findings if each.level == "problem"]
    spoil(tmp_path, "INSERT INTO inbox (session, id, starts, body) VALUES (99, 'x', 1, '{}'), (2, 'y', 1, '{')")
    spoil(tmp_path, "UPDATE sessions SET peer = 'eve' WHERE session_id = 'a'")
    for full in (False, True):
        report = examine(config, full=full)
        found = {each.check: each.sessions for each in report.findings if each.level == "problem"}
        assert found == {"orphans": (), "inbox": ("b",), "peers": ("a",)}
    assert fix(config, report)[:2] == (
        "removed 1 rows of inbox that belonged to no session",
        "set 1 inputs aside that cannot be read",
    )
    assert rows(tmp_path) == 2
    assert [each.check for each in examine(config, full=True).findings if each.level == "problem"] == ["peers"]


async def test_the_damaged_inputs_of_a_session_that_is_held_are_left_alone(tmp_path: Path) -> None:
    """An input that a living process has in hand is not touched, and that is said."""
    process = await Process.starting(tmp_path)
    await process.do(turn("a"))
    await process.do(put("1"))
    spoil(tmp_path)
    config = StoreConfig(tmp_path / "store")
    said = "left 1 inputs alone that cannot be read: a process that lives holds their sessions"
    assert fix(config, examine(config)) == (said,)
    await process.end()


def test_an_input_is_stored_as_it_is() -> None:
    """All of it comes back from its JSON."""
    said = Input("i", "peer", "hällo\u0000", NOW, "k", "ann", starts=False)
    assert codec.decode_stored(Input, codec.encode(said)) == said
