"""Examines a store beside the processes that use it, and makes the repairs that are safe."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from warren.base.errors import StoreError, WarrenError
from warren.base.values import frozen
from warren.reports.reports import FileFacts, Finding, HolderFacts, Integrity, ProjectionFacts, Report, about_dead
from warren.settings.config import StoreConfig
from warren.storage.maintenance import checks
from warren.storage.maintenance.attached import drop_empty, drop_unused, examine_files, give_back, set_different_aside
from warren.storage.maintenance.damage import FILE, keep, scan
from warren.storage.maintenance.damage import set_aside as set_row_aside
from warren.storage.maintenance.files import GoOn, log_size, reading, rivals
from warren.storage.maintenance.retention import can_shrink
from warren.storage.maintenance.unreadable import unreadable, unreadable_keys
from warren.storage.membership import SECRETS
from warren.storage.operations import Claim, Claimed, Operation, Release
from warren.storage.projection.formats import CHECKPOINT, checkpoint_of
from warren.storage.projection.places import SESSIONS
from warren.storage.rows import DELETED, shown, time_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import version_of
from warren.storage.sqlite.faults import damage_of, on_read_only_disk
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, VERSION, open_writer
from warren.storage.sqlite.inbox import damaged, set_aside
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.writer import SqliteOperation, Writer

LARGE_LOG: Final = 64 << 20
LITTLE_SPACE: Final = 64 << 20
MUCH_FREE: Final = 16 << 20
"""Bytes in empty pages from which on they are worth a word."""
COMPLAINTS: Final = 20
OF_A_ROW: Final = re.compile(r"(NULL|non-\w+|NUMERIC|TEXT) value in \w+\.\w+$")
_SESSIONS_OF: Final = (
    f"SELECT {raw('holder, session_id')} FROM sessions WHERE holder IS NOT NULL AND state <> {DELETED}"
)

_LABEL_ANEW: Final = """
    INSERT INTO labels SELECT label.key, label.value, sessions.key FROM sessions, json_each(sessions.labels) AS label
    WHERE sessions.key = ?
"""


def examine(config: StoreConfig, *, full: bool = False, go_on: GoOn | None = None) -> Report[FileFacts]:
    """Examine a store. Nothing in it is changed, and processes that use it go on.

    Both kinds read the whole file.

    Args:
        config: the store.
        full: whether every page, index and row is checked, instead of about as much as a backup checks.
        go_on: see `files.look_at`.

    Raises StoreError if there is no store that could be examined; its `cause` is "missing", "not_a_database",
    "not_a_store", "newer_schema", "permission" and so on.
    """
    path = config.path / FILE_NAME
    with SESSION_STORE.faults(path), reading(config, go_on=go_on) as db:
        complaints, of_rows = _complaints(db, full=full)
        facts = _file_facts(db, path, "failed" if complaints else "full" if full else "quick")
        if complaints:
            findings = [Finding("integrity", f"the file is damaged: {line}") for line in complaints]
            return Report(facts, findings=tuple(findings))
        findings = list(_about_file(facts))
        if facts.version < VERSION:
            return Report(facts, findings=tuple(findings))
        facts = checks.counted(facts, db.execute(checks.ROWS["sqlite"]))
        holders, dead = _holders(db, Holder.of(config))
        of_data = list(_about_rows(db, full=full))
        if of_rows and not of_data:
            of_data = [Finding("integrity", f"the file is damaged: {line}") for line in of_rows]
        findings += [*dead, *of_data]
        projection = _projection(db, config.path / SESSIONS)
    return Report(
        facts, holders, projection, findings=tuple(sorted(findings, key=lambda finding: finding.level != "problem"))
    )


def fix(config: StoreConfig, found: Report[FileFacts]) -> tuple[str, ...]:
    """Make the repairs that are safe; return sentences about the repairs, and about rows that were left alone.

    Each step is one transaction. No step touches a session that another living process holds.

    Raises StoreError; its `cause` is "corrupt" for a file that is damaged: nothing is tried there.
    """
    path = config.path / FILE_NAME
    if found.store.integrity == "failed":
        problem = f"{path} is damaged: nothing in it is changed; restore a backup, or copy out the readable rows"
        raise StoreError(problem, cause="corrupt", retryable=False)
    # Closing the writer also moves the log into the file.
    with SESSION_STORE.faults(path), closing(Writer(db := open_writer(config), Holder.of(config))) as writer:
        aside = list(_mended(writer, config.path, _ASIDE))
        compared = any(checks.DIFFERENT.sentence.format("") in finding.message for finding in found.findings)
        steps = [each for each in _STEPS if compared or each.mend is not set_different_aside]
        mended = list(_mended(writer, config.path, steps))
        labelled = list(_mended(writer, config.path, [_LABELS]))
        freed = list(_free(writer, db))
    return (*mended, *aside, *labelled, *freed)


# -- looking


def _complaints(db: apsw.Connection, *, full: bool) -> tuple[list[str], list[str]]:
    """Return SQLite's complaints of the file as such, and those of single values in its rows."""
    try:
        found = db.execute(f"PRAGMA {'integrity' if full else 'quick'}_check({COMPLAINTS})").fetchall()
    except (apsw.CorruptError, apsw.IOError) as exc:
        damage = exc if isinstance(exc, apsw.CorruptError) else damage_of(exc)
        if damage is None:
            raise
        return [str(damage)], []
    lines = [line for (text,) in found for line in str(text).splitlines() if text != "ok"]
    of_rows = [line for line in lines if OF_A_ROW.match(line)]
    return [line for line in lines if line not in of_rows], of_rows


