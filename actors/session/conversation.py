"""The state of a session in memory: its record, its context, its lease; and how the store takes them over."""

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from warren.actors.eventlog import EventLog
from warren.actors.session.inbox import Ending, Inbox, withdrawal
from warren.actors.session.inbox import stored as ending_stored
from warren.actors.storage import Storage
from warren.actors.turn.compaction import prefix_of
from warren.creation import Creation
from warren.errors import AgentError, LeasedError, StoreError, WarrenError
from warren.events import RunFailed
from warren.forking import relabelled
from warren.journal import Entry
from warren.messages import SystemMessage
from warren.records import CompactionEntry, MessageRow, SessionRecord
from warren.storage import FIRST, Claimed, Commit, Held, Labelled, Lease, Settle, Settled, leased, not_found
from warren.transcript import Transcript

if TYPE_CHECKING:
    from warren.storage import Store

logger: Final = logging.getLogger("warren.session")


@attrs.define(eq=False)
class Conversation:
    """The state of one session. Only its actor changes it.

    Attributes:
        log: the session's event stream.
        storage: where the session is kept.
        record: the session as of its last finished turn; replaced whole, so that it may be read at any time. None
            until it is loaded.
        lease: what lets this process write the session; None where it has to be asked for, and the store may hold
            something newer than what is here.
        inbox: what waits to be said to it.
    """

    log: EventLog
    storage: Storage
    inbox: Inbox
    record: SessionRecord | None = None
    lease: Lease | None = None
    _lapses: int = 0
    _labelled: int = 0  # the number of the store's change that the labels are of
    # What the next model call sees; beyond the record's message_count it is a running turn's. None: not loaded.
    _context: Transcript | None = None

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

    @property
    def current(self) -> bool:
        """Whether nothing newer can be in the store."""
        return self.record is not None and self.lease is not None and self._lapses == self.storage.lapses

    @property
    def archived(self) -> bool:
        """Whether the session is known to be retired."""
        return self.record is not None and self.record.archived

    # -- beginning

    async def create(self, record: SessionRecord, system_prompt: str | None, creation: Creation | None) -> None:
        """Begin a new session: it is saved before anything is told of it, together with the key that it has.

        Raises StoreError that names no session: there is none.
        """
        self._context = Transcript()
        if system_prompt is not None:
            self._context.append(SystemMessage(system_prompt))
        record = record.changed(message_count=self._context.end)
        try:
            await self._store(record, 0, creation=creation)
        except WarrenError as exc:
            exc.session_id = None
            raise
        self.record = record
        self._hold(FIRST)

    async def refresh(self) -> None:
        """Have what the store has, to look at. Raises SessionNotFoundError, StoreError."""
        if self.current:
            return
        stored = await (await self.storage.reader()).load(self.log.session_id)
        if stored is None:
            raise self._gone()
        self._begin(stored.record)
        self.log.bound = stored.seq_floor
        if stored.record.turn_open:
            with contextlib.suppress(LeasedError):
                await self.own()

    async def own(self, *, ask: bool = False) -> None:
        """Have what the store has, to go on from; `ask` another process to hand an idle session over.

        Raises SessionNotFoundError, LeasedError, other StoreErrors.
        """
        if self.current:
            return
        found = await self.storage.claim(self.log.session_id)
        if ask and isinstance(found, Held) and await self.storage.ask_for(self.log.session_id):
            found = await self.storage.claim(self.log.session_id)
        match found:
            case None:
                raise self._gone()
            case Held(holder):
                raise leased(self.log.session_id, holder)
            case Claimed(record, lease, inbox, inbox_to, lost):
                for problem in lost:
                    logger.error("%s: it is passed over", problem)
                self._begin(record)
                self._hold(lease)
                self.inbox.load(inbox, inbox_to)
                if record.turn_open:
                    await self._close_open_turn(record)

    async def settle(self) -> None:
        """Store the events of a turn that could not be stored when it ended. Raises StoreError."""
        if self.log.pending:
            await self.own()
            record = self.known.changed(last_seq=self.log.last_seq)
            await self.storage.write(Commit(record, (), self.log.unstored(None), lease=self._held()))
            self._keep(record)
            self.log.stored()

    async def settle_if_possible(self) -> None:
        """Do so; where the store refuses again, what is left waits for another time."""
        with contextlib.suppress(WarrenError):
            await self.settle()

    def release(self) -> None:
        """Put the lease back, without waiting: from here on the session is the store's."""
        lease, self.lease = self.lease, None
        # What was shown and is not stored keeps its numbers: who takes the session next must find it taken.
        if lease is not None and not self.log.pending:
            self.storage.release(self.log.session_id, lease)

    def _begin(self, record: SessionRecord) -> None:
        self.log.begin(record.last_seq)
        self.record, self._context = record, None

    def _hold(self, lease: Lease) -> None:
        self.lease = lease
        self._lapses = self.storage.lapses

    def _gone(self) -> WarrenError:
        self.log.close()  # who still watches it waits for nothing
        return not_found(self.log.session_id)

    async def load_context(self) -> None:
        """Fetch the messages once a turn needs them; archiving or watching a session does not."""
        if self._context is None:
            record = self.known
            store = await self.storage.reader()
            stored = await store.context(record.session_id, record.head, record.message_count)
            prefix = prefix_of(stored.first, stored.compaction)
            self._context = Transcript(stored.rows, head=record.head, prefix=prefix, left_out=record.left_out)

    async def _close_open_turn(self, record: SessionRecord) -> None:
        """End a turn that a compaction had stored the beginning of, and that nobody has ended in the store since."""
        lost = RunFailed(record.session_id, "the process ended during the turn", "crash")
        # What this process has shown of the turn and could not store ends with its terminal event already.
        terminal = None if self.log.pending else self.log.stamp(lost)
        last_seq = self.log.last_seq if terminal is None else terminal.seq
        self.record = record.changed(turn_open=False, turns=record.turns + 1, last_seq=last_seq)
        try:
            await self.storage.write(Commit(self.record, (), self.log.unstored(terminal), lease=self._held()))
        except StoreError as exc:
            if not await self._stored_after_all(exc, self.record):
                raise
        if terminal is not None:
            self.log.publish(terminal)
        self.log.stored()

    # -- going on

    def relabel(self, changes: Mapping[str, str | None], title: str | None, stored: Labelled | None) -> None:
        """Show other labels and another title; what the store has made of earlier changes is passed over."""
        if stored is None:
            self.record = relabelled(self.known, changes, title)
        elif stored.change > self._labelled:
            self._labelled, now = stored.change, stored.record
            self.record = self.known.changed(labels=now.labels, title=now.title or self.known.title)

    def _keep(self, record: SessionRecord) -> None:
        """Let a record be the session's; its labels and title may be older than those that are shown meanwhile."""
        labels, title = self.known.labels, self.known.title or record.title
        same = record.labels is labels and record.title == title
        self.record = record if same else record.changed(labels=labels, title=title)

    async def commit(
        self, record: SessionRecord, terminal: Entry | None, ending: Ending | None = None
    ) -> WarrenError | None:
        """Keep what a turn has added, and what it came to for those whose inputs it took.

        Return the error where the store refuses, and then nothing is kept.
        """
        try:
            await self._store(record, self.known.message_count, terminal, ending=ending)
        except StoreError as exc:
            if exc.cause in ("crash", "conflict", "lease_lost"):
                self.lease = None
            if not await self._stored_after_all(exc, record):
                return exc
        except WarrenError as exc:
            self.lease = None
            return exc
        self._keep(record)
        self.context.leave_out(record.left_out)
        return None

    async def drop_taken(self, error: WarrenError) -> None:
        """Take out of the inbox what no turn could be begun with; where the store refuses, it waits on."""
        if await self._settled(self.inbox.settled(error)) is None:
            self.inbox.settle(error)
        else:
            self.inbox.put_back(error)

    async def drop_withdrawn(self) -> None:
        """Take out of the inbox what was withdrawn; where the store refuses, it waits on."""
        for number in self.inbox.withdrawn():
            gone = Settled((number,), ending_stored(withdrawal(self.log.session_id)))
            self.inbox.withdrew(number, await self._settled(gone))

    async def _settled(self, inputs: Settled) -> WarrenError | None:
        """Store what came of inputs without a turn; return the error where the store refuses."""
        try:
            await self.storage.write(Settle(self.log.session_id, inputs))
        except WarrenError as exc:
            return exc
        return None

    def take_back(self, record: SessionRecord) -> None:
        """Let the session stand where it stood, but for what the record has of the turn's cost."""
        self.context.truncate(record.message_count)
        self._keep(record)

    async def commit_compaction(self, record: SessionRecord, entry: CompactionEntry, told: Entry) -> None:
        """Keep a new head, all that the turn has added so far, and the events up to the one that tells of it.

        The context still is the old one. Raises StoreError and SessionNotFoundError: then nothing is kept.
        """
        try:
            await self._store(record, self.known.message_count, told, entry)
        except StoreError as exc:
            if not await self._stored_after_all(exc, record):
                raise
        self.inbox.keep_taken()
        self._keep(record)

    async def _store(
        self,
        record: SessionRecord,
        first: int,
        last: Entry | None = None,
        compaction: CompactionEntry | None = None,
        *,
        ending: Ending | None = None,
        creation: Creation | None = None,
    ) -> None:
        """Commit the record, the messages from position `first` on, the events and a last one, a new head."""
        bodies = self.context.since(first)
        rows = tuple(MessageRow(first + index, record.updated_at, body) for index, body in enumerate(bodies))
        settled = self.inbox.settled(ending)
        events = self.log.unstored(last)
        await self.storage.write(Commit(record, rows, events, compaction, self._held(), settled, creation))

    def _held(self) -> Lease:
        return self.lease or FIRST

    async def _stored_after_all(self, error: StoreError, record: SessionRecord) -> bool:
        """Look what came of a commit, where the storage actor crashed before it could say."""

        async def stored(store: "Store") -> bool:
            found = await store.record(record.session_id)
            return found is not None and (found.turns, found.last_seq) == (record.turns, record.last_seq)

        return bool(await self.storage.after_crash(error, stored))
