"""Copies of a store taken while it is used, and a store made from such a copy."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw

from warren.base.errors import StoreError
from warren.base.values import frozen
from warren.conversation.memory import Progress
from warren.settings.config import StoreConfig
from warren.storage.maintenance.files import look_at, reading, sync_folder
from warren.storage.maintenance.replacing import making, out_of_the_way, part_of, refused_meanwhile, side_files
from warren.storage.maintenance.unreadable import unreadable
from warren.storage.projection.follower import Follower
from warren.storage.projection.places import SESSIONS
from warren.storage.refusals import in_use
from warren.storage.rows import DELETED, SEQ_STRIDE
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import lock, transaction, version_of
from warren.storage.sqlite.faults import damage_of
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, VERSION
from warren.storage.sqlite.lease import FOLDER, is_free

MEMORY_FOLDER: Final = "memory"
"""The folder of the memory, in the folder of a store."""
MEMORY_FILE: Final = "memory.sqlite3"
MEMORY_INDEX: Final = "memory.usearch"
MEMORY: Final = 0x5741524D
"""The number in the header of a memory; its own module needs the extra of the memory."""
PAGES: Final = 256
"""Copied between two reports of progress."""
WITH_HOLDERS: Final = 2
"""The first version of the schema with leases."""
WITH_SECRET: Final = 6
"""The first version with the secret by which the processes of one store know each other."""
# Leases hold in the store, not in its copy. Events that a holder may have shown unstored keep their numbers.
_SET_FREE: Final = f"""
    UPDATE sessions SET holder = NULL, last_seq = last_seq + {SEQ_STRIDE} WHERE holder IS NOT NULL;
    DELETE FROM holders;
