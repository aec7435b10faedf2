"""A crash inside a session's actor, on demand."""

from typing import Any, ClassVar

from tests.support.runtime import supervisor_of
from warren.actors.calls.service import Service
from warren.actors.protocol import Retire
from warren.actors.session.actor import SessionActor


class BugError(Exception):
    """The error of a bug in an actor's loop."""


class Bomb(Retire):
    """A message that raises when the actor reads it."""

    urgent: ClassVar[bool] = True

    def __init__(self) -> None:
        """Set no field."""

    def __repr__(self) -> str:
        """Return the name alone: the fields raise."""
        return "Bomb()"

    @property
    def how(self) -> Any:
        """Raise."""
        raise BugError("boom")


def actor_of(service: Service, session_id: str) -> SessionActor | None:
    """Return the live session's actor."""
    return supervisor_of(service).find(session_id)


def crash(service: Service, session_id: str) -> bool:
    """Let the session's actor crash when it reads its mail next; return whether there is one."""
    actor = actor_of(service, session_id)
    if actor is not None:
        actor.mailbox.tell(Bomb())
    return actor is not None
