"""The functions of an asyncio program, made so that trio can call them: they run on the program's loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import Any, cast

import attrs
import trio

from warren.actors.io.asyncio_loop import on_trio, run_on
from warren.agents.agent import Agent, Instruct
from warren.agents.hooks import Hooks
from warren.base.values import define, frozen
from warren.conversation.memory import Embedder
from warren.conversation.views import SessionView
from warren.models.model import Emitted, ModelReply, ModelRequest, Provider
from warren.models.tools import Tool


@frozen
class OnLoop:
    """An async function of a program, which trio calls and which runs on the program's loop.

    Two of the same function are equal, as agents with equal tools are the same agent.
    """

    loop: asyncio.AbstractEventLoop
    function: Callable[..., Any]

    async def __call__(self, **arguments: Any) -> Any:
        """Run the function."""
        return await run_on(self.loop, self.function, arguments)


def tool_on(loop: asyncio.AbstractEventLoop, tool: Tool) -> Tool:
    """Return a tool that runs on a loop, if it is `async def` and not declared for trio; an agent's code runs there."""
    if tool.agent is not None:
        return attrs.evolve(tool, agent=agent_on(loop, tool.agent))
    if not tool.is_async or tool.loop == "trio":
        return tool
    return attrs.evolve(tool, call=OnLoop(loop, tool.call), loop="trio")


def agent_on(loop: asyncio.AbstractEventLoop, agent: Agent) -> Agent:
    """Return the same version of an agent, whose functions run on a loop."""
    tools = tuple(tool_on(loop, each) if isinstance(each, Tool) else each for each in agent.tools)
    model = tuple(each if isinstance(each, str) else provider_on(loop, each) for each in agent.model)
    changes: dict[str, Any] = {} if (tools, model) == (agent.tools, agent.model) else {"tools": tools, "model": model}
    if (agents := tuple(agent_on(loop, each) for each in agent.agents)) != agent.agents:
        changes["agents"] = agents
    if inspect.iscoroutinefunction(agent.instructions):
        changes["instructions"] = _instruct_on(loop, agent.instructions)
    if agent.hooks:
        changes["hooks"] = tuple(hook_on(loop, each) for each in agent.hooks)
    return agent.with_(**changes) if changes else agent


def hook_on(loop: asyncio.AbstractEventLoop, hook: Hooks) -> Hooks:
    """Return a hook whose methods run on a loop, unless its attribute `loop` is "trio"; its `go` goes back to trio."""
    if getattr(hook, "loop", None) == "trio" or not _is_hook(hook):
        return hook
    kind = type(hook)
    own = [name for name in vars(Hooks) if name.startswith("on_") and callable(getattr(Hooks, name))]
    body: dict[str, Any] = {name: getattr(hook, name) for name in ("timeout", "on_failure", "holds")}
    for name in own:
        if getattr(kind, name) is not getattr(Hooks, name):  # a method that is not overridden is not called
            body[name] = _method_on(loop, getattr(hook, name))
    # Failures and agents name the class of a hook.
    body |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return cast(Hooks, type(kind.__name__, (Hooks,), body)())


def _is_hook(value: object) -> bool:  # opening the runtime refuses what is none, by its name
    return isinstance(value, Hooks)


def _method_on(loop: asyncio.AbstractEventLoop, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def on_loop(_self: Hooks, about: object, *go: Callable[..., Awaitable[Any]]) -> object:
        return await run_on(loop, partial(method, about, *(partial(on_trio, each) for each in go)), {})

    return on_loop


def _instruct_on(loop: asyncio.AbstractEventLoop, made: Callable[[SessionView], Awaitable[str]]) -> Instruct:
    @wraps(made)  # its name is a part of the agent's version
    async def on_loop(view: SessionView) -> str:
        return cast(str, await run_on(loop, partial(made, view), {}))

    return on_loop


def provider_on(loop: asyncio.AbstractEventLoop, provider: Provider) -> Provider:
    """Return a provider that runs on a loop, unless its attribute `loop` is "trio"."""
    if getattr(provider, "loop", None) == "trio" or not callable(getattr(provider, "complete", None)):
        return provider
    # An agent shows the name of the class of its model, which is a part of its version.
    made = type(type(provider).__name__, (_ProviderOnLoop,), {})(loop, provider)
    return cast(Provider, made)


def embedder_on(loop: asyncio.AbstractEventLoop, embedder: Embedder) -> Embedder:
    """Return an embedder that runs on a loop, unless its attribute `loop` is "trio"."""
    return embedder if getattr(embedder, "loop", None) == "trio" else _EmbedderOnLoop(loop, embedder)


class _ProviderOnLoop:
    """A provider of a program, which runs on the program's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, provider: Provider) -> None:
        self._loop = loop
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def complete(self, request: ModelRequest, emit: Callable[[Emitted], None]) -> ModelReply:
        """Call the model on the loop; what it emits comes back in order, before the answer."""
        emitting = _Emitting(emit)
        files = attrs.evolve(request.files, read=partial(on_trio, request.files.read))
        asked = partial(self._provider.complete, attrs.evolve(request, files=files), emitting)
        reply = cast(ModelReply, await run_on(self._loop, asked, {}))
        if emitting.failure is not None:
            raise emitting.failure
        return reply


@define(eq=False)
class _Emitting:
    """The `emit` of a call on the loop: pieces are taken on trio, in order.

    Attributes:
        failure: the refusal of a piece; no later piece is taken.
    """

    emit: Callable[[Emitted], None]
    token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    failure: Exception | None = None

    def __call__(self, piece: Emitted) -> None:
        """Take a piece, on the loop."""
        self.token.run_sync_soon(self._take, piece)

    def _take(self, piece: Emitted) -> None:
        try:
            if self.failure is None:
                self.emit(piece)
        except Exception as exc:  # noqa: BLE001 - raised at the end of the call: here it would end trio
            self.failure = exc


class _EmbedderOnLoop:
    """An embedder of a program, which runs on the program's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, embedder: Embedder) -> None:
        self._loop = loop
        self._embedder = embedder

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return the vectors, which are made on the loop."""
        function = partial(self._embedder.embed, texts)
        return cast(Sequence[Sequence[float]], await run_on(self._loop, function, {}))