def _file_facts(db: apsw.Connection, path: Path, integrity: Integrity) -> FileFacts:
    return FileFacts(
        path=str(path),
        version=version_of(db, SESSION_STORE),
        bytes=path.stat().st_size,
        log_bytes=log_size(path),
        page_size=db.pragma("page_size"),
        pages=db.pragma("page_count"),
        free_pages=db.pragma("freelist_count"),
        can_shrink=can_shrink(db),
        disk_free=shutil.disk_usage(path.parent).free,
        read_only=on_read_only_disk(path),
        integrity=integrity,
    )


def _about_file(facts: FileFacts) -> Iterator[Finding]:
    if facts.version < VERSION:
        text = f"the file has version {facts.version}; its next use migrates it to {VERSION}"
        yield Finding("version", f"{text}, and then its rows can be examined", "notice", fixable=True)
    if facts.read_only:
        text = "the disk is mounted read-only: nothing can be stored until it can be written again"
        unseen = "; rows in the log beside the file were not examined" if facts.log_bytes else ""
        yield Finding("disk", text + unseen)
    elif facts.disk_free < LITTLE_SPACE:
        yield Finding("disk", f"the disk has {facts.disk_free >> 20} MiB left")
    if facts.log_bytes > LARGE_LOG:
        text = f"the log beside the file has grown to {facts.log_bytes >> 20} MiB: a reader kept it from a reset"
        yield Finding("log", text, "notice", fixable=True)
    if not facts.can_shrink:
        text = "the file cannot shrink: once, while nothing uses it, run `warren doctor prune --rewrite`"
        yield Finding("free", text, "notice")
    elif facts.free_pages * facts.page_size > MUCH_FREE:
        free = facts.free_pages * facts.page_size >> 20
        text = f"{free} MiB of the file are free: `warren doctor prune` gives them back"
        yield Finding("free", text, "notice")


def _about_rows(db: apsw.Connection, *, full: bool) -> Iterator[Finding]:
    yield from unreadable(db)
    yield from examine_files(db, full=full)
    for check, sql in checks.asked(checks.CHECKS, "sqlite", full=full):
        yield from check.found(db.execute(sql).fetchall(), shown)


