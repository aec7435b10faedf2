"""`Session`, one session as an object, and `Handles`, which makes them: for every service, here or at a server."""

from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Generic, Protocol, cast, overload

from warren.agents.agent import Agent
from warren.agents.hooks import Hooks
from warren.base.errors import InvalidParamsError, WarrenError
from warren.base.fields import FieldValueError
from warren.base.ids import new_session_id
from warren.calls.turn_stream import TurnStream
from warren.calls.typed import typed
from warren.conversation.attachments import File
from warren.conversation.options import TurnMode
from warren.conversation.views import HistoryPage, SessionView, T, TurnResult, V
from warren.structured.types import TypedShape

NO_ID = "the session has no id yet: take a turn first, or await session.create()"
BEING_MADE = "the session is being created: await session.create() before you use it in two tasks"


class Session(Generic[T]):
    """One session: that of an agent, or one that is there already. `SessionService.session` makes it.

    It holds no connection and need not be closed; it may be used by several tasks once it has an id. Its methods raise
    what those of the service raise.

    The first `turn` creates the session. It does so under an idempotency key of its own, so a first turn that is taken
    again with the same prompt after an error creates no second session.

    Attributes:
        agent: the name of its agent; None for a session that was there.
    """

    def __init__(
        self,
        service: Any,  # a `SessionService`, whose module imports this one
        agent: str | None,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
        *,
        hooks: Sequence[Hooks] = (),
        shape: TypedShape[T] | None = None,
    ) -> None:
        self.agent = agent
        self._shape = shape
        self._service = service
        self._id = session_id
        self._new = {"labels": labels, "title": title, "hooks": hooks}
        self._key = new_session_id()
        self._being_made = False

    @property
    def id(self) -> str:
        """The session's id. Raises RuntimeError before the session is created."""
        if self._id is None:
            raise RuntimeError(NO_ID)
        return self._id

    def __await__(self) -> Generator[Any, Any, "Session[T]"]:
        """Create the session without a turn, unless it is there; return this object."""
        return self.create().__await__()

    async def create(self) -> "Session[T]":
        """Create the session without a turn, unless it is there; return this object."""
        if self._id is None:
            await self._create(None)
        return self

    @overload
    async def turn(
        self,
        prompt: str,
        *,
        output_type: type[V],
        attachments: Sequence[File] = (),
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> TurnResult[V]: ...
    @overload
    async def turn(
        self,
        prompt: str,
        *,
        attachments: Sequence[File] = (),
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> TurnResult[T]: ...
    async def turn(
        self,
        prompt: str,
        *,
        attachments: Sequence[File] = (),
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> TurnResult[Any]:
        """Run a turn and return its result; the first one creates the session.

        Args:
            prompt: the prompt.
            attachments: files that it is about.
            mode: what happens while another turn runs, as in `SessionService.start_turn`. The first turn has none to
                wait for.
            idempotency_key: a key of your own for the modes that wait; of a first turn it is that of the session.
            options: options of the turn, as of `start_turn`. Of a first turn they hold for the whole session. An
                `output_type` is that of this result alone; for the others it is that of the agent.
        """
        files = tuple(attachments)
        if self._id is None:
            result = await self._create(prompt, idempotency_key, attachments=files, **options)
        else:
            call, asked = self._service.start_turn, {"mode": mode, "idempotency_key": idempotency_key, **options}
            result = await call(self._id, prompt, attachments=files, **asked)
        shape = self._shape_for(options)
        return result if shape is None else typed(shape, result)

    @overload
    def stream(
        self,
        prompt: str,
        *,
        output_type: type[V],
        attachments: Sequence[File] = (),
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[TurnStream[V]]: ...
    @overload
    def stream(
        self,
        prompt: str,
        *,
        attachments: Sequence[File] = (),
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[TurnStream[T]]: ...
    @asynccontextmanager
    async def stream(
        self,
        prompt: str,
        *,
        attachments: Sequence[File] = (),
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> AsyncIterator[TurnStream[Any]]:
        """Run a turn, and open a stream of its events for the body of an `async with`, as `stream_turn` does.

        The arguments are those of `turn`. The first turn creates the session.
        """
        files, shape = tuple(attachments), self._shape_for(options)
        if self._id is not None:
            start = self._service.stream_turn
            asked = {"attachments": files, "mode": mode, "idempotency_key": idempotency_key, **options}
            async with start(self._id, prompt, **asked) as events:
                yield events if shape is None else events.typed(shape)
            return
        create = self._service.stream_session
        async with AsyncExitStack() as stack:
            with self._creating():
                opened = create(prompt, **self._given(idempotency_key), attachments=files, **options)
                events = await stack.enter_async_context(opened)
                self._id = events.session_id
            yield events if shape is None else events.typed(shape)

    async def interrupt(self) -> None:
        """End the running turn, and return when it has ended."""
        await self._service.interrupt(self.id)

    async def approve(self, call_id: str, *, remember: bool = False) -> None:
        """Allow a tool call that waits for approval; with `remember` also later calls of the same tool."""
        await self._service.approve_tool(self.id, call_id, "allow", remember=remember)

    async def deny(self, call_id: str, *, reason: str | None = None) -> None:
        """Refuse a tool call that waits for approval; the model reads the reason."""
        await self._service.approve_tool(self.id, call_id, "deny", reason=reason)

    async def read(self) -> SessionView:
        """Return the session as of its last finished turn."""
        return cast("SessionView", await self._service.read(self.id))

    async def history(self, offset: int = 0, limit: int = 100) -> HistoryPage:
        """Return the messages at the `limit` positions from `offset` on, the oldest first."""
        return cast("HistoryPage", await self._service.history(self.id, offset=offset, limit=limit))

    async def fork(
        self, at: int | None = None, *, labels: Mapping[str, str] | None = None, title: str | None = None
    ) -> "Session[T]":
        """Make a session of the first `at` messages, None for all of them, and return it. No model is called."""
        view = await self._service.fork(self.id, at=at, labels=labels, title=title)
        return Session(self._service, self.agent, view.state.session_id, shape=self._shape)

    def _shape_for(self, options: Mapping[str, Any]) -> TypedShape[T] | None:
        """Return the shape of the result of a turn with these options; None if it has that of its own call, or none."""
        own = options.get("output_type") is None and options.get("output_schema") is None
        return self._shape if own else None

    async def _create(self, prompt: str | None, key: str | None = None, **options: Any) -> TurnResult:
        call = self._service.create_session
        with self._creating():
            result: TurnResult = await call(prompt, **self._given(key), **options)
            self._id = result.session_id
        return result

    def _given(self, key: str | None) -> dict[str, Any]:
        """Return what the session is created with besides its first turn."""
        return {**self._new, "agent": self.agent, "idempotency_key": key or self._key}

    @contextmanager
    def _creating(self) -> Iterator[None]:
        """Let one task create the session; keep the id of one that was created, and whose first turn failed."""
        if self._being_made:
            raise RuntimeError(BEING_MADE)
        self._being_made = True
        try:
            yield
        except WarrenError as exc:
            self._id = exc.session_id
            raise
        finally:
            self._being_made = False


class Handles(Protocol):
    """A service that gives a session as an object."""

    @overload
    def session(
        self,
        agent: Agent[T],
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Session[T]: ...
    @overload
    def session(
        self,
        agent: str | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Session[Any]: ...
    def session(
        self,
        agent: Agent[Any] | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as a session's attribute is named
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Session[Any]:
        """Return a session as an object: a new one of an agent, or with `id` one that is there. It does nothing yet.

        Args:
            agent: the agent, or its name. A runtime in this process takes an agent in that it does not have; a server
                has to have one of that name. A session that is there keeps the version that it was made with.
            id: the id of a session that is there; None for a new one.
            labels: labels of a new session.
            title: title of a new session.
            hooks: hooks around what a new session does, in this process alone: see `SessionCall`.

        Raises:
            InvalidParamsError: if there is neither an agent nor an id, if another agent has its name, or if there are
                labels, a title or hooks for a session that is there.

        Trap: give agents to `open_supervisor(agents=…)`, too. Turns that an earlier process has left go on at once, and
        need the code of their agents.
        """
        name = agent.name if isinstance(agent, Agent) else agent
        if name is None and id is None:
            raise InvalidParamsError.at("$.agent", "is required for a new session")
        if id is not None:
            for field, given in (("labels", labels), ("title", title)):
                if given is not None:
                    raise FieldValueError(field, "is for a new session: use SessionService.label").refusal()
            if hooks:
                raise FieldValueError("hooks", "is for a new session").refusal()
        shape = agent.shape if isinstance(agent, Agent) else None
        return Session(self, name, id, labels, title, hooks=hooks, shape=shape)
