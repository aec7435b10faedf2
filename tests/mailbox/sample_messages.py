"""Messages, an admission rule and asking tasks for the tests of the mailbox."""

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import trio

from warren.base.errors import AgentError, SessionBusyError, SessionNotFoundError, WarrenError
from warren.mailbox import Mailbox, Message


@attrs.frozen
class Question(Message[str]):
    """Any message that wants an answer."""

    text: str = ""


@attrs.frozen
class Start(Message[str]):
    """A message that `OneAtATime` admits only if the one before it is done."""

    number: int = 0


@attrs.define
class OneAtATime:
    """An admission rule: it claims its place for a `Start`, and refuses the next one until the place is free again.

    Attributes:
        taken: whether a start was admitted and is not done.
    """

    taken: bool = False

    def admit(self, message: Message[Any]) -> None:
        """Claim the place for a start; take every other message. Raises SessionBusyError if the place is taken."""
        if isinstance(message, Start):
            if self.taken:
                raise SessionBusyError("busy")
            self.taken = True


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
