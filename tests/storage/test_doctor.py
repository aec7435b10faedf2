"""The faults that an examination finds in a store, and the repairs."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw
import attrs
import pytest

from tests.storage.files import BYTES, blob, with_file
from tests.storage.memory.samples import opened as opened_memory
from tests.storage.processes import Process
from tests.storage.samples import NOW, entry, kept, moved, opened, step, turn, updated, wait, written
from tests.support.memories import memory_in
from warren.base.errors import StoreError
from warren.conversation.memory import MemoryEntry
from warren.reports.reports import FileFacts, Finding, Report
from warren.settings.config import StoreConfig
from warren.storage.maintenance.damage import FILE
from warren.storage.maintenance.doctor import examine, fix
from warren.storage.maintenance.memory import examine_memory
from warren.storage.memory import builder
from warren.storage.memory.graph import FILE_NAME as INDEX
from warren.storage.operations import Archive, Attach, Claim, Claimed, Delete, Lease, Release
from warren.storage.queries import AttachmentBytes, NextWake, SessionList, SessionStart, WaitingSessions
from warren.storage.rows import SEQ_STRIDE
from warren.storage.sqlite.file import FILE_NAME, VERSION

MANY: Final = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) INSERT INTO more SELECT i FROM n
"""
VERSIONS: Final = Path(__file__).parent / "versions"


async def healthy(path: Path) -> StoreConfig:
    """Store three sessions: one compacted and labelled, one archived, one deleted; return where."""
    async with opened(path) as store:
        await written(store, *(turn("a", number, labels={"k": "v", "n": "1"}) for number in range(4)))
        last = with_file(turn("a", 4, labels={"k": "v", "n": "1"}), blob())
        await written(store, Attach("a", (blob(),)), moved(last, entry(5, 5)))
        await written(store, turn("b"), turn("c"), Release("a", Lease(1)), Release("b", Lease(1)))
        await written(store, Archive("b"), Delete("c"))
    return StoreConfig(path / "store")


def damage(config: StoreConfig, *statements: str) -> None:
    """Change the file behind the store's back."""
    db = apsw.Connection(str(config.path / FILE_NAME))
    for statement in statements:
        db.execute(statement)
    db.close()


def found(report: Report[FileFacts], level: str = "problem") -> list[Finding]:
    """Return the findings of a level."""
    return [finding for finding in report.findings if finding.level == level]


def contents(config: StoreConfig) -> bytes:
    """Return all that is in the file."""
    return (config.path / FILE_NAME).read_bytes()


async def test_a_store_that_is_well(tmp_path: Path) -> None:
    """Nothing is found, the figures are those of the file, and the file is as before."""
    config = await healthy(tmp_path)
    before = contents(config)
    for full in (False, True):
        report = examine(config, full=full)
        assert (report.healthy, found(report)) == (True, [])
    store = report.store
    assert (store.sessions, store.archived, store.deleted, store.erasures_due) == (1, 1, 1, 1)
    assert (store.messages, store.events, store.version, store.integrity) == (12, 18, VERSION, "full")
    assert (store.bytes, store.pages * store.page_size) == (len(before), len(before))
    assert 0 < store.disk_free <= shutil.disk_usage(tmp_path).total
    assert [finding.check for finding in report.findings] == ["erasures"]
    assert contents(config) == before


