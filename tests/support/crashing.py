"""A crash inside a session's actor, on demand."""

from warren.actors.protocol import Retire
from warren.actors.service import Service
from warren.actors.session import SessionActor


class BugError(Exception):
    """What a bug in an actor's loop would raise."""


class Bomb(Retire):
    """A message that blows up in the hands of the actor that reads it."""

    signal = None

    def __init__(self) -> None:
        """Carry nothing."""

    def __repr__(self) -> str:
        """Stay quiet."""
        return "Bomb()"

    @property
    def how(self) -> str:  # type: ignore[override]
        """Raise."""
        raise BugError("boom")


def actor_of(service: Service, session_id: str) -> SessionActor | None:
    """Return the live session's actor."""
    return service._supervisor.find(session_id)  # noqa: SLF001 - the service has no way to reach an actor, for good reason


def crash(service: Service, session_id: str) -> bool:
    """Let the session's actor crash when it reads its mail next; return whether there is one."""
    actor = actor_of(service, session_id)
    if actor is not None:
        actor.mailbox.tell(Bomb())
    return actor is not None
