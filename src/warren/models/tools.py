"""Python callables as tools. The name, the description, the schema and the argument check come from the function."""

import hashlib
import inspect
import json
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    Self,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import attrs
import msgspec

from warren.base.fields import OneOf, positive
from warren.base.principals import DEFAULT_TENANT, LOCAL
from warren.base.values import frozen
from warren.conversation.attachments import File, are_files
from warren.conversation.categories import Category, Decision
from warren.conversation.completion import TokenMaker
from warren.conversation.waits import WaitReason
from warren.models.arguments import unwrapped
from warren.structured.types import TypedShape, described, inlined, is_of_others

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")

Loop = Literal["trio", "asyncio"]
"""The library of the event loop that an async function is written for."""
Restart = Literal["replay", "ask", "report"]
"""What becomes of a call that ran when its process ended: see `tool`."""
RESTARTS: Final[tuple[Restart, ...]] = get_args(Restart)
LOOPS: Final[tuple[Loop, ...]] = get_args(Loop)
Asking = Callable[[Mapping[str, Any]], Awaitable[Decision | None]]
"""Asks the approver of a session's calls a question of a tool. None: there is no approver, or no answer in time."""
asking: Final[ContextVar[Asking | None]] = ContextVar("asking", default=None)
"""The function with which the tool call in this context can ask; None outside of a call."""
NOT_ANSWERED: Final = "nobody has answered"


@frozen
class ToolContext:
    """The call of a tool, as the tool itself can see it: in a parameter with this annotation, and by `current_call`.

    Attributes:
        session_id: the session.
        turn: the number of the turn in the session, from 1. A turn that another process goes on with keeps it.
        number: the number of the call in the turn, from 1.
        call_id: the model's id of the call, as events and messages have it.
        name: the name of the tool.
        args: the arguments, as the model has given them.
        prompt_key: the idempotency key of the prompt that began the turn; None if it has none.
        tenant: the tenant of the session.
        owner: the name of the principal that made the session.
    """

    session_id: str
    turn: int
    number: int
    call_id: str
    name: str
    args: Mapping[str, Any]
    prompt_key: str | None = None
    tenant: str = attrs.field(default=DEFAULT_TENANT, kw_only=True)
    owner: str = attrs.field(default=LOCAL.name, kw_only=True)
    _tokens: TokenMaker | None = attrs.field(default=None, repr=False, eq=False)

    @cached_property
    def key(self) -> str:
        """The idempotency key of the call: the same in each process that runs it.

        So it is for a call that is replayed, and if a turn that was lost is run again and makes the same call.

        It is made of the session, the turn, the number of the call, the tool and the arguments. If the prompt had a key
        of its own, this key stands for the turn. The model's own id has no part in it, because a model gives another
        one when it is asked again.
        """
        of_key = () if self.prompt_key is None else (self.prompt_key,)
        called = json.dumps([self.name, self.args, *of_key], sort_keys=True, default=str).encode()
        turn = "key" if of_key else self.turn
        return f"{self.session_id}:{turn}:{self.number}:{hashlib.sha256(called).hexdigest()[:16]}"

    def token(self, *, expires: float) -> str:
        """Return a completion token: whoever has it can give the result of this call, once, from anywhere.

        Send it to the service that does the work, and then return `ToolOutput.later(token)`: the turn waits for the
        result without a task. The service sends the result to `POST /complete/{token}` of a gateway, or anybody gives
        it by `SessionService.complete_tool`. It may be given before the tool returns.

        Each token of a call counts as the same one, in whichever process the call runs; one of them gives one result.
        Trap: the token is all that is asked for at `POST /complete/{token}`. Treat it as a password, and never log it.

        Args:
            expires: seconds for which it is good, a year (366 days) at most. Without a result by then the call fails.

        Raises:
            ValueError: if `expires` is not in this range, or if the model has given the call an id of thousands of
                characters.
            RuntimeError: if no token can be made just now, because the store could not be read.
        """
        if self._tokens is None:
            raise RuntimeError("no completion token can be made: the store, which has the key, could not be read")
        return self._tokens.make(self.session_id, self.call_id, self.key, expires)

    async def ask(self, question: str, **data: Any) -> Decision:
        """Ask a person a question while the tool works, and wait for the answer: it is listed as approvals are.

        The call goes on when somebody allows or denies, or when `limits.approval_timeout` is over. The answer is kept:
        a call that runs again after a crash gets it at once, if it asks the same thing. A tool that is a plain function
        calls `trio.from_thread.run(context.ask, question)`.

        Trap: the time limit of the tool goes on meanwhile.

        Args:
            question: the question, for the person.
            data: more that the person is to see, as JSON.

        Returns:
            The decision; one that does not allow, with the reason, if nobody answers in time or nobody can be asked.
        """
        ask = asking.get()
        decision = None if ask is None else await ask({"question": question, **data})
        return Decision(allow=False, reason=NOT_ANSWERED) if decision is None else decision


