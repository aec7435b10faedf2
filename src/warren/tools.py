"""Python callables as tools: a typed function gives the name, the description, the schema and the argument check."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints, overload

import attrs
import msgspec


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
    """

    spec: ToolSpec
    call: Callable[..., Any] | Callable[..., Awaitable[Any]]
    is_async: bool
    timeout: float | None = None
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
    *, name: str | None = None, description: str | None = None, timeout: float | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async.

    Every parameter needs an annotation; `Annotated[int, "how many"]` describes it. The docstring is the description.
    The result is sent to the model as text: a str as it is, anything else as JSON. A raised exception becomes an
    error result with its text. `timeout` is in seconds. Raises TypeError where the signature cannot be described.

    Trap: a sync function runs in a thread; interrupting the turn stops waiting for it but cannot stop it.
    """

    def build(target: Callable[..., Any]) -> Tool:
        arguments = _arguments_type(target)
        schema = msgspec.json.schema(arguments)
        reference = schema.pop("$ref").removeprefix("#/$defs/")
        definitions = schema.pop("$defs")
        input_schema = definitions.pop(reference) | ({"$defs": definitions} if definitions else {})
        input_schema.pop("title", None)
        text = description if description is not None else inspect.getdoc(target) or ""
        spec = ToolSpec(name or target.__name__, text, input_schema)
        return Tool(spec, target, inspect.iscoroutinefunction(target), timeout, arguments)

    return build if function is None else build(function)


def _arguments_type(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Return a struct type with one field a parameter: it checks the arguments and has their schema."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {function.__name__}: parameter {parameter.name!r} must be a plain named one")
        if parameter.name not in hints:
            raise TypeError(f"tool {function.__name__}: parameter {parameter.name!r} has no annotation")
        annotation = _described(hints[parameter.name])
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, parameter.default))
    return msgspec.defstruct(function.__name__, fields, forbid_unknown_fields=True, kw_only=True)


def _described(annotation: Any) -> Any:
    """Turn `Annotated[T, "text"]` into the form whose text lands in the schema."""
    if get_origin(annotation) is not Annotated:
        return annotation
    base, *extras = get_args(annotation)
    notes = [msgspec.Meta(description=extra) if isinstance(extra, str) else extra for extra in extras]
    return Annotated[(base, *notes)]