DAMAGES: Final = {
    "transcript": "DELETE FROM messages WHERE session = 1 AND position = 7",
    "transcript: the first": "DELETE FROM messages WHERE session = 1 AND position = 0",
    "transcript: the last": "DELETE FROM messages WHERE session = 1 AND position = 9",
    "transcript: too many": 'INSERT INTO messages VALUES (1, 10, 0, \'{"role":"user","content":"x"}\')',
    "transcript: left": "UPDATE sessions SET messages_from = 3 WHERE key = 1",
    "head": "UPDATE sessions SET head = 4 WHERE key = 1",
    "head: no summary": "DELETE FROM compactions WHERE session = 1",
    "head: beyond": "UPDATE sessions SET head = 11 WHERE key = 1; UPDATE compactions SET head = 11",
    "events": "UPDATE sessions SET last_seq = 14 WHERE key = 1",
    "events: left": "UPDATE sessions SET events_after = 3 WHERE key = 1",
    "record": "UPDATE sessions SET details = '{\"turn_open\": 7}' WHERE key = 1",
    "record: labels": "UPDATE sessions SET labels = '{' WHERE key = 1",
    "messages": "UPDATE messages SET body = '{' WHERE session = 1 AND position = 2",
    "messages: time": "UPDATE messages SET created_at = 9e18 WHERE session = 1 AND position = 2",
    "events: body": "UPDATE events SET body = '{' WHERE session = 1 AND seq = 2",
    "compactions": "UPDATE compactions SET summary = CAST(x'ff' AS TEXT)",
    "labels": "DELETE FROM labels WHERE name = 'k'",
    "labels: other": "UPDATE labels SET value = 'w' WHERE name = 'k'",
    "labels: more": "INSERT INTO labels VALUES ('x', 'y', 1)",
    "orphans": "INSERT INTO messages VALUES (99, 0, 0, '{}')",
    "orphans: of a tombstone": "INSERT INTO events VALUES (3, 1, 1, 0, '{}', NULL)",
    "orphans: labels": "INSERT INTO labels VALUES ('x', 'y', 99)",
    "orphans: files": "INSERT INTO attachments VALUES (99, 1, 'image/png', NULL, NULL)",
    "orphans: files without bytes": "INSERT INTO attachments VALUES (1, 99, 'image/png', NULL, NULL)",
    "orphans: bytes": "INSERT INTO blobs VALUES (98, 'default', hex(zeroblob(32)), x'00')",
    "files: gone": "DELETE FROM blobs; DELETE FROM attachments",
    "orphans: compactions": "UPDATE compactions SET session = 99; UPDATE sessions SET head = 0 WHERE key = 1",
}