def _holders(db: apsw.Connection, me: Holder) -> tuple[tuple[HolderFacts, ...], list[Finding]]:
    """Return the holders of sessions, and the finding about dead ones."""
    held: dict[int, list[str]] = {}
    for key, session_id in db.execute(_SESSIONS_OF):
        held.setdefault(key if type(key) is int else 0, []).append(shown(session_id))
    alive = rivals(db, me)
    known = {row[0]: row for row in db.execute(f"SELECT key, {raw('name, expires_at')} FROM holders")}
    facts = tuple(_holder(known.get(key), key in alive, len(held.get(key, ()))) for key in sorted({*known, *held}))
    left = tuple(session_id for key, ids in held.items() if key not in alive for session_id in ids)
    return facts, about_dead(facts, left)


def _holder(row: tuple[Any, ...] | None, alive: bool, sessions: int) -> HolderFacts:  # noqa: FBT001 - private
    _, name, expires_at = row or (None, None, None)
    try:
        until = None if expires_at is None else time_in(expires_at, "expires_at")
    except ValueError:
        until = None
    return HolderFacts(None if name is None else shown(name), alive, until, sessions)


def _projection(db: apsw.Connection, folder: Path) -> ProjectionFacts | None:
    if not folder.is_dir():
        return None
    try:
        checkpoint = checkpoint_of((folder / CHECKPOINT).read_bytes())
    except OSError:
        checkpoint = None
    change = None if checkpoint is None else checkpoint.change
    behind = db.execute("SELECT count(*) FROM sessions WHERE change > ?", (change or 0,)).get
    return ProjectionFacts(str(folder), change, behind)


# -- repairs


@frozen
class _Step:
    """A repair, and the sentences about the rows that it mended and about those that it left alone.

    Attributes:
        mend: makes it, and returns how many rows it mended, or also how many belong to a process that lives.
        done: the sentence for the first number; `{1}` is the file of what was set aside.
        left: the sentence for the second number.
    """

    mend: Callable[[apsw.Connection, Holder, Path], int | tuple[int, int]]
    done: str
    left: str = ""


@frozen
class _Repair(SqliteOperation[tuple[int, int]]):
    """A repair in a transaction of its own."""

    step: _Step
    folder: Path
    session_id: str = ""

    def apply(self, db: apsw.Connection, holder: Holder) -> tuple[int, int]:
        done = self.step.mend(db, holder, self.folder)
        return (done, 0) if isinstance(done, int) else done


def _mended(writer: Writer, folder: Path, steps: Iterable[_Step]) -> Iterator[str]:
    for step in steps:
        done, left = _done(writer, _Repair(step, folder))
        if done:
            yield step.done.format(done, folder / FILE)
        if left:
            yield step.left.format(left)


def _sweep(table: str, db: apsw.Connection, _holder: Holder, folder: Path) -> int:
    where = checks.orphaned("sqlite", table)
    keep(db, folder, table, where, "it belongs to no session")
    db.execute(f"DELETE FROM {table} WHERE {where}")
    return db.changes()


def _drop_calls(db: apsw.Connection, _holder: Holder, folder: Path) -> int:
    where = checks.SETTLED.format(t="")
    keep(db, folder, "calls", where, "its session has no open turn")
    db.execute(f"DELETE FROM calls WHERE {where}")
    return db.changes()


def _settle_waits(db: apsw.Connection, _holder: Holder, _folder: Path) -> int:
    db.execute(f"UPDATE waits SET state = 'settled' WHERE {checks.OVER.format(t='')}")
    return db.changes()


def _give_waits_back(db: apsw.Connection, _holder: Holder, _folder: Path) -> int:
    db.execute(checks.TENANT_OF_WAITS.format(t=""))
    return db.changes()


