"""One damaged value in any column of any table: the rest goes on, and the damage is named, found and set aside."""
# ruff: noqa: S608 - the names are those of the schema

import json
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.storage.damaging import KINDS, STORAGE, columns, put, quick_folder
from tests.storage.files import blob, with_file
from tests.storage.samples import NOW, entry, kept, moved, opened, step, turn, updated, wait, written
from tests.support.runtime import open_runtime, replay
from warren.agents.spec import AgentSpec
from warren.base.errors import StoreError, WarrenError
from warren.conversation.events import StreamTruncated
from warren.conversation.inputs import Input
from warren.conversation.peers import Peer
from warren.conversation.schedules import Run, Schedule, Timing
from warren.conversation.triggers import Delivery, Trigger
from warren.conversation.webhooks import Webhook
from warren.reports.audit import AuditEntry
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import back_up, restore
from warren.storage.maintenance.damage import FILE
from warren.storage.maintenance.doctor import examine, fix
from warren.storage.operations import (
    Advance,
    Attach,
    Delete,
    Enqueue,
    KeepAgent,
    KeepDelivery,
    Lease,
    PutSchedule,
    PutTrigger,
    PutWebhook,
    Release,
    RequestHandover,
)
from warren.storage.queries import HandoverAnswer, StoredEvents, StoreNews
from warren.storage.sqlite import SqliteStore, audit
from warren.storage.sqlite.file import FILE_NAME, VERSION, open_writer

NOT_MADE_UP: Final = {"transcript", "events", "head", "peers", "labels", "tenants", "files"}
"""Problems that may be left after a row was set aside: what is missing is not invented."""


NOT_SET_ASIDE: Final = ("labels", "holders", "attachments", "erasures", "creations", "requests", "sqlite_sequence")
"""Tables with rows that are removed, or made anew of others."""
HOUR: Final = timedelta(hours=1)
SECRET: Final = f"whsec_{'A' * 43}="
DELIVERED: Final = """
    INSERT INTO deliveries SELECT 1, 'msg', 'hook', 'default', key, 'turn.completed', 0, 'dead', NULL, 7, 1, 0, 500,
        'no', '{}' FROM sessions WHERE session_id = 'a'
"""
FILE_OF_A: Final = blob()


