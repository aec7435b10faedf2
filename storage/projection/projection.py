"""One opening of a store's projection: its knowledge of the files, and their updates."""

import logging
from collections.abc import Callable
from typing import Final

import attrs

from warren.base.errors import StoreError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import define
from warren.storage.folders import Folder, nothing_there
from warren.storage.projection import formats
from warren.storage.projection.feed import Changed, Feed
from warren.storage.projection.index import QUICK, Index
from warren.storage.projection.places import FORMER_CHECKPOINT, SESSIONS, Places
from warren.storage.projection.session_files import bring_forward

AT_ONCE: Final = 64
WITNESSES: Final = 32
SYNC_EVERY: Final = 30.0
"""Seconds between two checkpoints at least."""
SYNC_SHARE: Final = 0.05
"""Of the time, for having files on the disk."""
SYNCED_SINGLY: Final = 64
TRY_AGAIN: Final = 5.0
"""Seconds until the files of a stuck session are retried."""
TOO_MANY: Final = 8
"""Stuck sessions from which on the error cannot come from something in their folders."""
logger: Final = logging.getLogger("warren.projection")


@define(eq=False)
class Projection:
    """Brings the files forward from the checkpoint. Whatever it raises, the next opening makes up for it.

    Behind the checkpoint only files that this opening has written itself are trusted: others may be torn, if
    the machine lost its power. It is written anew.

    Attributes:
        feed: the store.
        places: the folders of the files.
        skipped: sessions that have no files, and why; kept over openings.
        clock: seconds, of any beginning.
        begun_at: the newest change when this opening began.
        newest: the newest change.
        cursor: up to which change everything was brought forward, or is stuck.
        stuck: sessions with files that could not be written, and the first change that the files do not show.
        taken: how many changed sessions it has gone through.
        written: how many of them have files now.
        behind: how many changes the files did not show after the last work.
    """

    feed: Feed
    places: Places
    skipped: dict[str, str]
    clock: Callable[[], float]
    begun_at: formats.Change
    newest: formats.Change
    cursor: formats.Change = formats.START
    stuck: dict[str, formats.Change] = attrs.field(factory=dict)
    taken: int = 0
    written: int = 0
    behind: int = 0
    _stuck_by: str = ""
    _index_trouble: str | None = None
    _durable: formats.Change = formats.START
    _begun_anew: bool = True
    _unsynced: dict[str, set[str]] = attrs.field(factory=dict)
    _index: Index = attrs.field(init=False)
    _try_again: float = 0.0
    _sync: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._index = Index(self.places, self.clock)

    @classmethod
    def begin(cls, feed: Feed, places: Places, skipped: dict[str, str], clock: Callable[[], float]) -> "Projection":
        """Continue at the checkpoint; at the beginning if there is none, or if it belongs to another store."""
        newest = feed.newest()
        work = cls(feed, places, skipped, clock, newest, newest)
        work._sync = clock() + SYNC_EVERY
        raw = places.sessions.read(formats.CHECKPOINT)
        known = None if raw is None else formats.checkpoint_of(raw)
        if known is not None and work._is_of_this_store(known):
            work.cursor = work._durable = known.shown
            work._begun_anew = False
            work._index.go_on(formats.Change(known.indexed, known.indexed_key), known.index_seconds)
        elif raw is not None:
            logger.warning("the projections in %s are not of this state of the store: they are made anew", SESSIONS)
            places.sessions.remove(formats.CHECKPOINT)
        return work

    @property
    def projected(self) -> formats.Change:
        """The place up to which every change is shown."""
        return min(self.stuck.values()).before if self.stuck else self.cursor

    @property
    def trouble(self) -> str | None:
        """The error if only some files cannot be written, else None."""
        return self._stuck_by if self.stuck else self._index_trouble

    def advance(self, seconds: float) -> bool:
        """Write changes for about `seconds`; return whether there are more.

        Raises OSError, StoreError and the errors of the feed if it cannot go on.
        """
        end = self.clock() + seconds
        with self.feed.snapshot():
            self.newest = self.feed.newest()
            began_at = self.projected
            self.behind = self.feed.behind(began_at)
            if self.stuck and self.clock() >= self._try_again:
                self._retry()
            more = self._follow(end)
            if self.projected != began_at:
                self.behind = self.feed.behind(self.projected)
        if self.clock() >= self._index.due:
            self._write_index()
        if self.clock() >= self._sync:
            self._write_checkpoint()
        return more

    def finish(self, *, hurry: bool) -> None:
        """Write the index and the checkpoint now. In a `hurry` only if that is quick."""
        if not hurry or self._index.seconds < QUICK:
            self._write_index()
        if not hurry or self._count_unsynced() <= SYNCED_SINGLY:
            self._write_checkpoint()

    def close(self) -> None:
        """Close all files. Raises nothing."""
        self.feed.close()
        self.places.close()
        self.places.root.close()

    def _is_of_this_store(self, known: formats.Checkpoint) -> bool:
        return (
            known.shown <= self.newest
            and known.tenants <= self.places.has_tenants
            and known.store == self.feed.identity()
            and all(self.feed.confirms(witness, known.shown) for witness in known.newest)
        )

    def _follow(self, end: float) -> bool:
        while self.clock() < end:
            sessions = self.feed.changes(self.cursor, AT_ONCE)
            for session in sessions:
                self._try(session)
                self.cursor = session.change
                if self.clock() >= end:
                    break
            if not sessions:
                return False
        return self.cursor < self.newest

    def _retry(self) -> None:
        self._try_again = self.clock() + TRY_AGAIN
        for session_id in list(self.stuck):
            session = self.feed.changed(session_id)
            if session is None:
                del self.stuck[session_id]
            else:
                self._try(session)

    def _try(self, session: Changed) -> None:
        self.taken += 1
        try:
            self._project(session)
        except OSError as exc:
            if len(self.stuck) >= TOO_MANY and session.session_id not in self.stuck:
                raise
            if not self.stuck:
                self._try_again = self.clock() + TRY_AGAIN
            self.stuck.setdefault(session.session_id, session.change)
            self._stuck_by = f"the session {session.session_id} of the tenant {session.tenant}: {exc}"
        else:
            self.stuck.pop(session.session_id, None)

    def _project(self, session: Changed) -> None:
        if not formats.is_session_id(session.session_id):
            self._skip(session.session_id, "this is no id of a session")
            return
        tenant = formats.folder_of_tenant(session.tenant)
        if tenant is None:
            self._skip(session.session_id, f"{session.tenant!r} is no name of a tenant")
            return
        if self._begun_anew and tenant != DEFAULT_TENANT:
            self.places.sessions.remove(session.session_id)  # the first layout had the sessions of all tenants there
        with self.places.of(tenant) as folder, folder.inner(SESSIONS) as sessions:
            unsynced = self._unsynced.setdefault(tenant, set())
            if session.deleted:
                unsynced.discard(session.session_id)
                sessions.remove(session.session_id)
                return
            try:
                unsynced.add(session.session_id)
                self._write(session, sessions)
            except StoreError as exc:
                self._skip(session.session_id, exc.message)

    def _write(self, session: Changed, sessions: Folder) -> None:
        with sessions.inner(session.session_id) as folder:
            raw = folder.read(formats.SESSION)
            mark = None if raw is None else self._believed(formats.mark_of(raw), session)
            bring_forward(folder, self.feed, session, mark)
        self.written += 1

    def _believed(self, mark: formats.Mark | None, session: Changed) -> formats.Mark | None:
        if mark is None or session.shown_by(mark) > session.change:
            return None
        own = self.begun_at < session.shown_by(mark) <= self.cursor
        return mark if own or session.shown_by(mark) <= self._durable else None

    def _skip(self, session_id: str, why: str) -> None:
        if session_id not in self.skipped:
            logger.warning("session %r is left out of the projections: %s", session_id, why)
        self.skipped[session_id] = why

    def _write_index(self) -> None:
        try:
            self._index.bring_forward(self.feed, self.newest)
            self._index_trouble = None
        except OSError as exc:
            self._index_trouble = f"{formats.INDEX}: {exc}"
        for tenant in self._index.unsynced:
            self._unsynced.setdefault(tenant, set())
        self._index.unsynced.clear()

    def _write_checkpoint(self) -> None:
        """Have all that was written on the disk, and then say so there."""
        began = self.clock()
        reached = self.projected
        if reached != self._durable or self._unsynced:
            self._sync_files()
            known = formats.Checkpoint(
                formats.FORMAT,
                self.feed.identity(),
                reached.number,
                self._index.shown.number,
                self._index.seconds,
                self.feed.witnesses(reached, WITNESSES),
                reached.key,
                self._index.shown.key,
                self.places.has_tenants,
            )
            self.places.sessions.remove(FORMER_CHECKPOINT)
            self.places.sessions.replace(formats.CHECKPOINT, [known.encode()], sync=True)
            self.places.sessions.sync()
            self._durable = reached
        self._sync = self.clock() + max(SYNC_EVERY, (self.clock() - began) / SYNC_SHARE)

    def _count_unsynced(self) -> int:
        return sum(1 + len(sessions) for sessions in self._unsynced.values())

    def _sync_files(self) -> None:
        if self._count_unsynced() > SYNCED_SINGLY:
            self.places.root.disk.sync_all()
        else:
            for tenant, session_ids in self._unsynced.items():
                with nothing_there(), self.places.of(tenant, make=False) as folder:
                    self._sync_sessions(folder, session_ids)
                    folder.sync(formats.INDEX)
            self.places.sync()
        self._unsynced.clear()

    def _sync_sessions(self, tenant: Folder, session_ids: set[str]) -> None:
        with nothing_there(), tenant.inner(SESSIONS, make=False) as sessions:
            for session_id in session_ids:
                with nothing_there(), sessions.inner(session_id, make=False) as folder:
                    with nothing_there(), folder.inner(formats.FILES, make=False) as inside:
                        inside.sync(*inside.names())
                    folder.sync(formats.EVENTS, formats.SUMMARY, formats.SESSION)
            sessions.sync()
