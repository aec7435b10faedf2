"""The messages of these tests, and small hands to hold the tasks that ask."""

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import trio

from warren.errors import AgentError, SessionNotFoundError, WarrenError
from warren.mailbox import Mailbox, Message, Signal


@attrs.frozen
class Question(Message[str]):
    """Any message that wants an answer."""

    text: str = ""


@attrs.frozen
class Start(Message[str]):
    """A message that begins a turn."""

    signal: ClassVar[Signal | None] = Signal.START
    number: int = 0


@attrs.frozen
class Farewell(Message[None]):
    """A message that a full mailbox takes too."""

    urgent: ClassVar[bool] = True


def gone() -> WarrenError:
    """Return the refusal of a mailbox that was closed in order."""
    return SessionNotFoundError("gone")


def crashed() -> WarrenError:
    """Return the refusal of a mailbox whose actor died."""
    return AgentError("crashed", cause="crash")


@attrs.define(eq=False)
class Asker:
    """One caller in a task of its own: `ends` has what came of its ask, once if all is well."""

    mailbox: Mailbox
    message: Message[str]
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ends: list[str] = attrs.field(factory=list)
    on_end: Callable[["Asker"], Any] | None = None

    async def run(self) -> None:
        """Ask, and note how it ended: the answer, an error's code, or `cancelled`."""
        with self.scope:
            try:
                self._end(await self.mailbox.ask(self.message))
            except WarrenError as exc:
                self._end(exc.code.value)
        if self.scope.cancelled_caught:
            self._end("cancelled")

    def _end(self, how: str) -> None:
        self.ends.append(how)
        if self.on_end is not None:
            self.on_end(self)
