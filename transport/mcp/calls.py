"""The turn of a tool call: the call relays its events as progress, and a cancelled call interrupts it."""

import logging
from typing import Final

import attrs
import trio

from warren.actors.events.eventlog import Telling
from warren.base.errors import AgentError, InvalidParamsError, WarrenError
from warren.base.ids import new_session_id
from warren.base.values import define
from warren.calls.facade import SessionService
from warren.calls.streams import EventReader, OnBegin
from warren.conversation.events import TERMINAL, Envelope, RunStarted
from warren.conversation.options import TurnRequest
from warren.conversation.views import TurnResult
from warren.transport.rpc.jsonrpc import abandoned
from warren.transport.rpc.methods import Caller, RunTurn
from warren.transport.rpc.relay import Relay, Send, last_seq_of

CANCEL_TIMEOUT: Final = 10.0
"""Seconds that a cancelled call waits for its turn to begin and to end; after that the turn goes on alone."""
POLL_INTERVAL: Final = 0.05
"""Seconds between two looks into the inbox for a prompt that may not be stored there yet."""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class ToolCall(Caller):
    """One call of a tool.

    Attributes:
        service: the runtime.
        send: sends an event to the client; None if the client wants no events.
        key: the idempotency key of the call's prompt; None if the prompt cannot wait in the inbox.
    """

    service: SessionService
    send: Send | None
    key: str | None = None
    _turn: "_CallTurn | None" = attrs.field(default=None, init=False)
    _abandoned: bool = attrs.field(default=False, init=False)

    def abandon(self) -> None:
        """Let the call end soon with an error, and its turn go on: the server ends, the client did not cancel."""
        self._abandoned = True
        if self._turn is not None:
            self._turn.abandon()

    async def stream(self, session_id: str | None, run: RunTurn) -> TurnResult:
        """Run a turn, with its events as the progress of the call.

        Cancelling this interrupts the turn. It ends when the turn has ended and its last event was sent.

        Raises:
            AgentError: with the cause `shutting_down` if the call is abandoned.
            WarrenError: the error of the turn.
        """
        if self._abandoned:
            raise AgentError(
                "the server is shutting down", session_id=session_id, cause="shutting_down", retryable=True
            )
        self._turn = _CallTurn(self.service, session_id, self.key)
        try:
            end = await self._watched(self._turn, run)
        except BaseExceptionGroup:
            # Several tasks were cancelled. The library handles a single Cancelled, which this raises, and no group.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise
        if isinstance(end, Exception):
            raise end
        return end

    async def _watched(self, turn: "_CallTurn", run: RunTurn) -> TurnResult | Exception:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.watch)
            if self.send is None:
                return await turn.run(run)
            progress = Relay(self.send, nursery)
            end = await turn.run(run, progress)
            progress.stop()
        return end

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:
        """Raise InvalidParamsError: a call ends with its result, so later events have no call to belong to."""
        raise InvalidParamsError.at("$", f"a call cannot follow session {session_id} from {after_seq} on")

    def unsubscribe(self, session_id: str) -> bool:
        """Return False: there never is a subscription."""
        del session_id
        return False


@define(eq=False)
class _CallTurn:
    """The turn of a call, from before its admission to its result.

    Attributes:
        service: the runtime.
        session_id: its session; None until a new session has its id.
        key: the idempotency key of the prompt; None if the prompt cannot wait. A prompt that waits may enter a turn
            that another caller started, and such a turn is not interrupted.
    """

    service: SessionService
    session_id: str | None
    key: str | None = None
    _own: bool = attrs.field(default=False, init=False)
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    # Shielded: a cancelled call interrupts its turn and waits for the end; only `abandon` gives that up.
    _scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True), init=False)

    async def run(self, run: RunTurn, progress: Relay | None = None) -> TurnResult | Exception:
        """Return the result of the turn or its error, when the client was sent the last event.

        If the call is cancelled, this still waits for the end of the turn. If it is abandoned before that, return an
        error. A turn that has ended is reported even then: its outcome is known.
        """
        heard: list[EventReader] = []

        def begin(reader: EventReader) -> None:
            self.session_id = reader.session_id
            self._begun.set()
            if progress is not None:
                progress.begin(reader.another())
            Telling(self._hear)(reader)
            heard.append(reader)

        try:
            with self._scope:
                end = await _end_of(run, begin)
            if self._scope.cancelled_caught:
                return abandoned(self.session_id)
            if progress is not None:
                await progress.settle(last_seq_of(end))
            return end
        finally:
            for reader in heard:  # no terminal event has closed it if the turn was put back
                reader.close()
            self._begun.set()
            self._over.set()

    def _hear(self, envelope: Envelope) -> None:
        self._own |= isinstance(envelope.event, RunStarted)
        self._ended = isinstance(envelope.event, TERMINAL)

    def abandon(self) -> None:
        """Let `run` wait no longer for the end of the turn, which goes on."""
        self._scope.cancel()

    async def watch(self) -> None:
        """Wait for the end of the turn; if this is cancelled, interrupt the turn and wait for its end."""
        try:
            await self._over.wait()
        finally:
            if not self._over.is_set():
                await self._cancelled()

    async def _cancelled(self) -> None:
        # Shielded: the client's cancellation has arrived, and the turn has still to be interrupted.
        with trio.move_on_after(CANCEL_TIMEOUT, shield=True):
            while self.key is not None and not self._begun.is_set() and not await self._withdrawn(self.key):  # noqa: ASYNC110 - an inbox of the store has no event
                await trio.sleep(POLL_INTERVAL)
            # Before its first event a turn may not be admitted yet: an interrupt would find nothing.
            await self._begun.wait()
            if self._own:
                await self._interrupt()
                await self._over.wait()
        self.abandon()

    async def _withdrawn(self, key: str) -> bool:
        """Withdraw the prompt with a key; return whether it waited."""
        try:
            waiting = await self.service.inputs(self.session_id or "")
            for each in (each for each in waiting if each.key == key):
                await self.service.withdraw(self.session_id or "", each.input_id)
                return True
        except WarrenError as exc:
            logger.debug("session %s: %s", self.session_id, exc)
        return False

    async def _interrupt(self) -> None:
        """Interrupt the turn, unless it has ended: the session may run a turn of another caller by then."""
        if self._ended or self._over.is_set() or self._scope.cancel_called or self.session_id is None:
            return
        try:
            await self.service.interrupt(self.session_id)
        except WarrenError as exc:
            logger.debug("session %s: %s", self.session_id, exc)
        except Exception:
            logger.exception("session %s: its turn could not be interrupted", self.session_id)


async def _end_of(run: RunTurn, begin: OnBegin) -> TurnResult | Exception:
    """Run a turn; return its result or its error. `stream` raises it, outside the nursery that would wrap it."""
    try:
        return await run(begin)
    except Exception as exc:  # noqa: BLE001 - see above
        return exc


def keyed(params: object) -> object:
    """Return parameters with an idempotency key if they are of a prompt that may wait; else return them unchanged.

    By its key the prompt is found in the inbox when the call is cancelled.
    """
    if isinstance(params, TurnRequest) and params.mode != "busy" and params.idempotency_key is None:
        return attrs.evolve(params, idempotency_key=new_session_id())
    return params


def key_of(params: object) -> str | None:
    """Return the idempotency key of a prompt that may wait in the inbox; None for all other parameters."""
    return params.idempotency_key if isinstance(params, TurnRequest) and params.mode != "busy" else None