def _tuple(files: Sequence[File]) -> tuple[File, ...]:
    return tuple(files)


@frozen
class ToolOutput:
    """A result of a tool that is no text alone: it has files, such as an image of a chart, or it comes later.

    Attributes:
        text: the text for the model.
        files: the files, each given by its bytes; a model that does not take one is told of it by a note.
        token: the completion token of a result that comes later; None if this is the result.
    """

    text: str
    files: tuple[File, ...] = attrs.field(default=(), converter=_tuple, validator=are_files)
    token: str | None = attrs.field(default=None, repr=False, kw_only=True)

    @classmethod
    def later(cls, token: str) -> Self:
        """Return the word that the result comes from outside, under a token of `current_call().token`.

        The call waits until somebody gives the result, or until the token expires: then its result is an error. With a
        store it waits through restarts of the process.
        """
        return cls("", token=token)


@frozen
class Handed:
    """A result of a tool that has handed its work over to somebody else, who has the real result later.

    Attributes:
        handle: finds the work again, in whichever process; it is stored as JSON.
        told: the text for the model, which goes on without the result; None if it waits for that.
    """

    handle: Mapping[str, Any]
    told: str | None = None


@frozen
class Unfinished:
    """The answer of a `Remote` while the work goes on.

    Attributes:
        seconds: seconds after which it is to be asked again, at the earliest.
    """

    seconds: float


class Remote(Protocol):
    """Knows what becomes of the work that a tool has handed over. The handle is that of `Handed`."""

    @property
    def here(self) -> bool:
        """Whether this process alone can find the work again."""

    async def look(self, handle: Mapping[str, Any], /) -> Any:
        """Return the result as the tool would, or `Unfinished`. Raises ToolError if there will be no result.

        A look takes a moment, or as long as questions of the work have no answers. Cancellation ends the look alone:
        the work goes on.
        """

    def cancel(self, handle: Mapping[str, Any], /) -> None:
        """Have the work end: nobody wants its result any more. Never waits."""


@frozen
class Awaited:
    """What a call waits for once its tool has run: stored before the tool runs, so that an answer finds it.

    Attributes:
        reason: what the call waits for.
        data: what tells the answer from that to another call, as JSON.
        seconds: seconds for which it waits at most; None is no limit.
    """

    reason: WaitReason
    data: Mapping[str, Any]
    seconds: float | None = None


calling: Final[ContextVar[ToolContext | None]] = ContextVar("calling", default=None)
"""The tool call in this context; None outside of a call."""


def current_call() -> ToolContext:
    """Return the call that the calling tool works on. Raises RuntimeError outside of a call of a tool."""
    call = calling.get()
    if call is None:
        raise RuntimeError("no tool call runs in this context: ask inside of the tool")
    return call


MARK: Final = 8
"""Hexadecimal digits that tell names apart which would be alike."""
MAX_RESULT: Final = 100_000
"""Characters of a tool's result that the model gets; the rest is left out."""


def marked_name(name: str, own: str, longest: int) -> str:
    """Return a name of at most `longest` characters that is different for each `own`, and always the same for it."""
    digest = hashlib.sha256(own.encode(errors="surrogatepass")).hexdigest()[:MARK]
    return f"{name[: longest - MARK - 1]}_{digest}"


