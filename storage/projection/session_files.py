"""The files of one session: continued at the mark in session.json, or made again."""

import os
import stat
from collections.abc import Iterable, Iterator
from itertools import chain

from warren.base.values import frozen
from warren.storage.folders import Disk, Folder
from warren.storage.projection.feed import Changed, Feed, LineRun
from warren.storage.projection.formats import EVENTS, FILES, FORMAT, SESSION, SUMMARY, Mark, name_of_file, session_json


@frozen
class _Log:
    """How far events.jsonl is."""

    last_seq: int
    size: int


def bring_forward(folder: Folder, feed: Feed, session: Changed, mark: Mark | None) -> None:
    """Bring a session's folder to the state of the store.

    `mark` is the mark in session.json if it can be trusted; None makes all files again. session.json is written last:
    until then the old one stands, and the bytes that it vouches for are not touched.

    Raises OSError, the errors of the feed, and StoreError(cause="corrupt") for a damaged row; the next call makes up
    for all of it.
    """
    record, was = session.record(), mark
    log = None if mark is None else _append_events(folder, feed, session, mark)
    if log is None:
        mark, log = None, _rewrite_events(folder, feed, session, sync=was is not None)
    if mark is None or mark.compactions != record.compactions or (record.compactions and not folder.has(SUMMARY)):
        summary = feed.summary(session)
        if summary is None:
            folder.remove(SUMMARY)
        else:
            folder.replace(SUMMARY, [summary], sync=was is not None)
    if session.files or folder.has(FILES):
        _bring_files(folder, feed, session, anew=mark is None)
    now = Mark(FORMAT, session.change.number, log.last_seq, log.size, session.events_after, record.compactions)
    folder.replace(SESSION, [session_json(record, now)])


def _append_events(folder: Folder, feed: Feed, session: Changed, mark: Mark) -> _Log | None:
    """Add new events to the file of the log; None, and nothing is done, if the file does not fit `mark`."""
    if mark.events_after != session.events_after:
        return None
    pages = feed.events(session, mark.last_seq)
    first = next(pages, None) or LineRun(b"", 0)
    # The newest line there is read again, and has to be the same: a store that was put back to an older copy, and
    # went on from there, has another one of that number.
    known = first.data[: first.data.find(b"\n") + 1] if mark.last_seq else b""
    try:
        file = folder.disk.open(EVENTS, os.O_RDWR, folder.fd)
    except OSError:  # a new one takes its place, or raises the error
        return None
    try:
        if not _is_whole(file, mark, known):
            return None
        new = LineRun(first.data[len(known) :], max(first.last, mark.last_seq))
        return _write_on(folder.disk, file, mark.events_bytes, chain([new], pages))
    finally:
        os.close(file)


def _is_whole(file: int, mark: Mark, known: bytes) -> bool:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size < mark.events_bytes:
        return False
    start = mark.events_bytes - len(known)
    return bool(known) == bool(mark.last_seq) and start >= 0 and os.pread(file, len(known), start) == known


def _write_on(disk: Disk, file: int, size: int, pages: Iterable[LineRun]) -> _Log:
    last_seq = 0
    if os.fstat(file).st_size > size:
        disk.truncate(file, size)
    os.lseek(file, size, os.SEEK_SET)
    for page in pages:
        disk.write(file, page.data)
        last_seq, size = page.last, size + len(page.data)
    return _Log(last_seq, size)


def _rewrite_events(folder: Folder, feed: Feed, session: Changed, *, sync: bool) -> _Log:
    last_seq = 0

    def parts() -> Iterator[bytes]:
        nonlocal last_seq
        for page in feed.events(session, 0):
            yield page.data
            last_seq = page.last

    size = folder.replace(EVENTS, parts(), sync=sync)
    return _Log(last_seq, size)


def _bring_files(folder: Folder, feed: Feed, session: Changed, *, anew: bool) -> None:
    """Write the files of messages that are not there, or all of them, and remove all others."""
    named = {name_of_file(file.sha256, file.media_type): file for file in feed.files(session)}
    named.pop(None, None)
    if not named:
        folder.remove(FILES)
        return
    with folder.inner(FILES) as inside:
        for there in set(inside.names()) - {*named}:
            inside.remove(there)
        for name, file in named.items():
            if name is not None and (anew or inside.size(name) != file.size):
                inside.replace(name, feed.content(file))