FIXABLE: Final = {
    what
    for what in DAMAGES
    if what.startswith(("orphans", "labels", "record", "messages", "compactions")) or what == "events: body"
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_what_is_wrong_is_found(tmp_path: Path, what: str) -> None:
    """Each kind of damage is one finding of its kind, which names the session where there is one."""
    config = await healthy(tmp_path)
    if what == "record: labels":
        damage(config, "DROP TRIGGER labels_changed", "DELETE FROM labels")
    damage(config, DAMAGES[what])
    report = examine(config)
    kind = what.partition(":")[0]
    assert ([finding.check for finding in found(report)], report.healthy) == ([kind], False)
    assert found(report)[0].sessions == (() if kind == "orphans" else ("a",))
    assert found(report)[0].fixable == (what in FIXABLE)


TURNS: Final = {
    "record": "UPDATE sessions SET turn = '{\"began\": 7}' WHERE session_id = 'd'",
    "record: without its prompt": "UPDATE sessions SET turn = replace(turn, '\"prompt_at\":0', '\"prompt_at\":2')",
    "calls": "UPDATE calls SET state = 'lost' WHERE place = 1",
    "calls: no result": "UPDATE calls SET state = 'done' WHERE place = 0",
    "calls: left over": "UPDATE sessions SET turn = NULL",
}
"""What can be wrong with an open turn, by the name of its check."""


@pytest.mark.parametrize("what", TURNS)
async def test_open_turns_that_cannot_go_on_are_found_and_end(tmp_path: Path, what: str) -> None:
    """The session is named; a repair leaves it without the turn, whose rows are set aside."""
    async with opened(tmp_path) as store:
        await written(store, step("d", calls=(kept(0), kept(1, result="x"))), step("e", calls=(kept(0),)))
        await written(store, Release("d", Lease(1)), Release("e", Lease(1)))
    config = StoreConfig(tmp_path / "store")
    assert found(examine(config, full=True)) == []
    of_both = "WHERE" not in TURNS[what]
    damage(config, TURNS[what].replace("WHERE place", "WHERE session = 1 AND place"))
    (problem,) = found(examine(config))
    assert (problem.check, problem.fixable) == (what.partition(":")[0], True)
    assert problem.sessions == (("d", "e") if of_both else ("d",))
    assert fix(config, examine(config)) != ()
    assert found(examine(config, full=True)) == []
    aside = (config.path / FILE).read_text()
    assert ('"table":"calls"' if what.startswith("calls") else '"turn":') in aside
    async with opened(tmp_path) as store:
        assert list(await store.read(WaitingSessions())) == ([] if of_both else ["e"])
        (claimed,) = await written(store, Claim("d"))
        assert (claimed.record.turn, claimed.record.turn_open, claimed.calls) == (None, True, ())


WAITS: Final = {
    "waits: of its turn": ("UPDATE waits SET reason = 'lost' WHERE wait_id = 'call-0'", "set 1 rows aside", ["call-2"]),
    "waits: in the background": ("UPDATE waits SET body = '[' WHERE wait_id = 'call-2'", "set 1", ["call-0"]),
    "waits: settled": ("UPDATE waits SET since = -1e18 WHERE wait_id = 'call-1'", "set 1", ["call-0", "call-2"]),
    "waits: without a turn": ("UPDATE sessions SET turn = NULL, wakes = NULL", "settled 1 waits", ["call-2"]),
    "waits: listed elsewhere": ("UPDATE waits SET tenant = 'x'", "listed 3 waits", ["call-0", "call-2"]),
    "waits: of an archived session": (
        "UPDATE sessions SET state = 1, turn = NULL, wakes = NULL",
        "settled 2 waits",
        [],
    ),
    "orphans": ("UPDATE waits SET session = 9 WHERE wait_id = 'call-1'", "removed 1 rows", ["call-0", "call-2"]),
    "record: wakes": ("UPDATE sessions SET wakes = -1000000000000000000", "set 1 rows", ["call-0", "call-2"]),
}
"""What can be wrong with waits: its check, the statement that makes it so, the repair, and what waits after that."""


@pytest.mark.parametrize("what", WAITS)
async def test_waits_that_are_not_as_they_should_be_are_found_and_mended(tmp_path: Path, what: str) -> None:
    """A damaged one is set aside, and its turn is over; others are settled, or listed for their own tenant."""
    statement, sentence, left = WAITS[what]
    waits = (wait(0), wait(1, "client", state="settled"), wait(2, "background"))
    wakes = datetime(2126, 1, 1, tzinfo=UTC)
    async with opened(tmp_path) as store:
        await written(store, attrs.evolve(step("d", wakes=wakes), waits=waits), Release("d", Lease(1)))
    config = StoreConfig(tmp_path / "store")
    report = examine(config, full=True)
    assert (found(report), report.store.waits) == ([], 2)
    damage(config, statement)
    (problem,) = (each for each in found(examine(config)) if each.check != "calls")
    assert (problem.check, problem.fixable) == (what.partition(":")[0], True)
    assert problem.sessions == (() if what == "orphans" else ("d",))
    assert any(line.startswith(sentence) for line in fix(config, examine(config)))
    assert found(examine(config, full=True)) == []
    async with opened(tmp_path) as store:
        (claimed,) = await written(store, Claim("d"))
        assert [each.wait_id for each in claimed.waits] == left
        over = what in ("waits: of its turn", "waits: without a turn", "waits: of an archived session")
        assert (claimed.record.turn is None) == over
        asleep = not over and what != "record: wakes"
        assert await store.read(NextWake()) == (wakes if asleep else None)


async def test_an_open_turn_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    """Its session is repaired when that process has ended."""
    config = StoreConfig(tmp_path / "store")
    async with opened(tmp_path) as store:
        await written(store, step("d", calls=(kept(0),)))
        damage(config, TURNS["calls: no result"])
        assert fix(config, examine(config)) == (
            "left 1 rows alone that cannot be read: a process that lives holds their sessions",
        )
    assert len(found(examine(config))) == 1


@pytest.mark.parametrize(
    ("check", "statement"),
    [
        ("events", "UPDATE events SET first_seq = 1 WHERE session = 1 AND seq = 3"),
    ],
)
async def test_what_only_a_full_examination_finds(tmp_path: Path, check: str, statement: str) -> None:
    """Rows are compared with those beside them only when that is asked for."""
    config = await healthy(tmp_path)
    damage(config, statement)
    assert found(examine(config)) == []
    assert [(each.check, each.sessions) for each in found(examine(config, full=True))] == [(check, ("a",))]


async def test_what_is_fixed(tmp_path: Path) -> None:
    """Rows of nobody go, sessions are found by their labels again, and a second look finds nothing."""
    config = await healthy(tmp_path)
    damage(config, *(DAMAGES[what] for what in DAMAGES if what.startswith("orphans") and "compactions" not in what))
    damage(config, DAMAGES["labels: other"], DAMAGES["labels: more"])
    done = fix(config, examine(config))
    assert done == (
        "removed 1 rows of messages that belonged to no session",
        "removed 1 rows of events that belonged to no session",
        "removed 1 rows of labels that belonged to no session",
        "removed 1 rows of attachments that belonged to no session",
        "removed 1 rows of attachments that had no bytes",
        "removed 1 rows of blobs that belonged to no session",
        "made 1 sessions findable by their labels",
    )
    assert found(examine(config, full=True)) == []
    async with opened(tmp_path) as store:
        assert [
            record.session_id for record in await store.read(SessionList("default", labels={"k": "v", "n": "1"}))
        ] == ["a"]
        assert await store.read(SessionList("default", labels={"x": "y"})) == []
    assert fix(config, examine(config)) == ()


async def test_a_file_that_a_message_names_is_given_back(tmp_path: Path) -> None:
    """Bytes that are not those of their hash are set aside; the right ones, attached again, are read as before."""
    config = await healthy(tmp_path)
    damage(config, "DELETE FROM attachments")
    assert {each.check for each in found(examine(config))} == {"orphans", "files"}
    assert fix(config, examine(config)) == ("gave sessions 1 files back that their messages name",)
    assert found(examine(config, full=True)) == []
    damage(config, "UPDATE blobs SET body = x'00'")
    assert found(examine(config)) == []
    report = examine(config, full=True)
    assert [(each.check, each.sessions, each.fixable) for each in found(report)] == [("files", ("a",), True)]
    (sentence,) = fix(config, report)
    assert sentence.startswith("set 1 files aside with bytes that are not theirs")
    assert [(each.sessions, each.fixable) for each in found(examine(config, full=True))] == [(("a",), False)]
    async with opened(tmp_path) as store:
        hashed = str(blob().attachment.sha256)
        assert await store.read(AttachmentBytes("a", "default", hashed, 0, 9)) is None
        await written(store, Attach("a", (blob(),)))
        assert await store.read(AttachmentBytes("a", "default", hashed, 0, 10_000)) == BYTES
    assert found(examine(config, full=True)) == []


async def test_what_cannot_be_fixed_stays(tmp_path: Path) -> None:
    """A message that is missing cannot be made up: it is still a problem afterwards."""
    config = await healthy(tmp_path)
    damage(config, DAMAGES["transcript"])
    assert fix(config, examine(config)) == ()
    assert [finding.check for finding in found(examine(config))] == ["transcript"]


async def test_the_labels_of_a_session_that_is_held_are_left_alone(tmp_path: Path) -> None:
    """A row that a living process has is not touched, and that is said."""
    process = await Process.starting(tmp_path)
    await process.do(turn("a", labels={"k": "v"}))
    config = StoreConfig(tmp_path / "store")
    damage(config, "DELETE FROM labels")
    assert fix(config, examine(config)) == ("left the labels of 1 sessions alone: a process that lives holds them",)
    assert [finding.check for finding in found(examine(config))] == ["labels"]
    await process.end()


async def test_who_holds_what(tmp_path: Path) -> None:
    """Processes are named with what they hold; one that is dead is a notice, and is no problem."""
    one, two = await Process.starting(tmp_path, "the gateway"), await Process.starting(tmp_path, "a killed one")
    await one.do(turn("a"))
    await two.do(turn("b"))
    await two.do(turn("c"))
    config = StoreConfig(tmp_path / "store")
    assert found(examine(config), "notice") == []
    two.die()
    report = examine(config)
    killed, gateway = sorted(report.holders, key=lambda each: each.name or "")
    assert ((gateway.name or "")[:11], gateway.alive, gateway.sessions) == ("the gateway", True, 1)
    assert ((killed.name or "")[:12], killed.alive, killed.sessions) == ("a killed one", False, 2)
    (notice,) = found(report, "notice")
    assert (notice.check, notice.fixable, set(notice.sessions)) == ("leases", True, {"b", "c"})
    assert notice.message.startswith("1 crashed process still has 2 sessions: ")
    assert report.healthy
    await one.end()


async def test_a_dead_process_without_sessions(tmp_path: Path) -> None:
    """Nothing is left of it that anybody could take over, so nothing is said."""
    one, two = await Process.starting(tmp_path), await Process.starting(tmp_path)
    await one.do(turn("a"))
    two.die()
    assert found(examine(StoreConfig(tmp_path / "store")), "notice") == []
    await one.end()


async def test_what_the_dead_held_is_freed(tmp_path: Path) -> None:
    """Their sessions are anybody's, with the numbers that they may have shown left out; the living keep theirs."""
    one, two = await Process.starting(tmp_path), await Process.starting(tmp_path)
    await one.do(turn("a"))
    await two.do(turn("b"))
    two.die()
    config = StoreConfig(tmp_path / "store")
    assert fix(config, examine(config)) == ("freed 1 sessions of processes that are dead",)
    (left,) = examine(config).holders
    assert (left.alive, left.sessions) == (True, 1)
    assert isinstance(await one.claim("a"), Claimed)
    assert (await one.claim("b")).record == attrs.evolve(turn("b").record, last_seq=3 + SEQ_STRIDE)
    await one.end()


async def test_a_record_that_cannot_be_read_holds_nothing_up(tmp_path: Path) -> None:
    """It is set aside, and what dead processes held is freed, the session that it was of among them."""
    process = await Process.starting(tmp_path)
    for session_id in ("a", "b", "c"):
        await process.do(turn(session_id))
    process.die()
    config = StoreConfig(tmp_path / "store")
    damage(config, "UPDATE sessions SET details = '{' WHERE session_id = 'b'")
    aside, freed = fix(config, examine(config))
    assert aside == f"set 1 rows aside that cannot be read: they are in {config.path / 'set-aside.jsonl'}"
    assert freed == "freed 3 sessions of processes that are dead"
    assert found(examine(config, full=True)) == []


STEERED: Final = """UPDATE messages SET body = '{"role":"user","content":"more","steered":true}' WHERE position = 1"""


async def test_turns_are_counted_anew_by_their_own_prompts(tmp_path: Path) -> None:
    """A prompt that was steered into one is none of its own."""
    config = StoreConfig(tmp_path / "store")
    async with opened(tmp_path) as store:
        await written(store, turn("a"), Release("a", Lease(1)))
    damage(config, STEERED, "UPDATE sessions SET turns = -1")
    fix(config, examine(config))
    async with opened(tmp_path) as store:
        loaded = await store.read(SessionStart("a"))
        assert loaded is not None
        assert loaded.record.turns == 1


async def test_a_log_that_has_grown(tmp_path: Path) -> None:
    """Something that reads for long lets the log grow; it is told, and moved into the file by a fix."""
    config = await healthy(tmp_path)
    reader = apsw.Connection(str(config.path / FILE_NAME))
    reader.execute("BEGIN; SELECT count(*) FROM sessions")
    damage(config, "CREATE TABLE filler (x)")
    writer = apsw.Connection(str(config.path / FILE_NAME))
    writer.execute("INSERT INTO filler VALUES (zeroblob(70 << 20)); DROP TABLE filler")
    writer.close()
    reader.execute("ROLLBACK")
    report = examine(config)
    assert [finding.check for finding in found(report, "notice")] == ["log", "free", "erasures"]
    assert report.store.log_bytes > 64 << 20
    reader.close()
    fix(config, report)
    assert examine(config).store.log_bytes == 0


def torn(path: Path) -> None:
    """Overwrite a page in the middle."""
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)