"""  # noqa: S608 - our own number
# Clients may have seen events from after the backup: their numbers are not given out again.
_GO_ON_ABOVE: Final = f"UPDATE sessions SET last_seq = last_seq + {SEQ_STRIDE} WHERE state <> {DELETED};"  # noqa: S608
_COUNT: Final = f"SELECT count(*) FROM sessions WHERE state <> {DELETED}"  # noqa: S608 - our own number
_LIVES: Final = f"SELECT 1 FROM sessions WHERE session_id = CAST(? AS TEXT) AND state <> {DELETED}"  # noqa: S608


@frozen
class Copied:
    """The result of a copy.

    Attributes:
        path: the file with the sessions.
        bytes: their size.
        sessions: how many there are, archived ones included.
        memory: the file with the memory; None if there was no memory.
    """

    path: Path
    bytes: int
    sessions: int
    memory: Path | None


def memory_beside(path: Path) -> Path:
    """Return the path of the memory in a backup: `x.memory.sqlite3` for `x.sqlite3`."""
    return path.with_name(f"{path.stem}.memory{path.suffix}")


def back_up(config: StoreConfig, target: Path, *, force: bool = False, progress: Progress | None = None) -> Copied:
    """Copy a store and its memory as they are at this moment; processes that use them go on.

    Each copy is one file for its owner alone. SQLite checks it before it appears under its name; until then the name
    is free, or with `force` has its former file. The memory goes into a file beside it, without its index, which is a
    cache. `progress` is called with the pages that are copied, and the pages in all.

    Neither a file that a process has open nor one of a store is replaced, with `force` too.

    Raises StoreError; its `cause` is "missing" without a store, "exists" if a file is in the way, "leased" if a process
    has the file open that would be replaced, "corrupt" if the copy is damaged, "disk_full", "permission" and so on.
    """
    beside, memory = memory_beside(target), config.path / MEMORY_FOLDER / MEMORY_FILE
    _refuse_of_a_store(target, beside, config)
    _refuse_existing(target, beside, force=force)
    with ExitStack() as stack:
        for path in (target, beside):
            if _exists(path):
                opened = StoreError(
                    f"{path} is open in another process: end that, or name another file", cause="leased"
                )
                stack.enter_context(_alone_with(path, opened))
        # Both at the same moment, this first: the memory may know more than the sessions it comes from, never less. If
        # a session is deleted in between, the copy has it.
        source = stack.enter_context(reading(config, whole=True))
        wanted = [_Wanted(source, target, _set_free(source), readable=True)]
        if _exists(memory):
            remembered = stack.enter_context(_snapshot(memory))
            wanted.append(_Wanted(remembered, beside, _remember_again(remembered, source)))
        sessions: int = source.execute(_COUNT).get
        with _copies(wanted, progress):
            _refuse_existing(target, beside, force=force)
            # SQLite would take the log of an older file of that name for that of the new one.
            _remove(*side_files(target), *side_files(beside))
            _put_in_place(wanted)
            _sync(target)
            if len(wanted) == 1:
                _remove(beside)  # of an older backup of that name
    return Copied(target, target.stat().st_size, sessions, beside if len(wanted) > 1 else None)


def restore(source: Path, config: StoreConfig, *, force: bool = False, progress: Progress | None = None) -> Copied:
    """Make a store of a backup; the memory comes from the file beside it, if there is one.

    With `force` it takes the place of the store that is there: nothing is left of that, nor of its memory and its
    projections. Sessions go on with event numbers far above those that a client may have seen after the backup. The
    memory's index is made anew when it is used first.

    If it fails, the store is as it was. If its process is killed, the store is as it was, or it is refused by every
    program until another restore replaces it.

    Raises StoreError; its `cause` is "missing" without a backup, "exists" if a store is there, "leased" if a
    process that lives uses it, with `force` too, "corrupt", "newer_schema", "not_a_store", "disk_full" and so on.
    """
    target, memory = config.path / FILE_NAME, config.path / MEMORY_FOLDER / MEMORY_FILE
    _refuse_existing(target, memory, force=force)
    with ExitStack() as stack:
        held = stack.enter_context(_to_ourselves(config.path))
        backup = stack.enter_context(_snapshot(source))
        if not version_of(backup, SESSION_STORE):
            problem = f"{source} is empty: it is no backup of a session store"
            raise StoreError(problem, cause="not_a_store", retryable=False)
        wanted = [_Wanted(backup, target, _set_free(backup) + _GO_ON_ABOVE)]
        if _exists(memory_beside(source)):
            remembered = stack.enter_context(_snapshot(memory_beside(source)))
            wanted.append(_Wanted(remembered, memory, _remember_again(remembered, backup)))
        sessions: int = backup.execute(_COUNT).get
        for each in wanted:
            with SESSION_STORE.faults(each.target):
                each.target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _copies(wanted, progress):
            _refuse_existing(target, memory, force=force)
            former = (memory, memory.with_name(MEMORY_INDEX), *side_files(memory), *side_files(target))
            away = out_of_the_way(*former, last=wanted[0].temporary)
            with SESSION_STORE.faults(target), refused_meanwhile(target, held), away:
                _put_in_place(wanted)
        _sync(target)
    _drop_projections(config)
    return Copied(target, target.stat().st_size, sessions, memory if len(wanted) > 1 else None)


def copy_memory(source: StoreConfig, target: StoreConfig) -> None:
    """Copy the memory of a store, if it has one, into the folder of another store, in place of a memory there.

    Raises StoreError.
    """
    memory, copied = (each.path / MEMORY_FOLDER / MEMORY_FILE for each in (source, target))
    if not _exists(memory):
        return
    with ExitStack() as stack:
        wanted = [_Wanted(stack.enter_context(_snapshot(memory)), copied)]
        with SESSION_STORE.faults(copied):
            copied.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _copies(wanted, None):
            _remove(copied.with_name(MEMORY_INDEX), *side_files(copied))
            _put_in_place(wanted)
            _sync(copied)


# -- copying


@frozen
class _Wanted:
    """A database, the path of its copy, the SQL that changes the copy, and whether each row must be readable."""

    source: apsw.Connection
    target: Path
    change: str = ""
    readable: bool = False

    @property
    def temporary(self) -> Path:
        """The path of the copy until it is whole."""
        return part_of(self.target)


@contextmanager
def _copies(wanted: Sequence[_Wanted], progress: Progress | None) -> Iterator[None]:
    """Make the copies under their temporary names; the files that still have these names at the end are removed."""
    done, total = 0, sum(each.source.pragma("page_count") for each in wanted)
    with ExitStack() as stack:
        for each in wanted:
            with SESSION_STORE.faults(each.target):
                stack.enter_context(making(each.target))
                for copied in _copy(each):
                    if progress is not None:
                        progress(done + copied, total)
            done += each.source.pragma("page_count")
        yield


def _copy(wanted: _Wanted) -> Iterator[int]:
    """Copy one database, yielding how many pages are done; it is on the disk and found whole at the end."""
    with contextlib.closing(apsw.Connection(str(wanted.temporary), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        # The source is inside a read transaction: commits of others neither change what is copied nor start it over.
        with db.backup("main", wanted.source, "main") as backup:
            while not backup.done:
                backup.step(PAGES)
                yield backup.page_count - backup.remaining
        # Without a log beside it: one file that stands alone.
        db.pragma("journal_mode", "DELETE")
        db.pragma("secure_delete", True)  # nothing that is removed stays in free pages
        with transaction(db):
            db.execute(wanted.change)
        _refuse_damaged(db, wanted)


def _set_free(source: apsw.Connection) -> str:
    version = version_of(source, SESSION_STORE)
    forget = "UPDATE cluster SET secret = NULL;" if version >= WITH_SECRET else ""
    return (_SET_FREE if version >= WITH_HOLDERS else "") + forget


def _remember_again(memory: apsw.Connection, sessions: apsw.Connection) -> str:
    """Return SQL by which a copied memory takes in texts of copied sessions that were deleted between both snapshots.

    A deletion leaves nothing in the memory but a row that refuses texts. Texts that were removed one by one have other
    rows, which stay.
    """
    if not (memory.table_exists(None, "sessions") and memory.table_exists(None, "entries")):
        return ""
    refused = memory.execute(f"SELECT key, {raw('session_id')} FROM sessions WHERE forgotten = 1")  # noqa: S608 - a constant
    keys = [str(key) for key, session_id in refused if sessions.execute(_LIVES, (session_id,)).get]
    return f"DELETE FROM sessions WHERE key IN ({', '.join(keys)})" if keys else ""  # noqa: S608 - numbers


def _put_in_place(wanted: Sequence[_Wanted]) -> None:
    """Let the copies appear under their names: the sessions last, so that they never lack their memory.

    The last of the names has to outlast a power cut by `_sync`: from then on there is no way back.
    """
    *others, first = reversed(wanted)
    for each in others:
        with SESSION_STORE.faults(each.target):
            each.temporary.replace(each.target)
        _sync(each.target)
    with SESSION_STORE.faults(first.target):
        first.temporary.replace(first.target)


def _sync(path: Path) -> None:
    """Make the name of a file outlast a power cut."""
    with SESSION_STORE.faults(path):
        sync_folder(path.parent)


def _drop_projections(config: StoreConfig) -> None:
    """Remove files that show sessions as they were before; they are made anew by the next process that projects."""
    if not (config.path / SESSIONS).is_dir():
        return
    follower = Follower(config)
    # A file that cannot be removed does no harm: it is never read back.
    with contextlib.suppress(StoreError):
        follower.begin_anew()
    with contextlib.suppress(StoreError):
        follower.close()


@contextmanager
def _snapshot(path: Path) -> Iterator[apsw.Connection]:
    """Open a database for one consistent look. Raises StoreError."""
    with SESSION_STORE.faults(path):
        if not path.is_file():
            raise StoreError(f"there is no file {path}", cause="missing", retryable=False)
        with contextlib.closing(look_at(path, whole=True)) as db:
            # Which the look begins with.
            db.pragma("user_version")
            yield db


# -- refusals


def _refuse_existing(*paths: Path, force: bool) -> None:
    for path in paths:
        if _exists(path) and not path.is_file():  # a device, say: nothing could put it back
            raise StoreError(f"{path} is not a plain file", cause="exists", retryable=False)
        if _exists(path) and not force:
            raise StoreError(f"{path} exists; --force replaces it", cause="exists", retryable=False)


def _refuse_of_a_store(target: Path, beside: Path, config: StoreConfig) -> None:
    """Refuse files of a store as the files of a backup: a process that uses the store would write into nothing."""
    for path in (target, beside):
        with SESSION_STORE.faults(path):
            if _is_of_a_store(path, config):
                problem = f"{path} belongs to a store, which a backup does not replace: name another file"
                raise StoreError(problem, cause="exists", retryable=False)


def _is_of_a_store(path: Path, config: StoreConfig) -> bool:
    folder = path.parent.resolve()
    own = (config.path / FILE_NAME, config.path / MEMORY_FOLDER / MEMORY_FILE)
    if path.exists() and any(each.exists() and path.samefile(each) for each in own):
        return True
    if path.name == FILE_NAME:
        return (folder / FOLDER).is_dir() or (folder / MEMORY_FOLDER / MEMORY_FILE).exists()
    # A memory may have a folder of its own; that of a backup never has this name.
    in_store = folder.name == MEMORY_FOLDER and (folder.parent / FILE_NAME).exists()
    return path.name == MEMORY_FILE and (in_store or _is_memory(path))


def _is_memory(path: Path) -> bool:
    if not path.is_file():
        return False
    with contextlib.suppress(apsw.NotADBError, apsw.CorruptError), contextlib.closing(look_at(path)) as db:
        return bool(db.pragma("application_id") == MEMORY)
    return False


def _refuse_damaged(db: apsw.Connection, copy: _Wanted) -> None:
    """Refuse a copy that is damaged, or has rows that cannot be read: it may replace an older one that is whole."""
    complaint = db.execute("PRAGMA quick_check(1)").get
    if complaint != "ok":
        problem = f"the copy for {copy.target} is damaged, and so is its source: {complaint}"
        raise StoreError(problem, cause="corrupt", retryable=False)
    for finding in unreadable(db) if copy.readable and version_of(db, SESSION_STORE) == VERSION else ():
        problem = f"nothing was copied to {copy.target}: {finding.message}; `warren doctor --fix` sets such rows aside"
        raise StoreError(problem, cause="corrupt", retryable=False)


@contextmanager
def _to_ourselves(folder: Path) -> Iterator[apsw.Connection | None]:
    """Lock the store and the memory in a folder; return the connection that has the file of the store.

    It is None for a file that is missing or damaged. Refuse if a living process uses one of them.
    """
    with ExitStack() as stack:
        with SESSION_STORE.faults(folder):
            if not all(map(is_free, (folder / FOLDER).glob("*.lock"))):
                raise in_use(str(folder))
        held = [
            stack.enter_context(_alone_with(path, in_use(str(folder)))) if _exists(path) else None
            for path in (folder / FILE_NAME, folder / MEMORY_FOLDER / MEMORY_FILE)
        ]
        yield held[0]


@contextmanager
def _alone_with(path: Path, refusal: StoreError) -> Iterator[apsw.Connection | None]:
    """Lock a database against all other processes; raise the refusal if one has it open.

    A damaged one cannot be locked, and counts as unused: for that it returns None.
    """
    with SESSION_STORE.faults(path):
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with SESSION_STORE.faults(path):
            locked = _locked(db, refusal)
        yield db if locked else None
    finally:
        db.close()


def _locked(db: apsw.Connection, refusal: StoreError) -> bool:
    try:
        lock(db)
    except (apsw.BusyError, apsw.LockedError):
        raise refusal from None
    except (apsw.NotADBError, apsw.CorruptError, apsw.IOError) as exc:
        if isinstance(exc, apsw.IOError) and damage_of(exc) is None:
            raise
        return False
    return True


def _exists(path: Path) -> bool:
    with SESSION_STORE.faults(path):
        return path.exists()


def _remove(*paths: Path) -> None:
    for path in paths:
        with SESSION_STORE.faults(path):
            path.unlink(missing_ok=True)
