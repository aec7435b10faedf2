"""Prompts that nobody waits for, of schedules and triggers: each enters an inbox once, whoever puts it there."""

from typing import Protocol

import attrs

from warren.actors.calls.handlers.creating import create
from warren.actors.calls.local import Local
from warren.actors.events.eventlog import utc_now
from warren.base.ids import id_under
from warren.base.principals import WRITE, Principal
from warren.base.tenant_limits import TokenLimits
from warren.calls.turns import SessionCall
from warren.conversation.inputs import Input
from warren.conversation.options import SessionTemplate, given


class Source(Protocol):
    """A schedule or a trigger: whose prompts they are, and where they go."""

    @property
    def tenant(self) -> str:
        """The tenant."""

    @property
    def owner(self) -> str:
        """The name of the principal that has made it."""

    @property
    def limits(self) -> TokenLimits:
        """The limits that its turns are held against."""

    @property
    def session_id(self) -> str | None:
        """The session that gets its prompts; None for a new one each time."""

    @property
    def new_session(self) -> SessionTemplate | None:
        """The options of new sessions."""


def sender_of(source: Source) -> Principal:
    """Return the principal in whose name prompts come."""
    return Principal(source.tenant, source.owner, frozenset({WRITE}), source.limits)


async def deliver(local: Local, source: Source, prompt: str, key: str) -> str:
    """Put a prompt into the inbox of its session, or of a new one; return the session.

    The input has the id `id_under(key)`. Given again, whether to this process or another, the key finds both.

    Raises SessionNotFoundError if the session is archived or gone, and as the calls `session/create` and `turn/start`.
    """
    local = attrs.evolve(local, principal=sender_of(source))
    session_id = source.session_id
    if session_id is None:
        options = given(SessionTemplate, source.new_session or SessionTemplate())
        session_id = (await create(local, SessionCall(None, **options, idempotency_key=key))).session_id
    said = Input(id_under(key), "queue", prompt, utc_now(), key, payer=local.payer)
    await local.supervisor.inboxes.put(session_id, said, local.by)
    return session_id