async def test_a_damaged_file(tmp_path: Path) -> None:
    """A fault that SQLite finds is reported, and nothing is changed in such a file."""
    config = await healthy(tmp_path)
    torn(config.path / FILE_NAME)
    report = examine(config)
    assert (report.healthy, report.store.integrity) == (False, "failed")
    assert {finding.check for finding in report.findings} == {"integrity"}
    before = contents(config)
    with pytest.raises(StoreError, match="backup") as caught:
        fix(config, report)
    assert (caught.value.cause, contents(config)) == ("corrupt", before)


def _text(path: Path) -> None:
    path.write_text("this is a text\n" * 1000)


def _other(path: Path) -> None:
    path.unlink()
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x)")
    db.close()


def _newer(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [(Path.unlink, "missing"), (_text, "not_a_database"), (_other, "not_a_store"), (_newer, "newer_schema")],
)
async def test_what_is_no_store_of_ours(tmp_path: Path, spoil: Callable[[Path], None], cause: str) -> None:
    """It is refused with the reason and the file's name, and stays as it is."""
    config = await healthy(tmp_path)
    path = config.path / FILE_NAME
    spoil(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(StoreError, match=str(config.path)) as caught:
        examine(config)
    assert caught.value.cause == cause
    assert (path.read_bytes() if path.exists() else None) == before


def test_an_older_store(tmp_path: Path) -> None:
    """It can be looked at without being changed; it is brought up to date when it is used, or fixed."""
    config = StoreConfig(tmp_path)
    shutil.copy(VERSIONS / "1.sqlite3", tmp_path / FILE_NAME)
    report = examine(config)
    assert (report.store.version, report.healthy) == (1, True)
    assert [finding.check for finding in report.findings] == ["version", "free"]
    fix(config, report)
    assert (examine(config).store.version, found(examine(config, full=True))) == (VERSION, [])


async def test_the_memory(tmp_path: Path) -> None:
    """Its texts are counted, and its index is looked at: none, whole, damaged, of another database."""
    await _filled(tmp_path, [f"text {number}" for number in range(30)])
    assert _index(tmp_path) == ("none", [])
    builder.build(tmp_path, "bag-of-words/4096")
    facts, findings = examine_memory(tmp_path)
    assert (facts.entries, facts.sessions, facts.index, facts.behind, findings) == (30, 1, "ok", 0, ())
    assert facts.index_bytes == (tmp_path / INDEX).stat().st_size
    saved = (tmp_path / INDEX).read_bytes()
    (tmp_path / INDEX).write_bytes(saved[:50] + b"?" + saved[51:])
    assert _index(tmp_path) == ("damaged", ["notice"])
    await _filled(tmp_path / "other", ["text"])
    builder.build(tmp_path / "other", "bag-of-words/4096")
    shutil.copy(tmp_path / "other" / INDEX, tmp_path / INDEX)
    assert _index(tmp_path) == ("stale", ["notice"])


async def _filled(folder: Path, texts: list[str]) -> None:
    async with opened_memory(folder, name="bag-of-words") as memory:
        await memory.index([MemoryEntry("a", number, 1, text, NOW) for number, text in enumerate(texts)])


def _index(folder: Path) -> tuple[str, list[str]]:
    facts, findings = examine_memory(folder, full=True)
    return facts.index, [finding.level for finding in findings]


async def test_a_memory_that_miscounts(tmp_path: Path) -> None:
    """A count that is not that of its texts is a problem."""
    memory = await memory_in(tmp_path)()
    await memory.index([MemoryEntry("a", 1, 1, "text", NOW)])
    await memory.aclose()
    db = apsw.Connection(str(tmp_path / "memory.sqlite3"))
    db.execute("UPDATE totals SET entries = 7")
    db.close()
    assert [finding.level for finding in examine_memory(tmp_path)[1]] == ["problem"]


async def test_a_turn_that_is_open_is_no_problem(tmp_path: Path) -> None:
    """A process that died in mid-turn after a compaction leaves its session so that the next one ends the turn."""
    async with opened(tmp_path) as store:
        await written(store, *(turn("a", number) for number in range(3)))
        await written(store, updated(moved(turn("a", 3), entry(4, 5)), turn_open=True))
    assert found(examine(StoreConfig(tmp_path / "store"), full=True)) == []


async def test_an_examination_ends_when_its_caller_does(tmp_path: Path) -> None:
    """It asks again and again whether it goes on, also within a query; then nothing of it is left in the way."""
    config = await healthy(tmp_path)
    damage(config, "CREATE TABLE more (i)", MANY)
    asked = list[int]()

    def go_on() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise LookupError("the caller has gone")

    with pytest.raises(LookupError, match="has gone"):
        examine(config, go_on=go_on)
    damage(config, "DROP TABLE more", "VACUUM")
    assert examine(config).healthy