async def sample(path: Path) -> None:
    """Store a session with a row in every table, one that is never touched, one that was deleted, one with a turn."""
    said = Input("i1", "queue", "wait", turn("a").record.created_at, "k1", not_before=NOW)
    async with opened(path) as store:
        ann = updated(turn("a", labels={"k": "v"}), peer=Peer("ann"))
        asks = wait(0, "question", wait_id="q", question_of="call-0", args={"message": "Go on?"})
        begun = attrs.evolve(step("d", calls=(kept(0), kept(1, result="x"))), waits=(asks,))
        await written(store, ann, turn("b", labels={"k": "v"}), turn("c"), begun)
        await written(store, *(updated(turn("a", number, labels={"k": "v"}), peer=Peer("ann")) for number in (1, 2)))
        await written(store, Attach("a", (FILE_OF_A,)))
        last = with_file(turn("a", 3, labels={"k": "v"}), FILE_OF_A)
        await written(store, updated(moved(last, entry(3, 3)), peer=Peer("ann")))
        await written(store, Enqueue("a", said, 9), Release("a", Lease(1)), Release("b", Lease(1)), Delete("c"))
        await written(store, Release("d", Lease(1)))
        due = datetime(2126, 1, 1, tzinfo=UTC)
        plan = Schedule("plan", "default", "local", NOW, "go", Timing(every="1h"), session_id="a", due=due)
        await written(store, PutSchedule(plan, 9), Advance("plan", Run(due, "missed", NOW, "a"), due + HOUR))
        waits_for = Trigger("hook", "default", "local", NOW, "go", "secret", session_id="a", key="k")
        await written(store, PutTrigger(waits_for, 9), KeepDelivery("hook", Delivery("d1", "fired", NOW, "a")))
        hook = Webhook("hook", "default", "local", NOW, "https://a.example", SECRET, session_id="a")
        await written(store, PutWebhook(hook, 9))
        await written(store, KeepAgent("default", AgentSpec("desk", "complaints", "Settle it."), NOW))
    db = open_writer(StoreConfig(path / "store"))
    db.execute(DELIVERED)
    db.execute("INSERT INTO holders VALUES (77, 'dead', 1, '{}', 0); UPDATE inbox SET starts = 0")
    db.execute("INSERT INTO cluster (secret, completions) VALUES (hex(zeroblob(32)), hex(zeroblob(32)))")
    audit.add(db, [AuditEntry(at=NOW, action="login", who="", tenant=None, number=number) for number in range(3)])
    db.execute("INSERT INTO creations VALUES ('default', 'k', 1, '{}'); INSERT INTO requests VALUES (1, 77)")
    db.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, to be copied."""
    path = tmp_path_factory.mktemp("template")
    trio.run(sample, path)
    return path / "store"


SCHEMA: Final = [STORAGE / f"schema_{version}.sql" for version in range(1, VERSION + 1)]


def damage(folder: Path, table: str, column: str, value: str) -> bool:
    """Put a value into one row; return whether the file can hold it."""
    where = {
        "sessions": "key = 1",
        "holders": "key = 77",
        "sqlite_sequence": "name = 'inbox'",
        "audit": "number = 2",
        "blobs": "key = 1",
        "calls": "session = 4",
        "waits": "session = 4",
        "agents": "key = 1",
    }.get(table)
    where = where or ("true" if table in ("erasures", "cluster", "usage") else "session = 1")
    # One row: the middle one, so that there is something behind it.
    order = {
        "messages": "position",
        "events": "seq",
        "labels": "name",
        "erasures": "session_id",
        "creations": "key",
        "attachments": "blob",
    }.get(table, "rowid")
    skip = {"messages": 4, "events": 4}.get(table, 0)
    key = {"labels": "(name, session)", "erasures": "session_id", "creations": "key", "attachments": "blob"}.get(
        table, "rowid"
    )
    row = f"SELECT {key.strip('()')} FROM {table} WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {skip}"
    return put(folder / FILE_NAME, table, column, value, f"{key} = ({row})")


async def outcome(work: Any) -> Any:
    """Return what a call gives, or its error; an error that is no typed one fails the test."""
    try:
        return await work
    except WarrenError as exc:
        return exc


async def goes_on(folder: Path, shown: tuple[int, ...] = (3,)) -> set[str]:
    """Use the store as clients do; return the rows that lists have named as damaged. `shown` sessions are listed."""
    async with open_runtime(store=folder) as service:
        page = await service.list(include_archived=True)
        ids = [row.session_id for row in page.sessions]
        assert "b" in ids
        assert len(page.sessions) + len(page.damaged) in shown
        assert (await service.start_turn("b", "hello")).text == "hello"
        assert len((await service.history("b")).messages) == 4
        assert (await service.create_session("new")).text == "new"
        await service.inject_context("b", "words", idempotency_key="once")
        named = {each.row for each in page.damaged}
        for session_id in ids:
            history = await outcome(service.history(session_id))
            if not isinstance(history, WarrenError):
                named |= {each.row for each in history.damaged}
            for call in (service.read(session_id), service.inputs(session_id), service.peers(session_id)):
                await outcome(call)
            found = await outcome(replay(service, session_id))
            if not isinstance(found, WarrenError):
                gaps = [(each.seq, each.event) for each in found if isinstance(each.event, StreamTruncated)]
                assert all(seq == gap.resume_after for seq, gap in gaps)
                named |= {f"event {seq}" for seq, _ in gaps}
            await outcome(service.start_turn(session_id, "go on"))
            await outcome(service.fork(session_id))
            await outcome(service.attachment(session_id, str(FILE_OF_A.attachment.sha256)))
        lists = (
            service.schedules(),
            service.triggers(),
            service.webhooks(),
            service.deliveries("hook"),
            service.agents(),
        )
        for listed in [await outcome(each) for each in lists]:
            if not isinstance(listed, WarrenError):
                named |= {each.row for each in listed.damaged}
        entries = await service.audit(limit=1000)
        assert "create" in {each.action for each in entries.entries}
        return named | {f"entry {each.row}" for each in entries.damaged}


COLUMNS: Final = columns(SCHEMA)


def few_kinds(column: int) -> list[str]:
    """Return three of the kinds of values for a column; the next column gets the next three."""
    kinds = list(KINDS)
    return [kinds[(column * 3 + step) % len(kinds)] for step in range(3)]


@pytest.mark.virtual_time
@pytest.mark.parametrize(("table", "column"), COLUMNS)
async def test_one_damaged_value(template: Path, table: str, column: str) -> None:
    """Other sessions go on, lists name what they leave out; doctor finds it, a backup is refused, a fix mends it."""
    await damaged_values(template, table, column, few_kinds(COLUMNS.index((table, column))))


@pytest.mark.soak
@pytest.mark.virtual_time
@pytest.mark.parametrize(("table", "column"), COLUMNS)
async def test_every_damaged_value(template: Path, table: str, column: str) -> None:
    """The same with each kind of value in each column."""
    await damaged_values(template, table, column, KINDS)


async def damaged_values(template: Path, table: str, column: str, kinds: Iterable[str]) -> None:
    """Check stores that have a damaged value of one of the kinds in a column."""
    mended = 0
    with quick_folder() as work:
        for number, kind in enumerate(kinds):
            folder = work / str(number)
            shutil.copytree(template, folder)
            if damage(folder, table, column, KINDS[kind]):
                mended += await one_damaged_value(folder, table, column, kind, whole=not mended)


async def one_damaged_value(folder: Path, table: str, column: str, kind: str, *, whole: bool) -> bool:
    """Check a store with a damaged value; return whether doctor had to set something aside.

    `whole` also restores a backup of the store that was put right.
    """
    config = StoreConfig(folder, synchronous="NORMAL")
    before = (folder / FILE_NAME).read_bytes()
    report = examine(config)
    assert (folder / FILE_NAME).read_bytes() == before
    problems = [each for each in report.findings if each.level == "problem"]
    unreadable = [each for each in problems if "cannot be read" in each.message]
    # Whoever holds sessions is left out of a backup.
    if unreadable and "holder" not in table + column:
        with pytest.raises(StoreError) as caught:
            back_up(config, folder / "copy.sqlite3")
        assert caught.value.cause == "corrupt", kind
    copy = folder.with_name(f"{folder.name}-fixed")
    shutil.copytree(folder, copy)
    # A session without a tenant is in no list: nobody can tell whose it is.
    shown = (2, 3) if (table, column) == ("sessions", "tenant") else (3,)
    named = await goes_on(folder, shown)
    assert not named or problems, (kind, named)
    mended = StoreConfig(copy, synchronous="NORMAL")
    done = fix(mended, report)
    left = [each for each in examine(mended, full=True).findings if each.level == "problem"]
    assert {each.check for each in left} <= NOT_MADE_UP, (kind, left)
    if unreadable and table not in NOT_SET_ASIDE:
        assert any("set 1 rows aside" in line for line in done) or table == "inbox", (kind, done)
        aside = [json.loads(line) for line in (copy / FILE).read_text().splitlines()] if table != "inbox" else []
        # A turn of which a wait is gone is over, and so are its calls.
        assert {line["table"] for line in aside} <= ({"waits", "calls"} if table == "waits" else {table})
    if problems:
        assert not await goes_on(copy, shown) - {f"event {seq}" for seq in range(20)}
    if whole:
        back_up(mended, copy / "copy.sqlite3")
        restored = StoreConfig(folder.with_name(f"{folder.name}-restored"))
        restore(copy / "copy.sqlite3", restored)
        assert "cannot be read" not in str(examine(restored).findings)
    return bool(unreadable)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_neighbours_pass_over_a_damaged_value(template: Path, kind: str) -> None:
    """Another process's requests, inputs and events are found beside a damaged row, which is free or left out."""
    for table, column in (("sessions", "holder"), ("sessions", "last_seq"), ("requests", "holder")):
        with quick_folder() as work:
            folder = shutil.copytree(template, work / "store")
            if not damage(folder, table, column, KINDS[kind]):
                continue
            async with opened(work) as store:
                found = await store.read(StoreNews(["a", "b"], 0))
                assert found.last_seqs["b"] == (await replays(store, "b"))
                assert (await store.write([RequestHandover("a"), RequestHandover("b")])) == [False, False]
                for session_id in ("a", "b"):
                    assert await store.read(HandoverAnswer(session_id)) in (True, False)


async def replays(store: SqliteStore, session_id: str) -> int:
    """Return the number of a session's last event."""
    return ((await store.read(StoredEvents(session_id))).rows)[-1].seq


@pytest.mark.virtual_time
async def test_a_reader_goes_on_behind_a_damaged_event(tmp_path: Path, template: Path) -> None:
    """The marker's number is the damaged row's: who resumes from it gets the events behind it, and no marker again."""
    folder = tmp_path / "store"
    shutil.copytree(template, folder)
    assert damage(folder, "events", "body", KINDS["bad UTF-8"])
    async with open_runtime(store=folder) as service:
        whole = await replay(service, "a")
        (gap,) = [each for each in whole if isinstance(each.event, StreamTruncated)]
        assert (gap.seq, gap.event) == (5, StreamTruncated(1, 5, "damaged"))
        assert [each.seq for each in whole] == list(range(1, 13))
        assert [each.seq for each in await replay(service, "a", gap.seq)] == list(range(6, 13))
