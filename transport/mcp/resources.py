"""Sessions as resources, which a client lists, reads as JSON, subscribes to, and completes the ids of."""

import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import mcp_types as types
import trio
from mcp.shared.exceptions import MCPError

from warren.base.errors import AgentError, CapacityExceededError, SessionNotFoundError, WarrenError
from warren.base.principals import Principal
from warren.base.values import define, frozen
from warren.calls.facade import RuntimeService
from warren.conversation import codec
from warren.conversation.events import TERMINAL, StreamTruncated
from warren.conversation.views import HistoryEntry, SessionSummary, SessionView
from warren.transport.mcp.refusal import refusal
from warren.transport.rpc.jsonrpc import shorten
from warren.transport.rpc.shares import Shares, counted

SCHEME: Final = "warren://sessions/"
TEMPLATE: Final = f"{SCHEME}{{session_id}}"
MIME: Final = "application/json"
PAGE: Final = 100
"""Sessions of a page, and completions of an answer. For completions the protocol allows no more."""
LONGEST_CURSOR: Final = 15
"""Digits of a cursor, which is the number of sessions before the page."""
NEWEST: Final = 100
"""Messages of a conversation that a resource shows: the newest ones."""
MAX_TEXT: Final = 2 * 1024 * 1024
"""Bytes of the messages in a resource, which the library encodes on the event loop. Older messages are left out."""
LOOKED_THROUGH: Final = 1_000
"""Sessions whose ids are offered as completions: the most recently changed ones."""
MAX_WATCHED: Final = 100
"""Resources that one client may subscribe to."""
NOT_FOUND: Final = -32002
"""The protocol's number for a resource that does not exist."""

Changed = Callable[[str], Awaitable[None]]
"""Notifies a client that the resource of a URI has changed."""

logger: Final = logging.getLogger(__name__)


@frozen
class SessionResource:
    """The content of a resource.

    Attributes:
        view: the session, as the tool `warren_read` shows it.
        messages: the newest messages of the conversation, oldest first.
    """

    view: SessionView
    messages: tuple[HistoryEntry, ...]

    def text(self) -> str:
        """Return the content as JSON."""
        data = {"state": self.view.state, "billing": self.view.billing, "messages": self.messages}
        return codec.encode({name: codec.to_data(value) for name, value in data.items()}).decode()


@define(eq=False)
class Watched:
    """The subscriptions of one client, by URI. Close it when the client has gone."""

    scopes: dict[str, trio.CancelScope] = attrs.field(factory=dict)

    def drop(self, uri: str) -> None:
        """End the subscription to a resource, if there is one."""
        scope = self.scopes.pop(uri, None)
        if scope is not None:
            scope.cancel()

    def close(self) -> None:
        """End all subscriptions."""
        for uri in tuple(self.scopes):
            self.drop(uri)


