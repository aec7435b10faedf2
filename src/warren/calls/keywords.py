"""Methods whose keywords are the fields of a value: the value has their names, types, defaults and checks."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.conversation.aliases import resolved
from warren.conversation.categories import Switches
from warren.conversation.peers import Peer

P = ParamSpec("P")
S = TypeVar("S")
V = TypeVar("V")
R = TypeVar("R")
_PARTS: Final[Mapping[str, type]] = {"overrides": Switches, "peer": Peer}
"""Options with parts that have an alias."""
_ITSELF: Final = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def made(cls: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V:
    """Return the value of these arguments. Raises InvalidParamsError that names the bad field if it refuses them."""
    try:
        return cls(*args, **kwargs)
    except FieldValueError as exc:
        raise exc.refusal() from None


def keywords_of(
    cls: Callable[P, V],
) -> Callable[[Callable[[S, V], Coroutine[Any, Any, R]]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]]:
    """Return a decorator for a method that takes a value: its callers give the arguments that the value is made of.

    Awaiting the call raises InvalidParamsError that names the bad field if the value refuses its arguments with
    FieldValueError. The call itself raises TypeError for arguments that the value does not have.
    """

    def decorate(
        method: Callable[[S, V], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            try:
                value = cls(*args, **kwargs)
            except FieldValueError as exc:
                return _refuse(exc.refusal())
            except TypeError:
                paths: Mapping[str, str] = getattr(cls, "ALIASES", {})
                if paths.keys().isdisjoint(kwargs):
                    raise
                try:
                    value = cls(*args, **_without_aliases(kwargs, paths))
                except InvalidParamsError as error:
                    return _refuse(error)
            return method(self, value)

        vars(call)["__wrapped__"] = _Undecorated(cls, method)  # `inspect.signature` looks there
        return call

    return decorate


def of_value(method: Callable[..., Coroutine[Any, Any, R]]) -> Callable[[Any], Coroutine[Any, Any, R]]:
    """Return a bound method that `keywords_of` has decorated as it takes the value, for callers that have made it."""
    itself, function = method.__self__, method.__func__  # type: ignore[attr-defined] # those of a bound method
    return partial(function.__wrapped__.__wrapped__, itself)


class _Undecorated:
    """A method before its decoration, with the signature of the decorated one.

    `help` and `inspect.signature` ask for it. The signature is made when they do: most programs never ask.
    """

    def __init__(self, cls: Callable[..., Any], method: Callable[..., Any]) -> None:
        self._cls = cls
        self.__wrapped__ = method

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self._cls)
        return signature.replace(
            parameters=[_ITSELF, *signature.parameters.values()],
            return_annotation=self.__wrapped__.__annotations__["return"],
        )


def _without_aliases(given: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return keywords under their own names. Raises InvalidParamsError that names the bad one."""
    from warren.conversation import codec  # noqa: PLC0415 - few callers use aliases

    parts = {paths[alias].partition(".")[0] for alias in given.keys() & paths.keys()} & _PARTS.keys()
    data = {**given, **{name: codec.to_data(given[name]) for name in parts & given.keys()}}
    try:
        found = resolved(data, paths)
        return {**found, **{name: codec.from_data(_PARTS[name], found[name], root=f"$.{name}") for name in parts}}
    except FieldValueError as exc:
        raise exc.refusal() from None


async def _refuse(error: InvalidParamsError) -> NoReturn:
    raise error from None
