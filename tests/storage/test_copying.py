"""Copies of whole stores: all that a store answers is answered by its copy, whatever their homes are."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import apsw
import attrs
import pytest
import trio

from tests.storage.audited import created, said
from tests.storage.conformance.faults import every
from tests.storage.conformance.homes import done, put
from tests.storage.copies import Place, copied, source, target
from tests.storage.files import blob
from tests.storage.samples import NOW, TEXTS, entry, kept, moved, of_text, step, turn, updated, wait
from tests.support.postgres import database, name_in, server
from warren.base.errors import StoreError
from warren.calls.creation import FIRST_PROMPT, Creation
from warren.calls.operators import AuditRequest
from warren.calls.sessions import ForkRequest
from warren.conversation.messages import ToolResult
from warren.conversation.open_turn import KeptCall
from warren.conversation.peers import Peer
from warren.conversation.waits import WAIT_REASONS
from warren.reports.audit import AuditEntry, AuditPage
from warren.reports.ledger import GROUPS
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage import copying
from warren.storage.copying import Mark, Target, copy
from warren.storage.maintenance.doctor import examine
from warren.storage.operations import (
    Archive,
    Attach,
    Audit,
    Claim,
    Claimed,
    Delete,
    EndInputs,
    Fork,
    InputOutcome,
    Label,
    Lease,
    Release,
    StoreAnswer,
)
from warren.storage.postgres import PostgresStore
from warren.storage.postgres import copying as database_copying
from warren.storage.postgres.driver import Connection
from warren.storage.queries import (
    ANY_TENANT,
    AttachmentBytes,
    AuditEntries,
    CreatedUnder,
    DueErasures,
    LedgerSums,
    LostEvents,
    ModelContext,
    NextWake,
    OpenTurns,
    PeerNamed,
    SessionList,
    SessionRow,
    SessionStart,
    StoredAttachment,
    StoredEvents,
    StoredHistory,
    StoredMessages,
    StoredWait,
    WaitingInputs,
    WaitingSessions,
    WaitList,
)
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite import copying as file_copying
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.store import Store
from warren.transport.access.token_list import Token, hash_of
from warren.transport.access.token_table import open_table, row_of

Kind = Literal["sqlite", "postgres"]
PAIRS = [(one, other) for one in ("sqlite", "postgres") for other in ("sqlite", "postgres")]
BIG = "x\0é\U0010ffff" * 50_000


@contextmanager
def place(kind: Kind, folder: Path) -> Iterator[Place]:
    """Make room for a store."""
    if kind == "sqlite":
        yield StoreConfig(folder)
        return
    with database() as url:
        yield PostgresConfig(url, lease=60.0)


@asynccontextmanager
async def store_at(where: Place) -> AsyncIterator[Store]:
    """Open a store, and leave it in good order."""
    store = await (PostgresStore.open(where) if isinstance(where, PostgresConfig) else SqliteStore.open(where))
    try:
        yield store
    finally:
        await store.aclose()


async def fill(store: Store) -> None:
    """Store something of each kind."""
    await every(store, *map(of_text, TEXTS))
    await every(store, turn("big", text=BIG))
    await every(store, updated(turn("peer"), peer=Peer("scout")), turn("a"), turn("archived"), turn("gone"))
    await every(store, attrs.evolve(turn("begun"), creation=Creation("once", {"prompt": "digest"})))
    await every(store, moved(turn("a", 1), entry(1, 2, "so \0 far")))
    await every(store, moved(turn("a", 2), entry(2, 4)))
    await done(store, Label("a", {"k": "v", "l": "w"}, "the title"))
    await done(store, Attach("a", (blob(), blob(b"\x00", None))))
    await done(store, Fork("fork", NOW, ForkRequest("a", labels={"of": "a"})))
    await every(store, Archive("archived"), Delete("gone"))
    await every(store, *(Release(each, Lease(1)) for each in ("peer", "begun")))
    for number in range(3):
        await done(store, put(f"waits {number}", session_id="a"))
    keyed = await done(store, put("keyed", key="one", session_id="a"))
    first = await done(store, put("the first", key=FIRST_PROMPT, session_id="begun"))
    await done(store, EndInputs("a", InputOutcome((keyed.numbered.number,), b'{"result":1}')))
    await done(store, EndInputs("begun", InputOutcome((first.numbered.number,), b'{"result":2}')))
    calls = (kept(0, result="nul \0 in it"), KeptCall("\x01 call", 1, "waiting"), kept(2))
    begun = step("turn", calls=calls, text="so \0 far", key="k", wakes=WAKES)
    await every(store, attrs.evolve(begun, waits=WAITS))
    dropped = await done(store, put("dropped", session_id="a"))
    await done(store, EndInputs("a", InputOutcome((dropped.numbered.number,), b"{}")))


WAKES: Final = datetime(2126, 1, 1, tzinfo=UTC)
WAITS: Final = (
    wait(0, args={"nul": "\0"}),
    wait(1, "client", wait_id="\x01 call", state="answered", result=ToolResult("\x01 call", "nul \0 in it")),
    wait(2, "outside", state="settled"),
)
IDS = ("big", "peer", "a", "archived", "gone", "begun", "fork", "turn", "none", *("id" + text for text in TEXTS))


async def facts(store: Store) -> list[Any]:
    """Return all that a store can be asked."""
    found: list[Any] = [
        await store.read(SessionList("default", limit=100, include_archived=True)),
        await store.read(SessionList("default", labels={"k": "v"})),
    ]
    for each in IDS:
        found += [
            await store.read(SessionStart(each)),
            await store.read(StoredHistory(each, "default")),
            await store.read(StoredMessages(each)),
        ]
        found += [
            await store.read(StoredEvents(each)),
            await store.read(WaitingInputs(each, ANY_TENANT)),
            await store.read(LostEvents(each, "default", 1)),
        ]
        for of in (blob(), blob(b"\x00")):
            hashed = str(of.attachment.sha256)
            found.append(await store.read(StoredAttachment(each, "default", hashed)))
            found.append(await store.read(AttachmentBytes(each, "default", hashed, 1, 600)))
        found.append(
            await store.read(ModelContext(each, 0, 2)) if await store.read(SessionRow(each, ANY_TENANT)) else None
        )
    found.append(await store.read(ModelContext("a", 4, 6)))
    found += [
        await store.read(PeerNamed("default", "scout")),
        await store.read(CreatedUnder("default", "once")),
        await store.read(DueErasures()),
    ]
    return [
        *found,
        *[await store.read(CreatedUnder("default", "key" + text)) for text in TEXTS],
        *[await store.read(LedgerSums(ANY_TENANT, by)) for by in GROUPS],
        list(await store.read(WaitingSessions())),
        await store.read(OpenTurns(ANY_TENANT)),
        await store.read(NextWake()),
        await store.read(WaitList("default", WAIT_REASONS)),
        *[await store.read(StoredWait("turn", "default", each.wait_id, WAIT_REASONS)) for each in WAITS],
    ]


@pytest.mark.parametrize(("kind", "other"), PAIRS)
async def test_a_copy_answers_as_its_source(kind: Kind, other: Kind, tmp_path: Path) -> None:
    """And it goes on as the source would: with the same numbers, keys and names, and leases that are free."""
    with place(kind, tmp_path / "here") as here, place(other, tmp_path / "there") as there:
        async with store_at(here) as store:
            await fill(store)
        async with store_at(here) as store:
            expected = await facts(store)
        result = await copied(here, there)
        assert result.rows["sessions"] == len(IDS) - 1
        async with store_at(there) as store:
            for found, wanted in zip(await facts(store), expected, strict=True):
                assert found == wanted
            await goes_on(store)
        if isinstance(there, StoreConfig):
            assert examine(there, full=True).healthy
        async with store_at(here) as store:  # as the source does
            await goes_on(store)


async def goes_on(store: Store) -> None:
    """Check that sessions can be claimed, with event numbers above those shown, and that new rows have new numbers."""
    unreleased, released = await done(store, Claim("a")), await done(store, Claim("peer"))
    assert isinstance(unreleased, Claimed)
    assert (unreleased.record.last_seq, released.record.last_seq) == (1_000_009, 3)
    numbers = [each.number for each in unreleased.inbox]
    going = await done(store, Claim("turn"))
    assert [(each.call_id, each.state) for each in going.calls] == [
        ("call-0", "done"),
        ("\x01 call", "waiting"),
        ("call-2", "begun"),
    ]
    assert going.record.turn == step("turn", text="so \0 far", key="k", wakes=WAKES).record.turn
    assert going.waits == WAITS[:2]
    await done(store, StoreAnswer("turn", wait(0, "question"), going.lease))
    newest = await store.read(StoredWait("turn", "default", "call-0", ["approval", "question"]))
    assert newest == wait(0, "question")
    assert going.calls[0].result == ToolResult("call-0", "nul \0 in it")
    known = await done(store, put("keyed", key="one", session_id="a"))
    assert (known.fresh, known.outcome) == (False, b'{"result":1}')
    assert (await done(store, put("new", session_id="a"))).numbered.number > max(*numbers, known.numbered.number) + 1
    (outcome,) = await store.write([Delete("gone")])
    assert outcome is None
    (outcome,) = await store.write([attrs.evolve(turn("other"), creation=Creation("once", {}))])
    assert outcome.cause == "key_used"
    await every(store, turn("new session"), moved(turn("new session", 1), entry(1, 2)))
    assert [each.summary for each in (await store.read(StoredHistory("new session", "default"))).compactions] == [
        "so far"
    ]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("other", ["sqlite", "postgres"])
async def test_completion_tokens_are_taken_by_a_copy(kind: Kind, other: Kind, tmp_path: Path) -> None:
    """It has the secret that signs them, also if the place has made one; the secret of its nodes is its own."""
    with place(kind, tmp_path / "here") as here, place(other, tmp_path / "there") as there:
        async with store_at(here) as store:
            await every(store, turn("a"))
            nodes, signs = await store.secret(), await store.secret("completions")
        async with store_at(there) as store:
            assert await store.secret("completions") != signs
            own = await store.secret()
        await copied(here, there)
        async with store_at(there) as store:
            assert await store.secret("completions") == signs
            assert await store.secret() == own != nodes


@pytest.mark.parametrize(("kind", "other"), [("sqlite", "postgres"), ("postgres", "sqlite")])
async def test_an_interrupted_copy_is_no_store_and_goes_on(
    kind: Kind, other: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step failed, the next attempt begins there; until the end nothing else can use the copy."""
    monkeypatch.setattr(file_copying, "PAGE_ROWS", 3)
    monkeypatch.setattr(database_copying, "PAGE_ROWS", 3)
    with place(kind, tmp_path / "here") as here, place(other, tmp_path / "there") as there:
        async with store_at(here) as store:
            await every(store, *(turn(each) for each in "abcdefgh"))
            expected = await store.read(SessionList("default"))
        steps, marks = 0, list[Mark]()
        while True:
            async with source(here) as one, target(there) as aim:
                marks.append(await aim.begin(one.identity))
                try:
                    await copy(one, Failing(aim, at=2))
                except Interrupted:
                    steps += 1
                else:
                    await aim.finish(await one.last_input(), await one.secret())
                    break
            with pytest.raises(StoreError, match="unfinished copy"):
                async with store_at(there):
                    pass
            with pytest.raises(StoreError, match="unfinished copy"):
                async with source(there):
                    pass
        assert steps > 5
        assert [each.rows for each in marks] == sorted({each.rows for each in marks})
        async with store_at(there) as store:
            assert await store.read(SessionList("default")) == expected