def _label_anew(db: apsw.Connection, holder: Holder, _folder: Path) -> tuple[int, int]:
    query = f"SELECT key, {raw('holder')} FROM sessions WHERE session_id IN ({checks.MISLABELLED})"
    wrong: list[Any] = db.execute(query).fetchall()
    alive = rivals(db, holder)
    free = [(key,) for key, owner in wrong if owner not in alive]
    for key in free:
        db.execute("DELETE FROM labels WHERE session = ?", key)
        db.execute(_LABEL_ANEW, key)
    return len(free), len(wrong) - len(free)


def _set_inputs_aside(db: apsw.Connection, holder: Holder, folder: Path) -> tuple[int, int]:
    alive, wrong = rivals(db, holder), damaged(db)
    free = [each for each in wrong if each.holder not in alive]
    for each in free:
        keep(db, folder, "inbox", f"number = {each.number}", each.problem)
    set_aside(db, free)
    return len(free), len(wrong) - len(free)


def _set_rows_aside(db: apsw.Connection, holder: Holder, folder: Path) -> tuple[int, int]:
    alive, bad = rivals(db, holder), list(scan(db))
    free = [row for row in bad if (row.rowid if row.table == "holders" else row.holder) not in alive]
    for row in free:
        set_row_aside(db, folder, row)
    db.execute(f"DELETE FROM requests WHERE {checks.NO_HOLDER}")
    for column in SECRETS.values():
        db.execute(f"UPDATE cluster SET {column} = NULL WHERE {checks.BAD_HEX.format(column)}")
    db.execute(f"UPDATE cluster SET hooks = NULL WHERE {checks.BAD_HOOKS}")
    for table, where in (keys := unreadable_keys(db)):
        keep(db, folder, table, where, "it cannot be read")
        db.execute(f"DELETE FROM {table} WHERE {where}")
    return len(free) + len(keys), len(bad) - len(free)


_ASIDE: Final = (
    _Step(
        _set_inputs_aside,
        "set {} inputs aside that cannot be read",
        "left {} inputs alone that cannot be read: a process that lives holds their sessions",
    ),
    _Step(
        _set_rows_aside,
        "set {} rows aside that cannot be read: they are in {}",
        "left {} rows alone that cannot be read: a process that lives holds their sessions",
    ),
)
_STEPS: Final = (
    *(
        _Step(partial(_sweep, table), f"removed {{}} rows of {table} that belonged to no session")
        for table in checks.TABLES["sqlite"]
    ),
    _Step(_drop_calls, "removed {} rows of calls without an open turn"),
    _Step(_settle_waits, "settled {} waits without an open turn"),
    _Step(_give_waits_back, "listed {} waits for the tenants of their sessions"),
    _Step(drop_empty, "removed {} rows of attachments that had no bytes"),
    _Step(
        set_different_aside,
        "set {} files aside with bytes that are not theirs: they are in {}; attach the right ones again",
    ),
    _Step(give_back, "gave sessions {} files back that their messages name"),
    _Step(drop_unused, "removed {} rows of blobs that belonged to no session"),
)
_LABELS: Final = _Step(
    _label_anew,
    "made {} sessions findable by their labels",
    "left the labels of {} sessions alone: a process that lives holds them",
)


def _free(writer: Writer, db: apsw.Connection) -> Iterator[str]:
    """Claim and release the sessions of dead processes."""
    alive = rivals(db, writer.holder)
    freed = 0
    rows: list[Any] = db.execute(_SESSIONS_OF).fetchall()
    for key, session_id in rows:
        if key not in alive:
            (claimed,) = writer.write([Claim(shown(session_id))])
            if isinstance(claimed, Claimed):
                _done(writer, Release(claimed.record.session_id, claimed.lease))
                freed += 1
            elif isinstance(claimed, WarrenError):
                raise claimed
    if freed:
        yield f"freed {freed} sessions of processes that are dead"


def _done(writer: Writer, operation: Operation[Any]) -> Any:
    (outcome,) = writer.write([operation])
    if isinstance(outcome, WarrenError):
        raise outcome
    return outcome
