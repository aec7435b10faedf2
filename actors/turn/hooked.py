"""The way of a turn, a model call, a tool call or a summary through the hooks around it."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import attrs
import trio

from warren.actors.supervision import first_error
from warren.agents.hooks import (
    Asked,
    Denied,
    Hooked,
    HookedCall,
    HookedCompaction,
    HookedRequest,
    HookedTurn,
    Hooks,
    Marks,
    ToolOutcome,
    TurnEnd,
    name_of,
)
from warren.base.errors import AgentError
from warren.base.fields import encodable
from warren.base.values import define
from warren.conversation.events import Event, ReasoningDelta, TextDelta
from warren.conversation.records import SessionRecord
from warren.models.model import ModelReply

logger: Final = logging.getLogger("warren.hooks")
METHODS: Final = ("on_turn", "on_model", "on_tool", "on_compaction")
OTHER_ARGUMENTS: Final = "its arguments are no longer those that were approved"
PAUSE: Final = 60.0
"""Seconds for which one more failure of a hook is not logged."""
V = TypeVar("V", bound=Hooked)
R = TypeVar("R")
A = TypeVar("A")


class HaltedError(Exception):
    """The way ends here, and begins anew once what is waited for is there."""


_methods: Final[WeakKeyDictionary[type[Hooks], frozenset[str]]] = WeakKeyDictionary()


def _own_methods(hook: Hooks) -> frozenset[str]:
    """Return the methods that the class of a hook has of its own: the others are never called."""
    cls = type(hook)
    if cls not in _methods:
        _methods[cls] = frozenset(name for name in METHODS if getattr(cls, name) is not getattr(Hooks, name))
    return _methods[cls]


@define(eq=False)
class Passage(Generic[V, R]):
    """The way of one value through hooks to the thing that they surround, and of its result back.

    Attributes:
        hooks: the hooks, the outermost first.
        method: the method of theirs that is called.
        kind: the type of the result.
        inner: does what the hooks surround. It may call `halt`.
        denied: returns the result if a hook has denied it, or raises. Gets the reason, and whether `inner` has begun.
        failed: the same for a hook that has failed and does not let the value pass. Gets the name of the hook too.
        given: returns whether a person has let this very value pass: then a hook that asks for that does; None if
            nobody has decided.
        passed: whether such a hook has.
        value: the value with which `inner` began.
        allowed: whether a hook has said that nobody need be asked.
        begun: whether `inner` has begun.
        halted: what the way has been halted for; None if it was not.
    """

    hooks: Sequence[Hooks]
    method: str
    kind: type[R]
    inner: Callable[[V], Awaitable[R]]
    denied: Callable[[str, bool], R]
    failed: Callable[[str, str, bool], R]
    given: Callable[[V], bool] | None = None
    passed: bool = False
    value: V | None = None
    allowed: bool = False
    begun: bool = False
    halted: object = None
    _error: Exception | None = None  # of `inner`, or the refusal of a hook within: no hook can heal it
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self, value: V) -> R:
        """Go the whole way. Raises HaltedError after `halt`, and what `inner` raises."""
        with self._scope:
            return await self._from(0, value)
        raise HaltedError  # the scope is cancelled by `halt` alone

    async def halt(self, reason: object) -> NoReturn:
        """End the way here: the hooks that wait for `inner` are cancelled."""
        self.halted = reason
        self._scope.cancel()
        await trio.lowlevel.checkpoint()
        raise HaltedError  # a hook has shielded itself

    async def _from(self, place: int, value: V) -> R:
        """Go the way from the hook at a place on."""
        if place < len(self.hooks):
            return await _Link(self, self.hooks[place], place, value).run()
        self.value, self.begun = value, True
        return await self.inner(value)

    async def beyond(self, place: int, value: V) -> R:
        """Go the way behind the hook at a place, for which nothing stands that goes wrong there."""
        try:
            return await self._from(place + 1, value)
        except Exception as exc:
            self._error = self._error or exc
            raise

    def check(self) -> None:
        """Raise what has gone wrong behind a hook that has ended, however it took that."""
        if self._error is not None:
            raise self._error
        if self.halted is not None:
            raise HaltedError


@define(eq=False)
class _Link(Generic[V, R]):
    """One hook on the way."""

    way: Passage[V, R]
    hook: Hooks
    place: int
    value: V
    marks: Marks = attrs.field(factory=Marks)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    went: bool = False
    came: R | None = None
    over: bool = False

    async def run(self) -> R:
        """Call the hook, and go by what it says."""
        way, scope = self.way, self.scope
        end: object = None
        failure: BaseException | None = None
        scope.deadline = trio.current_time() + self.hook.timeout
        try:
            with scope:
                end = await getattr(self.hook, way.method)(attrs.evolve(self.value, marks=self.marks), self.go)
        except Denied as exc:
            self.marks.denied = exc
        except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - it is code of the host
            if isinstance(exc, BaseExceptionGroup) and (rest := exc.split(Exception)[1]) is not None:
                raise rest from None
            failure = exc
        finally:
            self.over = True
        await trio.lowlevel.checkpoint_if_cancelled()  # a hook may have swallowed it
        way.check()
        if scope.cancel_called:
            failure = TimeoutError(f"it took more than {self.hook.timeout:g} s")
        return await (self._said(end) if failure is None else self._failed(failure))

    async def _said(self, end: object) -> R:
        """Return the result by the word of the hook."""
        way, marks = self.way, self.marks
        if isinstance(end, Denied):
            marks.denied = end
        if marks.denied is not None:
            return way.denied(marks.denied.reason, way.begun)
        if isinstance(end, Asked) and isinstance(self.value, HookedCall) and not self.went:
            if way.given is None:
                await way.halt((end, self.value.args))
            if not way.given(self.value):
                return way.denied(OTHER_ARGUMENTS, way.begun)
            way.passed = True
            return await way.beyond(self.place, self.value)
        if isinstance(end, way.kind):
            return end
        wanted = f"what `go` returned, or a value that `{type(self.value).__name__}` makes"
        told = f"{way.method} returned a value of type {type(end).__name__}: return {wanted}"
        return await self._failed(TypeError(told))

    async def go(self, changed: V | None = None, /) -> R:
        """Go on behind the hook, whose clock stands meanwhile."""
        if self.went or self.over:
            raise RuntimeError("`go` can be called once, and only while the hook runs")
        if self.marks.denied is not None:
            raise RuntimeError("`go` cannot be called after `deny`")
        value = self.value if changed is None else changed
        if type(value) is not type(self.value):
            raise TypeError(f"`go` takes a {type(self.value).__name__}, not a value of type {type(value).__name__}")
        self.went, self.way.allowed = True, self.way.allowed or self.marks.allowed
        left, self.scope.deadline = self.scope.deadline - trio.current_time(), float("inf")
        try:
            self.came = await self.way.beyond(self.place, value)
        finally:
            self.scope.deadline = trio.current_time() + left
        return self.came

    async def _failed(self, failure: BaseException) -> R:
        """Return the result that there is without the hook, or the refusal if it does not let the value pass."""
        hook, way = self.hook, self.way
        name, told = name_of(hook), encodable(f"{type(failure).__name__}: {failure}")
        note_failure(hook, way.method, failure)
        if hook.on_failure == "allow" and not self.went:
            return await way.beyond(self.place, self.value)
        if hook.on_failure == "allow" and self.came is not None:
            return self.came
        return way.failed(name, told, way.begun)


_noted: Final[dict[str, float]] = {}


def note_failure(hook: Hooks, method: str, failure: BaseException) -> None:
    """Log that a hook has failed, once a minute for each class: its text may quote the conversation."""
    name, now = f"{name_of(hook)}.{method}", trio.current_time()
    if now - _noted.get(name, float("-inf")) < PAUSE and now >= _noted.get(name, 0.0):
        return
    _noted[name] = now
    error = first_error(failure) if isinstance(failure, Exception) else failure
    logger.warning(
        "the hook %s failed: %s",
        name,
        type(error).__name__,
        exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
    )


@define(eq=False)
class HookChain:
    """The hooks of one turn.

    Attributes:
        hooks: the hooks, the outermost first.
        record: the session at the start of the turn.
    """

    hooks: tuple[Hooks, ...]
    record: SessionRecord

    def of(self, method: str) -> tuple[Hooks, ...]:
        """Return the hooks that have a method of their own."""
        return tuple(each for each in self.hooks if method in _own_methods(each))

    @cached_property
    def place(self) -> Mapping[str, Any]:
        """What all values for hooks have."""
        record = self.record
        agent = None if record.agent is None else record.agent.name
        return {
            "session_id": record.session_id,
            "tenant": record.tenant,
            "owner": record.owner,
            "agent": agent,
            "turn": record.turns + 1,
        }

    @cached_property
    def on_tool(self) -> tuple[Hooks, ...]:
        """Those around tool calls."""
        return self.of("on_tool")

    @property
    def for_tools(self) -> "HookChain | None":
        """The chain, if any of its hooks surrounds tool calls; else None, and calls run as without hooks."""
        return self if self.on_tool else None

    @cached_property
    def on_model(self) -> tuple[Hooks, ...]:
        """Those around model calls."""
        return self.of("on_model")

    @property
    def holds(self) -> bool:
        """Whether the pieces of answers are shown once the hooks have seen them."""
        return any(each.holds for each in self.on_model)

    def turn(self, inner: Callable[[HookedTurn], Awaitable[TurnEnd]]) -> Passage[HookedTurn, TurnEnd]:
        """Return the way of a turn; it raises AgentError if the turn is denied."""
        return Passage(self.of("on_turn"), "on_turn", TurnEnd, inner, _refused, _broken)

    async def model(
        self, request: HookedRequest, inner: Callable[[HookedRequest], Awaitable[ModelReply]]
    ) -> ModelReply:
        """Call a model within the hooks. Raises AgentError if it is denied, and what `inner` raises."""
        return await Passage(self.on_model, "on_model", ModelReply, inner, _refused, _broken).run(request)

    def call(
        self,
        inner: Callable[[HookedCall], Awaitable[ToolOutcome]],
        denied: Callable[[str, bool], ToolOutcome],
        *,
        given: Callable[[HookedCall], bool] | None,
    ) -> Passage[HookedCall, ToolOutcome]:
        """Return the way of a tool call, whose refusals are results."""

        def failed(name: str, told: str, begun: bool) -> ToolOutcome:  # noqa: FBT001 - it is called by place
            return denied(f"the hook {name} failed: {told}", begun)

        return Passage(self.on_tool, "on_tool", ToolOutcome, inner, denied, failed, given)

    async def summary(
        self, inner: Callable[[HookedCompaction], Awaitable[str]], messages: int, instructions: str | None
    ) -> str:
        """Have a summary written within the hooks. Raises AgentError if it is denied, and what `inner` raises."""
        hooks = self.of("on_compaction")
        value = HookedCompaction(**self.place, messages=messages, instructions=instructions)
        return await Passage(hooks, "on_compaction", str, inner, _refused, _broken).run(value)


def _refused(reason: str, _begun: bool) -> NoReturn:  # noqa: FBT001 - it is called by place
    raise AgentError(f"denied: {reason}", cause="denied")


def _broken(name: str, told: str, _begun: bool) -> NoReturn:  # noqa: FBT001 - it is called by place
    raise AgentError(f"the hook {name} failed: {told}", cause="hook", details={"hook": name})


@define(eq=False)
class HeldPieces:
    """Publishes the events of a model call, and holds the pieces of the answer back until hooks have seen it whole.

    Attributes:
        emit: publishes an event.
    """

    emit: Callable[[Event], object]
    _held: list[Event] = attrs.field(factory=list)

    def __call__(self, event: Event) -> None:
        """Publish an event, or hold it back."""
        if isinstance(event, TextDelta | ReasoningDelta):
            self._held.append(event)
        else:
            self.emit(event)

    def show(self, said: ModelReply | None, shown: ModelReply) -> None:
        """Publish the pieces of an answer that the hooks have left as it was; else the text that they made of it."""
        if said is not None and said.message is shown.message:
            for each in self._held:
                self.emit(each)
        elif text := shown.message.text:
            self.emit(TextDelta(text))
        self._held.clear()