@pytest.mark.parametrize(("kind", "other"), [("sqlite", "postgres"), ("postgres", "sqlite")])
async def test_a_place_with_an_audit_of_its_own_can_be_filled(
    kind: Kind, other: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logins refused and the tokens made there stay first, and all entries of the source follow, also in steps."""
    monkeypatch.setattr(file_copying, "PAGE_ROWS", 2)
    monkeypatch.setattr(database_copying, "PAGE_ROWS", 2)
    with place(kind, tmp_path / "here") as here, place(other, tmp_path / "there") as there:
        async with store_at(here) as store:
            await every(store, created("a"), Audit(tuple(said("interrupt", "a", after=each) for each in range(1, 6))))
            expected = plain(await store.read(AuditEntries(ANY_TENANT, AuditRequest())))
        async with store_at(there) as store:
            refused = said("login", tenant=None, who="", outcome="refused", after=-9)
            await every(store, Audit((refused, refused)))
        if isinstance(there, PostgresConfig):
            async with open_table(there) as table:
                await table.add(row_of(Token(hash=hash_of("t"), tenant="default", name="t", scopes=("session:read",))))
        async with store_at(there) as store:
            before = await store.read(AuditEntries(ANY_TENANT, AuditRequest()))
        steps = 0
        while True:
            async with source(here) as one, target(there) as aim:
                try:
                    result = await copy(one, Failing(aim, at=2))
                except Interrupted:
                    steps += 1
                else:
                    await aim.finish(await one.last_input(), await one.secret())
                    break
        assert (result.rows["audit"], steps > 4) == (len(expected), True)
        with pytest.raises(StoreError, match="there are sessions in the store"):
            await copied(here, there)
        async with store_at(there) as store:
            last = said("approve", "a", after=9)
            await every(store, Audit((last,)))
            page = await store.read(AuditEntries(ANY_TENANT, AuditRequest()))
        by_number = sorted(page.entries, key=lambda each: each.number)
        assert by_number[: len(before.entries)] == sorted(before.entries, key=lambda each: each.number)
        assert plain(attrs.evolve(page, entries=tuple(by_number[len(before.entries) :]))) == [*expected, last]


def plain(page: AuditPage) -> list[AuditEntry]:
    """Return the entries of a page without their numbers."""
    return [attrs.evolve(each, number=0) for each in page.entries]


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The end of a process."""


@attrs.define
class Failing:
    """A target that some step does not reach."""

    _aim: Target
    at: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self._aim, name)

    async def add(self, *values: Any) -> None:
        self.at -= 1
        if not self.at:
            raise Interrupted
        await self._aim.add(*values)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_place_that_is_taken_is_refused(kind: Kind, tmp_path: Path) -> None:
    """By sessions of its own, by a copy of something else, by another copy at the same moment."""
    with place("sqlite", tmp_path / "here") as here, place(kind, tmp_path / "there") as there:
        for each in (here, there):
            async with store_at(each) as store:
                await every(store, turn("a"))
        with pytest.raises(StoreError, match="there are sessions in the store"):
            await copied(here, there)
        async with store_at(there) as store:
            assert await store.read(SessionRow("a", ANY_TENANT)) is not None
    with place(kind, tmp_path / "other") as there:
        async with source(here) as one, target(there) as aim:
            mark = await aim.begin("something else")
            with pytest.raises(StoreError, match="unfinished copy of another store"):
                await copy(one, aim)
            behind = attrs.evolve(mark, rows=7)
            with pytest.raises(StoreError, match="another process copies") as raised:
                await aim.add(copying.TABLES[0], [], behind, behind)
            assert raised.value.cause == "conflict"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_copy_that_differs_is_not_finished(kind: Kind, tmp_path: Path) -> None:
    """A row that was lost or changed on the way is found in the end, by its table."""
    for change in (
        "DELETE FROM {0}messages",
        "UPDATE {0}events SET seq = seq + 9",
        "UPDATE {0}sessions SET title = 't'",
    ):
        with place("sqlite", tmp_path / "here") as here, place(kind, tmp_path / change.split()[-1]) as there:
            async with store_at(here) as store:
                if await store.read(SessionRow("a", ANY_TENANT)) is None:
                    await every(store, turn("a"))
            async with source(here) as one, target(there) as aim:
                await copy(one, aim)
                if isinstance(there, PostgresConfig):
                    server().run(name_in(there.url), change.format("warren."))
                else:
                    with contextlib.closing(apsw.Connection(str(there.path / FILE_NAME))) as db:
                        db.execute(change.format(""))
                table = change.format("").split()[2 if change[0] == "D" else 1]
                with pytest.raises(StoreError, match=f"the table {table} of") as raised:
                    await copy(one, aim)
                assert raised.value.cause == "conflict"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_in_use_is_not_copied(kind: Kind, tmp_path: Path) -> None:
    """Neither one that a process has written, nor one that a process has open."""
    with place(kind, tmp_path / "here") as here, place("sqlite", tmp_path / "there") as there:
        async with store_at(here) as store:
            with pytest.raises(StoreError, match="a process uses the store") as raised:
                await copied(here, there)
            assert raised.value.cause == "leased"
            await every(store, turn("a"))
            with pytest.raises(StoreError, match=r"a process uses the store.*process [0-9]+ on"):
                await copied(here, there)
            async with store_at(there):
                pass
            with pytest.raises(StoreError, match="a process uses the store"):
                await copied(there, here)
        assert (await copied(here, there)).rows["sessions"] == 1


async def test_a_process_that_has_just_ended_is_waited_for(tmp_path: Path) -> None:
    """The server of a database ends a connection some time after its client has closed it."""
    with place("postgres", tmp_path / "here") as here, place("sqlite", tmp_path / "there") as there:
        assert isinstance(here, PostgresConfig)
        async with store_at(here) as store:
            await every(store, turn("a"))
        ending = await Connection.open(here, "writer")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def end() -> None:
                await trio.sleep(0.3)
                ending.close()

            assert (await copied(here, there)).rows["sessions"] == 1


async def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    """A text that is no UTF-8 has no copy; the error says what to do."""
    here, there = StoreConfig(tmp_path / "here"), StoreConfig(tmp_path / "there")
    async with store_at(here) as store:
        await every(store, turn("a"), turn("b"))
    with contextlib.closing(apsw.Connection(str(here.path / FILE_NAME))) as db:
        db.execute("UPDATE messages SET body = CAST(x'22c3ff22' AS TEXT) WHERE position = 1")
    with pytest.raises(StoreError, match=r"a row of the table messages after .*cannot be read; `warren doctor --fix`"):
        await copied(here, there)