def bounded(text: str, limit: int = MAX_RESULT) -> str:
    """Cut a text that is too long, and add a note of it."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters are left out]"


@frozen
class ToolSpec:
    """The definition of a tool, as a model gets it.

    Attributes:
        name: the name that the model calls.
        description: the purpose of the tool, for the model.
        input_schema: JSON schema of the arguments, an object.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]


class ToolError(Exception):
    """Raise it in a tool to answer the model with an error that has exactly this text."""


class ClientGoneError(ToolError):
    """The client that runs the tool is not connected: the call waits for it in a durable turn, and fails in others."""


class ToolArgumentsError(Exception):
    """The model's arguments do not fit the tool's signature."""


NO_WORDS: Final = "the tool failed and did not say why"
FOR_ASYNCIO: Final = (
    'This tool needs a loop of asyncio: make it an `async def` with @tool(loop="asyncio"), or open the runtime with '
    "warren.aio.open_supervisor in a program on asyncio"
)
_OF_ASYNCIO: Final = ("no running event loop", "no current event loop", "library written for some other framework")
"""Messages of asyncio outside its loop, and of trio to a coroutine that awaits something of asyncio."""


def failure_text(failure: BaseException) -> str:
    """Return the text that the model gets for a tool that has failed with an exception."""
    try:
        text = str(failure)
    except Exception as exc:  # noqa: BLE001 - it may be of a host's own class
        text = f"its text cannot be made: {type(exc).__name__}"
    match failure:
        case ToolError():
            return text if text.strip() else NO_WORDS
        case ToolArgumentsError():
            return f"bad arguments: {text}"
        case RuntimeError() | TypeError() if any(sign in text for sign in _OF_ASYNCIO):
            return f"{type(failure).__name__}: {text}. {FOR_ASYNCIO}"
    return f"{type(failure).__name__}: {text}"


