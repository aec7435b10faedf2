"""A turn in the hands of the one call that started it: it is watched by that call, and cancelled with it."""

import logging
from functools import partial
from typing import Final

import attrs
import trio

from warren.errors import AgentError, InvalidParamsError, WarrenError
from warren.events import TERMINAL, Envelope, RunStarted
from warren.ids import new_session_id
from warren.options import TurnRequest
from warren.service import OnEvent, SessionService
from warren.transport.mcp.progress import Progress, Run, Send
from warren.transport.rpc.jsonrpc import given_up
from warren.transport.rpc.methods import Caller
from warren.views import TurnResult

PATIENCE: Final = 10.0
"""Seconds that a cancelled call waits for its turn to begin and to end; then the turn is on its own."""
PAUSE: Final = 0.05
"""Seconds between two looks for a prompt that is on its way into the inbox still."""

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class Call(Caller):
    """One call of a tool.

    Attributes:
        service: the runtime.
        send: brings an event to the client; None where it wants none.
        key: under which its prompt waits, where it may wait.
    """

    service: SessionService
    send: Send | None
    key: str | None = None
    _turn: "_Turn | None" = attrs.field(default=None, init=False)
    _left: bool = attrs.field(default=False, init=False)

    def leave(self) -> None:
        """Have the call end soon with an error, without a word to its turn: the server ends, not its client."""
        self._left = True
        if self._turn is not None:
            self._turn.give_up()

    async def stream(self, session_id: str | None, run: Run) -> TurnResult:
        """Run a turn whose events are the call's progress; cancelling this interrupts the turn.

        It returns, or is cancelled, when the turn has ended, and the client has its last event.
        """
        if self._left:
            raise AgentError("the server ends", session_id=session_id, cause="shutting_down", retryable=True)
        self._turn = _Turn(self.service, session_id, self.key)
        try:
            end = await self._watched(self._turn, run)
        except BaseExceptionGroup:
            # Several tasks were cancelled: the library takes one Cancelled for what it is, and not a group of them.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise
        if isinstance(end, Exception):
            raise end
        return end

    async def _watched(self, turn: "_Turn", run: Run) -> TurnResult | Exception:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.watch)
            if self.send is None:
                return await turn.run(run)
            progress = Progress(self.service, self.send, nursery)
            nursery.start_soon(progress.deliver)
            end = await turn.run(run, progress)
            progress.end()
        return end

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """Raise: a call ends with its answer, and events that come later belong to none."""
        raise InvalidParamsError(f"$: a call cannot follow session {session_id} from {after_seq} on", path="$")

    def unsubscribe(self, session_id: str) -> bool:
        """Return that there was no subscription."""
        del session_id
        return False


@attrs.define(eq=False)
class _Turn:
    """The turn of a call, from before it is admitted until its result is there.

    Attributes:
        service: the runtime.
        session_id: its session, once that is known.
        key: under which its prompt waits, where it may wait; a turn that was somebody else's is not interrupted.
    """

    service: SessionService
    session_id: str | None
    key: str | None = None
    _own: bool = attrs.field(default=False, init=False)
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True), init=False)

    async def run(self, run: Run, progress: Progress | None = None) -> TurnResult | Exception:
        """Return the result or what was raised, also if the call is cancelled; an error if it is given up."""
        try:
            with self._scope:
                if progress is None:
                    return await run(self._hear)
                return await progress.stream(self.session_id, partial(self._both, run))
        except Exception as exc:  # noqa: BLE001 - raised again where no nursery makes a group of it
            return exc
        finally:
            self._begun.set()
            self._over.set()
        return given_up(self.session_id)

    async def _both(self, run: Run, report: OnEvent) -> TurnResult:
        def on_event(envelope: Envelope) -> None:
            self._hear(envelope)
            report(envelope)

        return await run(on_event)

    def _hear(self, envelope: Envelope) -> None:
        self.session_id = envelope.session_id
        self._own |= isinstance(envelope.event, RunStarted)
        self._ended = isinstance(envelope.event, TERMINAL)
        self._begun.set()

    def give_up(self) -> None:
        """Wait for the turn no longer: it is on its own."""
        self._scope.cancel()

    async def watch(self) -> None:
        """Wait for the turn's end; end the turn where that wait is cancelled."""
        try:
            await self._over.wait()
        finally:
            if not self._over.is_set():
                await self._cancelled()

    async def _cancelled(self) -> None:
        with trio.move_on_after(PATIENCE, shield=True):
            await self._take_back()
            # Before its first event a turn may not be admitted yet: an interrupt would find nothing.
            await self._begun.wait()
            if self._own:
                await self._interrupt()
                await self._over.wait()
        self.give_up()

    async def _take_back(self) -> None:
        """Withdraw a prompt that waits, unless a turn takes it before."""
        while self.key is not None and not self._begun.is_set() and not await self._withdrawn(self.key):  # noqa: ASYNC110 - an inbox of the store has no event
            await trio.sleep(PAUSE)

    async def _withdrawn(self, key: str) -> bool:
        """Take back a prompt that waits; tell whether there was one."""
        try:
            waiting = await self.service.inputs(self.session_id or "")
            for each in (each for each in waiting if each.key == key):
                await self.service.withdraw(self.session_id or "", each.input_id)
                return True
        except WarrenError as exc:
            logger.debug("session %s: %s", self.session_id, exc)
        return False

    async def _interrupt(self) -> None:
        """Interrupt the turn, and no other one: what has ended makes room for somebody else's."""
        if self._ended or self._over.is_set() or self._scope.cancel_called or self.session_id is None:
            return
        try:
            await self.service.interrupt(self.session_id)
        except WarrenError as exc:
            logger.debug("session %s: %s", self.session_id, exc)
        except Exception:
            logger.exception("session %s: its turn could not be interrupted", self.session_id)


def keyed(params: object) -> object:
    """Return parameters of a method with a key, where they are of a prompt that may wait: by it the prompt is found."""
    if isinstance(params, TurnRequest) and params.mode != "busy" and params.idempotency_key is None:
        return attrs.evolve(params, idempotency_key=new_session_id())
    return params


def key_of(params: object) -> str | None:
    """Return the key under which a prompt waits, where it may wait."""
    return params.idempotency_key if isinstance(params, TurnRequest) and params.mode != "busy" else None
