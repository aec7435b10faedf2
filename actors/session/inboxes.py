"""The way of inputs into the inboxes of sessions.

An input is a prompt that waits for its turn, a text for the running turn, or a message of a peer. Its life:

1. `Inboxes` stores it, by the operation `Enqueue`, before its sender hears that it was taken. The store numbers the
   inputs of a session, counts those that wait, and knows the keys of earlier ones. The input survives the process from
   here on.
2. The session hears of it by the message `Arrived`, and its `Inbox` (`inbox.py`) keeps it with the callers that wait.
   A session that is loaded later gets the input with its lease, and the session of another process by a poll of the
   store (`found`).
3. A turn takes it: as the prompt of a turn, when the session is idle, or before a step of a running turn.
4. The commit of that turn stores the ending of the input (`ending.py`). Inputs without a key are dropped by it; of
   those with a key the store keeps the newest endings, for senders that repeat them.
5. The callers that wait get the result or the error of the turn. If the turn could not be stored, they get that error,
   and the input waits again.

A withdrawn input takes steps 4 and 5 without a turn.
"""

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from warren.actors.events.eventlog import Beginning, utc_now
from warren.actors.limits.limiter import FOR_TURN, Limiter
from warren.actors.limits.tenancy import NOBODY, Acceptance, Accounts
from warren.actors.protocol import Arrived, Withdraw
from warren.actors.resources.storage import Storage
from warren.actors.session.ending import Ending, final, not_ended, outcome_unknown, result_of, taken_along
from warren.actors.session.mailboxes import Mailboxes
from warren.base.errors import CapacityExceededError, InvalidParamsError, LeasedError, StoreError, WarrenError
from warren.base.ids import new_session_id
from warren.base.values import define
from warren.calls.creation import FIRST_PROMPT
from warren.conversation.attachments import Blob
from warren.conversation.inputs import Input, Numbered
from warren.conversation.views import TurnResult
from warren.models.tools import Tool
from warren.storage.operations import Enqueue, Enqueued, Lease
from warren.storage.queries import ANY_TENANT, WaitingInputs, WaitingNotices

if TYPE_CHECKING:
    from warren.storage.store import Store

NO_TOOLS: Final[Mapping[str, Tool]] = {}