@frozen
class Tool(Generic[P, R]):
    """A tool that a session can be given. Calling it calls its function, as a unit test does.

    Attributes:
        spec: the definition for the model.
        call: runs the tool with checked arguments. A sync callable runs in a worker thread.
        is_async: whether `call` returns an awaitable.
        timeout: seconds that a call may take; None takes the runtime's limit.
        category: the kind of the tool, by which switches offer it and gates let its calls wait for approval.
        tenant: the tenant whose sessions may be offered it; None for those of all tenants.
        polls: whether the model may call it again and again until its result is another one, as it waits for something.
        of_client: whether a client of the runtime has brought it: the metrics name it once a call of it has completed.
        restart: what becomes of a call that ran when the process ended, see `tool`.
        background: whether calls run beyond their turn, see `tool`. Then `timeout` None is no limit.
        remote: has the results of calls that return `Handed`; None if none does.
        awaits: returns what a call waits for once it has run without an error, None if its result is that of the run;
            None if no call waits.
        context: the parameter of `call` that gets the context of the call; None if none does.
        loop: the library that an async `call` is written for, see `tool`; None is that of the program.
        agent: the `warren.Agent` that does the work of each call, in a session of its own; None for other tools.
    """

    spec: ToolSpec
    call: Callable[P, R]
    is_async: bool
    timeout: float | None = attrs.field(default=None, validator=positive)
    category: Category = "callback"
    _arguments: "Arguments | None" = attrs.field(default=None, repr=False, eq=False)
    tenant: str | None = None
    polls: bool = False
    of_client: bool = False
    restart: Restart = attrs.field(default="report", validator=OneOf(RESTARTS))
    background: bool = False
    remote: Remote | None = attrs.field(default=None, repr=False)
    awaits: Callable[[ToolContext], Awaited | None] | None = attrs.field(default=None, repr=False)
    context: str | None = None
    loop: Loop | None = attrs.field(default=None, validator=attrs.validators.optional(OneOf(LOOPS)))
    agent: Any = attrs.field(default=None, repr=False)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function of the tool, with its own arguments and its own result; nothing of a session is needed."""
        return self.call(*args, **kwargs)

    def in_context(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return bound arguments with the context of this call, if the tool asks for it.

        Raises RuntimeError where no call of the runtime runs, as in a tool that a client of a server runs.
        """
        return bound if self.context is None else {**bound, self.context: current_call()}

    def bind(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's arguments as checked keyword arguments for `call`.

        A list or an object that was given as a text with its JSON counts as such, if a text would not fit.

        Raises:
            ToolArgumentsError: if they do not fit; the message names the bad field.
        """
        if self._arguments is None:
            return dict(unwrapped(args, self.spec.input_schema))
        try:
            return self._arguments.made(args)
        except ValueError as exc:
            if (found := unwrapped(args, self.spec.input_schema)) is not args:
                return self.bind(found)
            raise ToolArgumentsError(str(exc)) from exc


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    category: Category = "callback",
    polls: bool = False,
    restart: Restart = "report",
    background: bool = False,
    loop: Loop | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    category: Category = "callback",
    polls: bool = False,
    restart: Restart = "report",
    background: bool = False,
    loop: Loop | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async. Use it as a decorator, with or without arguments.

    Every parameter needs an annotation; `Annotated[int, "the number of lines"]` describes it to the model. Arguments
    that a partial has bound are hidden from the model. The result goes to the model as text: a str unchanged, anything
    else as JSON. A raised exception becomes an error result with its text. A parameter annotated `ToolContext` gets the
    context of the call, and the model does not see it.

    A function without a docstring, made a tool without a description, is a warning.

    Trap: a sync function runs in a thread. Interrupting the turn ends the wait for it, but cannot stop it.

    Args:
        function: the function, a method, or a partial of one.
        name: the name for the model; None takes the function's name.
        description: the description for the model; None takes the docstring.
        timeout: seconds that a call may take; None takes the runtime's limit.
        category: the kind of the tool, see `warren.conversation.categories`.
        polls: whether the model may call it again and again until its result is another one. A turn that repeats a call
            of another tool with the same result ends, by `limits.repeated_calls`.
        restart: what becomes of a call that ran when the process ended, once another process goes on with the turn.
            `replay` runs it again, with the same `current_call().key`: for a tool that changes nothing, or does its
            work once for each key. `ask` lets a person decide, by an approval that says that the call may have run.
            `report` runs nothing: the model is told that the process ended during the call, and that its effect is
            unknown. A call whose result was stored never runs again, whatever its tool says.
        background: whether calls run in the background: the model gets the id of the call at once and goes on, also
            beyond the turn. The result becomes an input of the session, with the source `background`: it enters the
            running turn, or begins one. Without a `timeout` such a call has no time limit. If its process ends,
            `restart` says what becomes of it in the next one.
        loop: the library that an async function is written for: `trio`, which anyio is fine on, or `asyncio`. None is
            that of the program: trio under `warren.open_supervisor`, and under `warren.aio.open_supervisor` asyncio,
            on the program's own loop. In a program on trio, functions for asyncio share a loop in a thread.

    Raises:
        TypeError: if the signature cannot be described; the message names the parameter.
        ValueError: if `restart` or `loop` is none of the values above.
    """

    def build(target: Callable[..., Any]) -> Tool:
        function = target.func if isinstance(target, partial) else target
        if not inspect.isroutine(function):
            raise TypeError(f"tool {target!r}: must be a function, a method or a partial of one")
        arguments, context = _parameters_of(target, function)
        text = description if description is not None else inspect.getdoc(function) or ""
        spec = ToolSpec(name or function.__name__, text, arguments.schema())
        if not text and description is None:
            problem = f"tool {spec.name} has no docstring: the model is not told what it does"
            warnings.warn(problem, stacklevel=2 if of_decorator else 3)
        is_async = inspect.iscoroutinefunction(target)
        return Tool(
            spec,
            target,
            is_async,
            timeout,
            category,
            arguments,
            polls=polls,
            restart=restart,
            background=background,
            context=context,
            loop=loop,
        )

    of_decorator = function is None
    return build if function is None else build(function)


@frozen
class Arguments:
    """The parameters of a function, as a model gives them.

    Attributes:
        form: a struct with a field for each of them, which checks their values.
        shapes: how those are described and made that msgspec alone cannot make; any value passes for them in `form`.
    """

    form: type[msgspec.Struct]
    shapes: Mapping[str, TypedShape[Any]]

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments, an object."""
        schema = inlined(msgspec.json.schema(self.form))
        for name, shape in self.shapes.items():
            own = dict(shape.schema)
            for title, each in own.pop("$defs", {}).items():
                if schema.setdefault("$defs", {}).setdefault(title, each) != each:
                    raise TypeError(f"parameter {name!r} cannot be described: two classes are named {title}")
            schema["properties"][name] = own | schema["properties"][name]
        return schema

    def made(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the parameters. Raises ValueError, whose text names the bad one."""
        try:
            bound = msgspec.convert(dict(args), self.form)
        except msgspec.ValidationError as exc:
            raise ValueError(str(exc)) from exc
        values = {name: getattr(bound, name) for name in bound.__struct_fields__}
        for name, shape in self.shapes.items():
            if name in args:
                try:
                    values[name] = shape.decode(args[name])
                except ValueError as exc:
                    raise ValueError(f"`$.{name}`: {exc}") from exc
        return values


def _parameters_of(target: Callable[..., Any], function: Callable[..., Any]) -> tuple[Arguments, str | None]:
    """Return the parameters that the model gives, and the name of the one for the context of the call."""
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(target).parameters.values()
    except (NameError, ValueError, TypeError) as exc:
        raise TypeError(f"tool {function.__name__}: its signature cannot be read: {exc}") from exc
    bound = target.keywords if isinstance(target, partial) else {}
    fields, shapes, context = [], dict[str, TypedShape[Any]](), None
    for parameter in parameters:
        if parameter.name in bound:
            continue
        try:
            if hints.get(parameter.name) is ToolContext:
                _check_kind(parameter)
                if context is not None:
                    raise TypeError("is a second ToolContext")  # noqa: TRY301 - the text goes on behind the name
                context = parameter.name
                continue
            field, shape = _field(parameter, hints)
        except TypeError as exc:
            raise TypeError(f"tool {function.__name__}: parameter {parameter.name!r} {exc}") from exc
        fields.append(field)
        if shape is not None:
            shapes[parameter.name] = shape
    form = msgspec.defstruct(function.__name__, fields, forbid_unknown_fields=True, kw_only=True)
    return Arguments(form, shapes), context


def _check_kind(parameter: inspect.Parameter) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError("must be a parameter that can be passed by name")


def _field(
    parameter: inspect.Parameter, hints: Mapping[str, Any]
) -> tuple[tuple[str, Any, Any], TypedShape[Any] | None]:
    """Return a parameter as the field of a struct, and its shape if msgspec alone cannot describe it.

    Raises TypeError; its text continues after the parameter's name.
    """
    _check_kind(parameter)
    if parameter.name not in hints:
        raise TypeError("has no annotation")
    default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
    base, notes = _noted(hints[parameter.name])
    field = (parameter.name, Annotated[(base, *notes)] if notes else base, default)
    try:
        msgspec.json.schema(msgspec.defstruct("Argument", [field]))
    except TypeError as exc:
        if not is_of_others(base):
            raise TypeError(f"cannot be described: {exc}") from exc
        return (parameter.name, Annotated[(Any, *notes)] if notes else Any, default), _shape_of(base)
    return field, None


def _shape_of(annotation: Any) -> TypedShape[Any]:
    try:
        return described(annotation)
    except TypeError as exc:
        raise TypeError(f"is bad: {exc}") from exc


def _noted(annotation: Any) -> tuple[Any, list[Any]]:
    """Return what `Annotated[T, "text"]` describes, and the form from which msgspec takes the text for the schema."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    base, *extras = get_args(annotation)
    return base, [msgspec.Meta(description=extra) if isinstance(extra, str) else extra for extra in extras]
