"""Python callables as tools: a typed function gives the name, the description, the schema and the argument check."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints, overload

import attrs
import msgspec

from warren.categories import Category, Decision
from warren.fields import positive

Asking = Callable[[Mapping[str, Any]], Awaitable[Decision | None]]
"""Asks whoever approves the calls of a session a question of a tool; None if there is nobody, or no answer in time."""
asking: Final[ContextVar[Asking | None]] = ContextVar("asking", default=None)
"""The way for the tool call that runs in this context to ask; None outside of a call."""


@attrs.frozen
class ToolSpec:
    """What a model is told of a tool.

    Attributes:
        name: what the model calls.
        description: what it is for.
        input_schema: JSON schema of the arguments, an object.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]


class ToolError(Exception):
    """Raised by a tool to answer the model with an error whose text is this one's alone."""


class ToolArgumentsError(Exception):
    """The model's arguments do not fit the tool's signature."""


@attrs.frozen
class Tool:
    """A tool that a session can be given.

    Attributes:
        spec: what the model is told.
        call: runs it with checked arguments; sync callables run in a worker thread.
        is_async: whether `call` returns an awaitable.
        timeout: seconds until it is given up; None takes the runtime's limit.
        category: what kind it is, for those who switch kinds on and off, or want to be asked before one runs.
    """

    spec: ToolSpec
    call: Callable[..., Any] | Callable[..., Awaitable[Any]]
    is_async: bool
    timeout: float | None = attrs.field(default=None, validator=positive)
    category: Category = "callback"
    _arguments: Any = attrs.field(default=None, repr=False, eq=False)

    def bind(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments for `call`; raises ToolArgumentsError that names the bad field."""
        if self._arguments is None:
            return dict(args)
        try:
            bound = msgspec.convert(dict(args), self._arguments)
        except msgspec.ValidationError as exc:
            raise ToolArgumentsError(str(exc)) from exc
        return {name: getattr(bound, name) for name in bound.__struct_fields__}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    category: Category = "callback",
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    category: Category = "callback",
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async.

    Every parameter needs an annotation; `Annotated[int, "how many"]` describes it. The docstring is the description.
    What a partial has bound is hidden from the model. The result is sent to the model as text: a str as it is, anything
    else as JSON. A raised exception becomes an error result with its text. `timeout` is in seconds. Raises TypeError
    that names the parameter where the signature cannot be described.

    Trap: a sync function runs in a thread; interrupting the turn stops waiting for it but cannot stop it.
    """

    def build(target: Callable[..., Any]) -> Tool:
        function = target.func if isinstance(target, partial) else target
        if not inspect.isroutine(function):
            raise TypeError(f"tool {target!r}: must be a function, a method or a partial of one")
        arguments = _arguments_type(target, function)
        text = description if description is not None else inspect.getdoc(function) or ""
        spec = ToolSpec(name or function.__name__, text, _input_schema(arguments))
        return Tool(spec, target, inspect.iscoroutinefunction(target), timeout, category, arguments)

    return build if function is None else build(function)


def _input_schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    schema = msgspec.json.schema(arguments)
    definitions = schema["$defs"]
    own: dict[str, Any] = definitions.pop(schema["$ref"].removeprefix("#/$defs/"))
    own.pop("title", None)
    return own | ({"$defs": definitions} if definitions else {})


def _arguments_type(target: Callable[..., Any], function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Return a struct type with one field a parameter: it checks the arguments and has their schema."""
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(target).parameters.values()
    except (NameError, ValueError, TypeError) as exc:
        raise TypeError(f"tool {function.__name__}: its signature cannot be read: {exc}") from exc
    bound = target.keywords if isinstance(target, partial) else {}
    fields = []
    for parameter in parameters:
        if parameter.name not in bound:
            try:
                fields.append(_field(parameter, hints))
            except TypeError as exc:
                raise TypeError(f"tool {function.__name__}: parameter {parameter.name!r} {exc}") from exc
    return msgspec.defstruct(function.__name__, fields, forbid_unknown_fields=True, kw_only=True)


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Return a parameter as the field of a struct. Raises TypeError that goes on from the parameter's name."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError("must be a plain named one")
    if parameter.name not in hints:
        raise TypeError("has no annotation")
    default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
    field = (parameter.name, _described(hints[parameter.name]), default)
    try:
        msgspec.json.schema(msgspec.defstruct("Argument", [field]))
    except TypeError as exc:
        raise TypeError(f"cannot be described: {exc}") from exc
    return field


def _described(annotation: Any) -> Any:
    """Turn `Annotated[T, "text"]` into the form whose text lands in the schema."""
    if get_origin(annotation) is not Annotated:
        return annotation
    base, *extras = get_args(annotation)
    notes = [msgspec.Meta(description=extra) if isinstance(extra, str) else extra for extra in extras]
    return Annotated[(base, *notes)]
