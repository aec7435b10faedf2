"""`frozen`, `value` and `define`: attrs classes with one comparison and one representation for all of them.

Values that a host's code can share between tasks are `frozen`, so that a mistake in that code cannot change them under
another task. A value that stays inside the runtime, belongs to one call, or is an event, is a `value` instead: type
checkers refuse changes of it too, and to set a field of a frozen value takes about ten times the instructions, which
would be a tenth of a turn. A class whose instances change, as they have the state of something, is made by `define`.

attrs writes and compiles `__eq__`, `__hash__`, `__repr__` and `__init__` anew for each class, which is most of the time
that a class takes. A program imports hundreds of classes before its first line, so the first three methods are shared.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from attrs import define, frozen
    from attrs import frozen as value
else:

    def frozen(cls: type | None = None, /, *, eq: bool = True, **settings: Any) -> Any:
        """Make a class whose instances cannot change, as `attrs.frozen` does."""
        return _made(cls, _hash, eq=eq, frozen=True, on_setattr=None, field_transformer=_in_checked, **settings)

    def define(cls: type | None = None, /, *, eq: bool = True, **settings: Any) -> Any:
        """Make a class whose instances can change, as `attrs.define` does; they have a hash with `eq=False` only."""
        return _made(cls, None, eq=eq, **settings)

    def value(cls: type | None = None, /, *, eq: bool = True, **settings: Any) -> Any:
        """Make a class whose instances do not change, which nothing but the type checkers sees to."""
        if cls is None:
            return partial(value, eq=eq, **settings)
        if cls.__setattr__ is not object.__setattr__:  # of a frozen class that it extends
            cls.__setattr__, cls.__delattr__ = object.__setattr__, object.__delattr__
        return _made(cls, None, eq=eq, on_setattr=None, field_transformer=_in_checked, **settings)


__all__ = ["Checked", "check_of", "define", "frozen", "value"]

_KEYS: Final[dict[type, Callable[[Any], Any]]] = {}
"""A function for each class, made at its first comparison, that returns the compared fields of an instance."""
_CHECK: Final = "check"
"""Metadata of a field of a `Checked` class: its validator."""
Checks = tuple[Sequence["attrs.Attribute[Any]"], Sequence[Any], Callable[[Any], Sequence[Any]]]
"""The fields of a class that have validators, their defaults, and a function that returns their values."""
_CHECKS: Final[dict[type, Checks]] = {}


class Checked:
    """Base class of frozen classes with many optional fields: a field that is at its default is not checked.

    attrs would hold every field of every instance against its validator, and a request gives two fields of twenty.
    A subclass with an `__attrs_post_init__` of its own calls this one first.
    """

    __slots__ = ()

    def __attrs_post_init__(self) -> None:
        """Run the validators of the fields that are given, in the order of the fields."""
        cls = self.__class__
        fields, defaults, values_of = _CHECKS.get(cls) or _checks_of(cls)
        values = values_of(self)
        for field, given in compress(zip(fields, values, strict=True), map(is_not, values, defaults)):
            field.metadata[_CHECK](self, field, given)


def check_of(field: "attrs.Attribute[Any]") -> Callable[[Any, "attrs.Attribute[Any]", Any], Any] | None:
    """Return the validator of a field; None if it has none."""
    check: Callable[[Any, attrs.Attribute[Any], Any], Any] | None = field.metadata.get(_CHECK, field.validator)
    return check


def _in_checked(cls: type, fields: "list[attrs.Attribute[Any]]") -> "list[attrs.Attribute[Any]]":
    """Keep the validators of a `Checked` class from attrs."""
    if not issubclass(cls, Checked):
        return fields
    return [
        field
        if field.validator is None
        else field.evolve(validator=None, metadata={**field.metadata, _CHECK: field.validator})
        for field in fields
    ]


def _checks_of(cls: type) -> Checks:
    fields = [field for field in attrs.fields(cls) if _CHECK in field.metadata]
    values_of: Any = attrgetter(*[field.name for field in fields])  # of two fields at least, or it returns no tuple
    found = _CHECKS[cls] = fields, [field.default for field in fields], values_of
    return found


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
