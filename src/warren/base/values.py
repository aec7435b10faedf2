"""`frozen`, `value` and `define`: attrs classes with one comparison and one representation for all of them.

Values that a host's code can share between tasks are `frozen`, so that a mistake in that code cannot change them under
another task. A value that stays inside the runtime, or is an event, is a `value` instead: the type checkers of
this project see all code that holds it, and freezing it at run time would cost about a tenth of a turn. A class whose
instances change, as they have the state of something, is made by `define`.

attrs writes and compiles `__eq__`, `__hash__`, `__repr__` and `__init__` anew for each class, which is most of the time
that a class takes. A program imports hundreds of classes before its first line, so the first three methods are shared.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from attrs import define, frozen
    from attrs import frozen as value
else:

    def frozen(cls: type | None = None, /, *, eq: bool = True, **settings: Any) -> Any:
        """Make a class whose instances cannot change, as `attrs.frozen` does."""
        return _made(cls, _hash, eq=eq, frozen=True, on_setattr=None, **settings)

    def define(cls: type | None = None, /, *, eq: bool = True, **settings: Any) -> Any:
        """Make a class whose instances can change, as `attrs.define` does; they have a hash with `eq=False` only."""
        return _made(cls, None, eq=eq, **settings)

    value = define


__all__ = ["define", "frozen", "value"]

_KEYS: Final[dict[type, Callable[[Any], Any]]] = {}
"""A function for each class, made at its first comparison, that returns the compared fields of an instance."""


def _made(cls: type | None, hashed: Callable[[Any], int] | None, *, eq: bool, **settings: Any) -> Any:
    def decorate(plain: type) -> type:
        methods = {"__repr__": _repr} | ({"__eq__": _equal, "__hash__": hashed} if eq else {})
        missing = {name: method for name, method in methods.items() if name not in plain.__dict__}
        made: type = attrs.define(plain, eq=False, repr=False, **settings)
        for name, method in missing.items():
            setattr(made, name, method)
        return made

    return decorate if cls is None else decorate(cls)


def _key_of(cls: type) -> Callable[[Any], Any]:
    names = [field.name for field in attrs.fields(cls) if field.eq]
    key = _KEYS[cls] = attrgetter(*names) if names else lambda _: ()
    return key


def _equal(self: Any, other: object) -> Any:
    cls = self.__class__
    if other.__class__ is not cls:
        return NotImplemented
    key = _KEYS.get(cls) or _key_of(cls)
    return key(self) == key(other)


def _hash(self: Any) -> int:
    cls = self.__class__
    return hash((_KEYS.get(cls) or _key_of(cls))(self))


def _repr(self: Any) -> str:
    cls = self.__class__
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(cls) if field.repr]
    return f"{cls.__qualname__.rpartition('>.')[2]}({', '.join(shown)})"