@frozen
class Resources:
    """The sessions of one runtime as resources, for every client of a server.

    Attributes:
        service: the runtime.
        nursery: runs the tasks of subscriptions; they end with it.
        shares: the subscriptions of all clients; None if they are not counted.
    """

    service: RuntimeService
    nursery: trio.Nursery
    shares: Shares | None = None

    def of(self, principal: Principal | None) -> "Resources":
        """Return the resources of a client; None is the principal of the runtime as it was given."""
        return self if principal is None else attrs.evolve(self, service=self.service.as_(principal))

    async def listed(self, cursor: str | None) -> types.ListResourcesResult:
        """Return a page of the sessions that are not archived, the most recently changed one first."""
        offset = _offset(cursor)
        page = await self.service.list(offset=offset, limit=PAGE)
        following = str(offset + PAGE) if len(page.sessions) + len(page.damaged) == PAGE else None
        return types.ListResourcesResult(resources=[_shown(each) for each in page.sessions], next_cursor=following)

    async def read(self, uri: str) -> types.ReadResourceResult:
        """Return a session. Raises MCPError for a URI of another form, and the errors of the service."""
        session_id = session_of(uri)
        view = await self.service.read(session_id)
        offset = max(0, view.state.message_count - NEWEST)
        page = await self.service.history(session_id, offset=offset, limit=NEWEST)
        text = SessionResource(view, _fitting(page.messages)).text()
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=MIME, text=text)])

    async def complete(self, ref: object, name: str, value: str) -> types.Completion:
        """Return the ids of sessions that begin with a text; none for any argument but a session's id."""
        of_session = isinstance(ref, types.ResourceTemplateReference) and ref.uri == TEMPLATE and name == "session_id"
        if not of_session:
            return types.Completion(values=[], total=0, has_more=False)
        sessions = (await self.service.list(limit=LOOKED_THROUGH)).sessions
        found = [each.session_id for each in sessions if each.session_id.startswith(value)]
        return types.Completion(values=found[:PAGE], total=len(found), has_more=len(found) > PAGE)

    async def watch(self, watched: Watched, uri: str, changed: Changed) -> None:
        """Call `changed` after each turn of a session, until the subscription is dropped or the session is gone.

        Raises:
            MCPError: if there is no such session.
            CapacityExceededError: if the client has `MAX_WATCHED` subscriptions, or its principal its share.
        """
        session_id = session_of(uri)
        await self.service.read(session_id)
        if uri in watched.scopes:
            return
        if len(watched.scopes) >= MAX_WATCHED:
            full = f"this client has {MAX_WATCHED} subscriptions, which is the limit: end one first"
            raise CapacityExceededError(full, cause="max_subscriptions")
        watched.scopes[uri] = scope = trio.CancelScope()
        await self.nursery.start(self._follow, watched, uri, scope, changed)  # the session may be deleted by now

    async def _follow(
        self,
        watched: Watched,
        uri: str,
        scope: trio.CancelScope,
        changed: Changed,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        entered = False
        try:
            with counted(self.shares, self.service), scope:
                async with self.service.subscribe(session_of(uri)) as events:
                    task_status.started()
                    entered = True
                    async for envelope in events:
                        if isinstance(envelope.event, (*TERMINAL, StreamTruncated)):
                            await changed(uri)
                if not await self._stopping(session_of(uri)):
                    await changed(uri)  # archived or deleted
        except Exception as exc:
            if not entered:
                raise  # to the task that subscribes, not to the nursery
            logger.warning("the subscription to %s has failed: its client gets no more updates", uri, exc_info=exc)
        finally:
            if watched.scopes.get(uri) is scope:
                del watched.scopes[uri]
        if not entered:  # the subscription was dropped before it began
            task_status.started()

    async def _stopping(self, session_id: str) -> bool:
        """Return whether the events of a session have ended with the runtime, which does not change the session."""
        try:
            await self.service.read(session_id)
        except AgentError as exc:
            return exc.cause == "shutting_down"
        except WarrenError:
            return False
        return False


def session_of(uri: str) -> str:
    """Return the id of the session in a URI. Raises MCPError if the URI is of another form."""
    session_id = uri.removeprefix(SCHEME)
    if not uri.startswith(SCHEME) or not session_id or "/" in session_id:
        raise MCPError(code=NOT_FOUND, message=f"there is no resource {shorten(uri)}; there are: {TEMPLATE}")
    return session_id


def _fitting(messages: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    """Return the newest messages that together have at most `MAX_TEXT` bytes."""
    sizes = itertools.accumulate(codec.weight(entry) for entry in reversed(messages))
    count = sum(size <= MAX_TEXT for size in sizes)
    return messages[len(messages) - count :]


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= LONGEST_CURSOR):
        raise refusal("$.params.cursor", "must be a nextCursor of an earlier answer")
    return int(cursor)


def _shown(session: SessionSummary) -> types.Resource:
    messages = f"{session.message_count} message{'' if session.message_count == 1 else 's'}"
    return types.Resource(
        uri=f"{SCHEME}{session.session_id}",
        name=session.session_id,
        title=session.title,
        description=f"A conversation with {session.model}: {messages}, changed {session.updated_at:%Y-%m-%d %H:%M}.",
        mime_type=MIME,
    )


def template() -> types.ResourceTemplate:
    """Return the template of all resources."""
    return types.ResourceTemplate(
        uri_template=TEMPLATE,
        name="session",
        title="Session",
        description="A session: its state, its cost and its newest messages, as JSON.",
        mime_type=MIME,
    )


def failure_of(exc: WarrenError) -> MCPError:
    """Return the error of a request that is no call of a tool."""
    number = NOT_FOUND if isinstance(exc, SessionNotFoundError) else exc.numbers.jsonrpc
    data: dict[str, Any] = exc.body()
    return MCPError(code=number, message=exc.message, data=data)
