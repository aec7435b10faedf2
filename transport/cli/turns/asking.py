"""Approval of tool calls by the user: a question on a terminal, a refusal without one."""

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Final, cast

import attrs
import trio

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.calls.facade import SessionService
from warren.conversation.categories import Decision
from warren.conversation.event_text import shorten
from warren.conversation.events import Envelope, ToolApprovalRequested, ToolApprovalResolved
from warren.transport.cli.terminal.questions import Question
from warren.transport.cli.terminal.streams import Streams

QUESTION: Final = "allow? [y]es/[n]o/[a]lways "
ONCE: Final = "allow? [y]es/[n]o "
MAY_HAVE_RUN: Final = "it may have run already: the process ended during it"
NOBODY: Final = "there is no terminal to ask on"
WORDS: Final = {"y": "y", "yes": "y", "n": "n", "no": "n", "a": "a", "always": "a"}


@define(eq=False)
class Asker:
    """Decides on the tool calls of a command, by an option or by a question to the user.

    Attributes:
        streams: the streams for the question.
        approve_all: whether all calls are approved without a question.
        terminal: whether there is a terminal for a question.
        descriptor: the file descriptor of the answer.
    """

    streams: Streams
    approve_all: bool = False
    terminal: bool = attrs.field(default=False, kw_only=True)
    descriptor: int = 0

    @classmethod
    def of(cls, streams: Streams, *, approve_all: bool) -> "Asker":
        """Return the asker of these streams; it asks if stdin and stderr are terminals."""
        return cls(streams, approve_all, terminal=sys.stdin.isatty() and streams.err.isatty())

    async def decide(self, event: ToolApprovalRequested) -> Decision:
        """Return whether the user approves a call. After a cancellation, later input is left to other readers."""
        if self.approve_all:
            return Decision(allow=True)
        if not self.terminal:
            return Decision(allow=False, reason=NOBODY)
        return await self._ask(event)

    async def _ask(self, event: ToolApprovalRequested) -> Decision:
        heading = f"the model wants to use {event.name}" if event.question_of is None else f"{event.name} asks"
        lines = [f"{heading} ({event.category}): {shorten(event.args)}\n"]
        if event.may_have_run:
            lines.append(f"{MAY_HAVE_RUN}\n")
        if event.question is not None:
            lines.append(f"{event.question}\n")
        words = {word: each for word, each in WORDS.items() if each != "a"} if event.stands_alone else WORDS
        question = Question(self.streams, ONCE if event.stands_alone else QUESTION, words, self.descriptor)
        word = await question.ask("".join(lines))
        return Decision(allow=word in ("y", "a"), remember=word == "a")


@define(eq=False)
class ApprovalQueue:
    """The calls of one turn that wait for approval; the user is asked about one after the other.

    Attributes:
        service: gets each decision.
        asker: decides.
        say: shows a remark.
        asking: cancelling it ends the questions; the calls wait on.
    """

    service: SessionService
    asker: Asker
    say: Callable[[str], None]
    asking: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _send: trio.MemorySendChannel[Envelope] = attrs.field(init=False)
    _receive: trio.MemoryReceiveChannel[Envelope] = attrs.field(init=False)
    _scopes: dict[str, trio.CancelScope] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Envelope](math.inf)

    def note(self, envelope: Envelope) -> None:
        """Note an event as it happens, so that no question is put about a call that waits no longer."""
        match envelope.event:
            case ToolApprovalRequested(id=call):
                if call in self._scopes:  # the process that goes on with the turn asks again
                    self._scopes[call].cancel()
                self._scopes[call] = trio.CancelScope()
            case ToolApprovalResolved(id=call) if call in self._scopes:
                self._scopes[call].cancel()

    def shown(self, envelope: Envelope) -> None:
        """Note an event when all events before it are on the screen."""
        if isinstance(envelope.event, ToolApprovalRequested):
            self._send.send_nowait(envelope)

    async def run(self) -> None:
        """Ask about one call after the other, until `asking` is cancelled."""
        with self.asking:
            async for envelope in self._receive:
                await self._see_to(envelope.session_id, cast("ToolApprovalRequested", envelope.event))

    async def _see_to(self, session_id: str, event: ToolApprovalRequested) -> None:
        scope = self._scopes[event.id]
        if scope.cancel_called:
            return
        with scope:
            decision = await self.asker.decide(event)
            if decision.reason == NOBODY:
                self.say(f"{event.name} was not run: {NOBODY}; --approve-all allows it")
            with contextlib.suppress(WarrenError):  # the call has timed out, or its turn has ended
                answer, reason, remember = decision.answer, decision.reason, decision.remember
                await self.service.approve_tool(session_id, event.id, answer, reason=reason, remember=remember)
