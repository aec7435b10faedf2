"""What a session holds: its record, its context, and how both are kept, with a store or without."""

import contextlib
from datetime import datetime

import attrs
import trio

from warren import codec
from warren.actors.compaction import prefix_of
from warren.actors.eventlog import EventLog
from warren.actors.storage import StorageActor
from warren.errors import AgentError, SessionNotFoundError, StoreError, WarrenError
from warren.events import Envelope, RunFailed
from warren.messages import SystemMessage
from warren.records import CompactionEntry, MessageRow, SessionRecord
from warren.storage import Commit
from warren.transcript import Transcript
from warren.views import HistoryEntry, HistoryPage


@attrs.define(eq=False)
class Conversation:
    """The state of one session. Only its actor changes it.

    Attributes:
        log: the session's event stream.
        storage: None where nothing is stored.
        record: the session as of its last finished turn; replaced whole, so that it may be read at any time. None
            until it is loaded.
        out_of_date: the store may hold something else: it has to be loaded again before the next turn.
    """

    log: EventLog
    storage: StorageActor | None
    record: SessionRecord | None = None
    out_of_date: bool = False
    # What the next model call sees; beyond the record's message_count it is a running turn's. None: not loaded.
    _context: Transcript | None = None
    # What no store keeps: the messages before the head, when each message was added, and how the head moved.
    _past: list[bytes] = attrs.field(factory=list)
    _times: list[datetime] = attrs.field(factory=list)
    _compactions: list[CompactionEntry] = attrs.field(factory=list)

    @property
    def known(self) -> SessionRecord:
        """The record of a session that is loaded."""
        if self.record is None:
            raise AgentError("the session is not loaded", session_id=self.log.session_id, cause="crash")
        return self.record

    @property
    def context(self) -> Transcript:
        """The context, once a turn has had it loaded."""
        if self._context is None:
            raise AgentError("the context is not loaded", session_id=self.log.session_id, cause="crash")
        return self._context

    def history(self, offset: int, limit: int) -> HistoryPage:
        """Return messages of finished turns of a session that no store holds."""
        total, rows = self.known.message_count, [] if self._context is None else self._context.rows
        bodies = [*self._past, *rows]
        page = range(offset, min(offset + limit, total))
        found = tuple(HistoryEntry(at, self._times[at], codec.decode_message(bodies[at])) for at in page)
        moved = tuple(entry for entry in self._compactions if offset < entry.head <= offset + limit)
        return HistoryPage(self.log.session_id, found, offset, total, moved)

    # -- beginning

    async def create(self, record: SessionRecord, system_prompt: str | None) -> None:
        """Begin a new session: it is saved before anything is told of it.

        Raises StoreError that names no session: there is none.
        """
        self._context = Transcript()
        if system_prompt is not None:
            self._context.append(SystemMessage(system_prompt))
        record = attrs.evolve(record, message_count=self._context.end)
        try:
            await self._store(record, 0)
        except WarrenError as exc:
            exc.session_id = None
            raise
        self.record = record

    async def load(self) -> None:
        """Begin with what the store has. Raises SessionNotFoundError, StoreError."""
        session_id, storage = self.log.session_id, self.storage
        stored = await (await storage.reader()).load(session_id) if storage is not None else None
        if stored is None:
            raise SessionNotFoundError("there is no such session", session_id=session_id)
        self.log.begin(stored.record.last_seq, stored.seq_floor)
        self.record, self._context, self.out_of_date = stored.record, None, False
        if stored.record.turn_open:
            await self._close_open_turn(stored.record)

    async def load_context(self) -> None:
        """Fetch the messages once a turn needs them; archiving or watching a session does not."""
        if self._context is None and self.storage is not None:
            record = self.known
            store = await self.storage.reader()
            stored = await store.context(record.session_id, record.head, record.message_count)
            prefix = prefix_of(stored.first, stored.compaction)
            self._context = Transcript(stored.rows, head=record.head, prefix=prefix)

    async def _close_open_turn(self, record: SessionRecord) -> None:
        """End a turn that a compaction had stored the beginning of, and that nobody has ended in the store since."""
        lost = RunFailed(record.session_id, "the process ended during the turn", "crash")
        # What this process has shown of the turn and could not store ends with its terminal event already.
        terminal = None if self.log.pending else self.log.stamp(lost)
        last_seq = self.log.last_seq if terminal is None else terminal.seq
        self.record = attrs.evolve(record, turn_open=False, turns=record.turns + 1, last_seq=last_seq)
        try:
            if self.storage is not None:
                await self.storage.write(Commit(self.record, (), self.log.unstored(terminal)))
        except StoreError as exc:
            if not await self._stored_after_all(exc, self.record):
                raise
        if terminal is not None:
            self.log.publish(terminal)
        self.log.stored()

    # -- going on

    async def commit(self, record: SessionRecord, terminal: Envelope | None) -> WarrenError | None:
        """Keep what a turn has added; return the error where the store refuses, and then nothing is kept."""
        try:
            await self._store(record, self.known.message_count, terminal)
        except StoreError as exc:
            self.out_of_date = exc.cause in ("crash", "conflict")
            if not await self._stored_after_all(exc, record):
                return exc
        except WarrenError as exc:
            self.out_of_date = True
            return exc
        self.record = record
        return None

    def take_back(self, record: SessionRecord) -> None:
        """Let the session stand where it stood, but for what the record has of the turn's cost."""
        self.context.truncate(record.message_count)
        self.record = record

    async def commit_compaction(self, record: SessionRecord, entry: CompactionEntry, told: Envelope) -> None:
        """Keep a new head, all that the turn has added so far, and the events up to the one that tells of it.

        The context still is the old one. Raises StoreError and SessionNotFoundError: then nothing is kept.
        """
        try:
            await self._store(record, self.known.message_count, told, entry)
        except StoreError as exc:
            if not await self._stored_after_all(exc, record):
                raise
        if self.storage is None:
            self._past.extend(self.context.rows[: entry.head - self.context.head])
            self._compactions.append(entry)
        self.record = record

    async def _store(
        self,
        record: SessionRecord,
        first: int,
        last: Envelope | None = None,
        compaction: CompactionEntry | None = None,
    ) -> None:
        """Commit the record, the messages from position `first` on, the events and a last one, a new head."""
        bodies = self.context.since(first)
        if self.storage is None:
            self._times.extend([record.updated_at] * len(bodies))
            return
        rows = tuple(MessageRow(first + index, record.updated_at, body) for index, body in enumerate(bodies))
        await self.storage.write(Commit(record, rows, self.log.unstored(last), compaction))

    async def _stored_after_all(self, error: StoreError, record: SessionRecord) -> bool:
        """Look what came of a commit, where the storage actor crashed before it could say.

        By then the store that crashed is closed, and nothing of it is still under way: what can be read is the truth.
        """
        if self.storage is None or error.cause != "crash":
            return False
        with contextlib.suppress(StoreError), trio.CancelScope(shield=True):
            store = await self.storage.reader()
            stored = await store.record(record.session_id)
            return stored is not None and (stored.turns, stored.last_seq) == (record.turns, record.last_seq)
        return False