@define(eq=False)
class Inboxes:
    """Puts inputs into the inboxes of sessions, and takes them back.

    An input with the key of an earlier one is not taken twice: its sender gets the outcome of the earlier one.

    Attributes:
        on_elsewhere: called with a session that another process has when an input was put into its inbox: that process
            finds the input by itself, if it is not told before.
    """

    _mailboxes: Mailboxes
    _storage: Storage
    _limit: int  # of inputs that wait for one session
    _limiter: Limiter
    on_elsewhere: Callable[[str], None] = lambda _session_id: None
    _entering: set[str] = attrs.field(factory=set)

    def accounts_of(self, tenant: str) -> Accounts:
        """Return the accounts for the messages of a tenant's sessions."""
        account = self._limiter.tenancy.of_tenant(tenant)
        return NOBODY if account is None else (account,)

    async def put(self, session_id: str, input_: Input, by: Accounts = NOBODY) -> bool:
        """Put an input into a session's inbox, and return whether it is new: see `put_or_find`."""
        return (await self.put_or_find(session_id, input_, by)).fresh

    async def put_or_find(self, session_id: str, input_: Input, by: Accounts = NOBODY) -> Enqueued:
        """Put an input into a session's inbox, or find the one that has its key. It may wait in another process.

        Args:
            session_id: the session.
            input_: the input.
            by: the accounts of its sender.

        Raises:
            SessionNotFoundError: if the session is unknown or archived.
            StoreError: if the input could not be stored.
            CapacityExceededError: if the inbox is full, or a limit of the sender is reached.
        """
        if not by or not await self._is_allowed(session_id, input_, by) or not input_.starts:
            return await self._put(session_id, input_)
        with self._limiter.accepting(by, session_id) as accepted:
            return await self._put(session_id, input_, accepted)

    async def enter(self, session_id: str, input_: Input, lease: Lease | None) -> None:
        """Put the result of a call into the inbox of its session, once for its key.

        Args:
            session_id: the session.
            input_: the result.
            lease: the lease under which the call ran; None if no other process could go on with it.

        Raises:
            StoreError: with the cause "lease_lost" if another process has taken the session: it goes on with the call.
            WarrenError: as `put`.
        """
        await self._put(session_id, input_, lease=lease)

    async def pass_on(self, session_id: str, input_: Input) -> None:
        """Put what the session itself has got in another way into its inbox, once for its key; raises as `put`.

        The session is told, and not waited for: it may wait for this.
        """
        stored = await self._store(session_id, input_, anywhere=True)
        if stored.outcome is None:
            self.found(session_id, stored.numbered)

    async def _is_allowed(self, session_id: str, input_: Input, by: Accounts) -> bool:
        """Return whether the limits of its sender allow an input; False if they need not, as it is in the store.

        Raises CapacityExceededError and StoreError.
        """
        await self._limiter.look(by, FOR_TURN)
        try:
            if input_.starts:
                self._limiter.check_turn(by, session_id)
            else:
                self._limiter.tenancy.check_growth(by)
        except CapacityExceededError as exc:
            if input_.key is None:
                raise
            counted, cause = self._limiter.tenancy.refused, str(exc.cause)
            counted[cause] -= 1  # as yet it is not refused
            if await self.is_known(session_id, input_):
                return False
            counted[cause] += 1
            raise
        return True

    async def is_known(self, session_id: str, input_: Input, lease: Lease | None = None) -> bool:
        """Return whether there is an input with the same key.

        Raises StoreError, with the cause "lease_lost" if another process has taken over a lease.
        """
        try:  # there is room for none that is new
            await self._store(session_id, input_, anywhere=True, limit=0, lease=lease)
        except CapacityExceededError:
            return False
        return True

    async def _put(
        self, session_id: str, input_: Input, accepted: Acceptance | None = None, lease: Lease | None = None
    ) -> Enqueued:
        stored = await self._store(session_id, input_, anywhere=True, lease=lease)
        _note(accepted, stored)
        if stored.outcome is not None:
            return stored
        if stored.elsewhere:
            self.on_elsewhere(session_id)
        else:
            with contextlib.suppress(LeasedError):  # another process has just taken the session: the input goes with it
                await self._tell(session_id, stored.numbered, waits=False, tools=NO_TOOLS)
        return stored

    async def put_and_wait(
        self,
        session_id: str,
        input_: Input,
        tools: Mapping[str, Tool],
        by: Accounts = NOBODY,
        blobs: tuple[Blob, ...] = (),
        *,
        accepted: Acceptance | None = None,
        begun: Beginning | None = None,
    ) -> TurnResult:
        """Put an input into a session's inbox, and return the result of the turn that takes it.

        Args:
            session_id: the session. It comes to this process if another one has it idle.
            input_: the input.
            tools: tools that the sender offers in that turn.
            by: the accounts of the sender.
            blobs: the files of the input that are to be stored with it.
            accepted: the turn, if it was held against their limits already.
            begun: see Arrived.

        Raises:
            LeasedError: if another process keeps the session, or has taken it with the input, which has a key.
            AgentError: with the cause `outcome_unknown` if another process has taken the session with the input.
            WarrenError: the error that the turn ended with, and the errors of `put`. Of an input with a key it is
                retryable exactly if the input may still have another ending.
        """
        if not by or accepted is not None or not await self._is_allowed(session_id, input_, by):
            stored = await self._accept(session_id, input_, blobs, accepted)
            return await self._ended(session_id, input_, stored, tools, begun)
        with self._limiter.accepting(by, session_id) as acceptance:
            stored = await self._accept(session_id, input_, blobs, acceptance)
            if input_.not_before is None:
                return await self._ended(session_id, input_, stored, tools, begun)
        return await self._ended(session_id, input_, stored, tools, begun)  # until its time it counts for nobody

    async def _accept(
        self, session_id: str, input_: Input, blobs: tuple[Blob, ...], accepted: Acceptance | None
    ) -> Enqueued:
        stored = await self._store(session_id, input_, blobs, anywhere=False)
        _note(accepted, stored)
        return stored

    async def _ended(
        self,
        session_id: str,
        input_: Input,
        stored: Enqueued,
        tools: Mapping[str, Tool],
        begun: Beginning | None,
    ) -> TurnResult:
        """Return the result of the turn that takes an input which has just been stored, or was before."""
        if stored.outcome:  # an empty outcome is of a turn that may still run: only its session can tell
            return result_of(stored.outcome, session_id)
        keyed, outcome = input_.key is not None, None
        try:
            ending = await self._tell(session_id, stored.numbered, waits=True, tools=tools, begun=begun)
            if ending is None and keyed:
                outcome = await self._outcome(session_id, input_)
        except LeasedError as exc:
            if keyed:  # sent again, it finds itself
                raise
            raise taken_along(session_id, str(exc.details.get("holder"))) from None
        except WarrenError as exc:
            not_ended(exc, keyed=keyed)
            raise
        if isinstance(ending, TurnResult):
            return ending
        if outcome:
            return result_of(outcome, session_id)
        raise outcome_unknown(session_id) if ending is None else final(ending) if keyed else ending

    async def first_outcome(self, session_id: str) -> bytes | None:
        """Return how the first turn of a session has ended; None or empty if it has not. Raises WarrenError."""
        asked = Input(new_session_id(), "queue", "", utc_now(), FIRST_PROMPT)
        try:
            return (await self._store(session_id, asked, anywhere=True, limit=0)).outcome
        except CapacityExceededError:  # there is room for none that is new
            return None

    async def _outcome(self, session_id: str, input_: Input) -> bytes | None:
        """Return the stored outcome of an input with a key that no longer waits in its session, which has the lease.

        None or empty if there will never be one. Raises StoreError.
        """
        try:
            return (await self._store(session_id, input_, anywhere=False, limit=0)).outcome
        except CapacityExceededError:  # there is room for none that is new: the key is forgotten
            return None

    async def _tell(
        self,
        session_id: str,
        numbered: Numbered,
        *,
        waits: bool,
        tools: Mapping[str, Tool],
        begun: Beginning | None = None,
    ) -> Ending | None:
        # No checkpoint between the commit and this message: `found` relies on it.
        return await self._mailboxes.mailbox(session_id).ask(Arrived(numbered, waits, tools, begun))

    async def _store(
        self,
        session_id: str,
        input_: Input,
        blobs: tuple[Blob, ...] = (),
        *,
        anywhere: bool,
        limit: int | None = None,
        lease: Lease | None = None,
    ) -> Enqueued:
        """Store an input. Ask another process for the session if it is there, unless the input may be `anywhere`."""
        self._mailboxes.check_open()
        operation = Enqueue(session_id, input_, self._limit if limit is None else limit, anywhere, blobs, lease)
        find: Callable[[Store], Awaitable[Enqueued | None]] = partial(_enqueued, session_id, input_.input_id)
        self._entering.add(input_.input_id)
        try:
            try:
                return await self._storage.write_or_find(operation, find)
            except LeasedError:
                if not await self._storage.ask_for(session_id):
                    raise
                return await self._storage.write_or_find(operation, find)
        except StoreError as exc:
            if input_.key is not None and (exc.unknown or exc.cause == "closed"):
                exc.retryable = True  # sent again, here or to the next process, it finds itself, or is taken
            raise
        finally:
            self._entering.discard(input_.input_id)

    def found(self, session_id: str, numbered: Numbered) -> None:
        """Tell a session of an input that another process has put into its inbox.

        An input that this process is storing is left to its sender, whose message has the tools as well. There is no
        checkpoint between its commit and that message, so the session never gets two messages of one input.
        """
        if numbered.input.input_id not in self._entering:
            self._mailboxes.mailbox(session_id).tell(Arrived(numbered))

    async def look(self, session_ids: Collection[str]) -> None:
        """Tell sessions of what others have put into their inboxes; if another process has one, that process hears so.

        One that cannot be told finds it later. Raises StoreError.
        """
        waiting: dict[str, list[Numbered]] = {}
        for session_id, numbered in await self._storage.read(WaitingNotices(session_ids)):
            waiting.setdefault(session_id, []).append(numbered)
        for session_id, found in waiting.items():
            with contextlib.suppress(WarrenError):
                if not self._mailboxes.has_current(session_id) and await self._storage.rival(session_id) is not None:
                    self.on_elsewhere(session_id)
                    continue
                for each in found:
                    if not each.input.is_notice:
                        self.found(session_id, each)
                notices = [each for each in found if each.input.is_notice and each.input.input_id not in self._entering]
                if notices:
                    self._mailboxes.mailbox(session_id).tell(Arrived(notices[0], others=notices[1:]))

    async def withdraw(self, session_id: str, input_id: str) -> None:
        """Take an input back that waits. A call that waits for its turn gets AgentError("cancelled").

        Raises:
            InvalidParamsError: if no input of that id waits.
            StoreError: if the withdrawal could not be stored.
        """
        try:
            await self._mailboxes.mailbox(session_id).ask(Withdraw(input_id))
        except InvalidParamsError:
            waiting = await _enqueued(session_id, input_id, self._storage)
            if waiting is None:
                raise
            # An input is stored, and listed, a moment before its session hears of it.
            mailbox = self._mailboxes.mailbox(session_id)
            mailbox.tell(Arrived(waiting.numbered))
            await mailbox.ask(Withdraw(input_id))


def _note(accepted: Acceptance | None, stored: Enqueued) -> None:
    """Note that an input was accepted, unless an earlier one has its key."""
    if accepted is not None and stored.fresh:
        accepted.take()


async def _enqueued(session_id: str, input_id: str, storage: Storage) -> Enqueued | None:
    """Return an input that waits in a store; None if there is none of that id."""
    waiting = await storage.read(WaitingInputs(session_id, ANY_TENANT))
    found = (each for each in waiting if each.input.input_id == input_id)
    return next(map(Enqueued, found), None)
