"""The service of a runtime without a session store: it refuses the calls that only a store could answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warren.actors.calls.access import check_scope, scoped
from warren.actors.calls.service import Service
from warren.base.errors import PersistenceDisabledError
from warren.calls.keywords import keywords_of, made
from warren.calls.requests import SessionRef, SubscribeRequest
from warren.calls.service import EventReader
from warren.conversation.views import SessionView
from warren.storage.queries import SessionRow


class UnstoredService(Service):
    """Sessions that end with the process. Everything else is as in `Service`."""

    __slots__ = ()  # by hand: attrs would make a new class, which `super` in the decorated methods does not know

    @keywords_of(SessionRef)
    @scoped
    async def resume(self, session: SessionRef) -> SessionView:
        """See SessionService."""
        await self._check_here(session.session_id, "only sessions of this process can be resumed")
        return await super().resume(session.session_id)

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        """See SessionService."""
        made(SubscribeRequest, session_id, after_seq=after_seq)
        check_scope(self.principal, "subscribe")
        if after_seq is not None:
            await self._check_here(session_id, "only events of sessions of this process can be replayed")
        async with super().subscribe(session_id, after_seq=after_seq) as reader:
            yield reader

    @keywords_of(SessionRef)
    @scoped
    async def delete(self, _session: SessionRef) -> None:
        """See SessionService."""
        self._supervisor.check_open()
        raise _no_store("nothing is stored that could be deleted")

    async def _check_here(self, session_id: str, problem: str) -> None:
        """Raise PersistenceDisabledError if the session is not in this process: only a store could have it."""
        self._supervisor.check_open()
        if await self._ask(SessionRow(session_id, self.principal.tenant)) is None:
            raise _no_store(problem)


def _no_store(problem: str) -> PersistenceDisabledError:
    return PersistenceDisabledError(f"session persistence is disabled: {problem}")
