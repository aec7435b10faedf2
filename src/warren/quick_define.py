"""`define`, which is `attrs.define` with less work for each class: programs import hundreds before their first line.

- A class gets its `__init__` when somebody asks for it. attrs writes the source of an `__init__` and compiles it at
  once, which takes half of the time of a class, and a command makes instances of a quarter of its classes. A class by
  this module has a descriptor instead, which lets attrs do that at the first access, of `Class(...)` or of
  `Class.__init__`, and gives its place to the function: from the second instance on, each costs what it costs with
  attrs.
- The tuples of the fields of classes share a class. attrs makes one for each, which takes a tenth of the time of the
  class itself, and a kilobyte or two.

attrs has no public way to have it so, so the module uses private names of attrs. It changes none of them, and so no
class of anybody else: it calls copies of functions of attrs that find another builder of classes. If a release of
attrs has other names or another shape, as older ones have, `define` is `attrs.define`.
"""

from collections.abc import Sequence
from threading import RLock
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from attrs import define

__all__ = ["define"]

_COMPILING: Final = RLock()
"""Held while an `__init__` is compiled. It is reentrant: a finalizer can make the first instance of another class."""


class DeferredInit:
    """The `__init__` of a class until its first access, which compiles it and puts the function into the class."""

    __slots__ = ("_builder",)

    def __init__(self, builder: Any) -> None:
        """Take the builder of the class, which has the method `compiled_init`."""
        self._builder = builder

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """Return the compiled `__init__`, bound as a function is."""
        cls = type(instance) if owner is None else owner
        with _COMPILING:
            function = self._builder.compiled_init()
            for holder in cls.__mro__:
                if holder.__dict__.get("__init__") is self:
                    type.__setattr__(holder, "__init__", function)
        return function.__get__(instance, cls)


class Fields(tuple["attrs.Attribute[Any]", ...]):
    """The fields of a class, which are also attributes by their names."""

    __slots__ = ()

    def __getattr__(self, name: str) -> "attrs.Attribute[Any]":
        """Return the field with a name."""
        for field in self:
            if field.name == name:
                return field
        raise AttributeError(f"there is no field {name!r}", name=name, obj=self)


_OF_TUPLES: Final = frozenset(dir(tuple))


def _quick() -> Any:
    """Return `attrs.define` with another builder. Raises an error of any kind if attrs has changed."""
    from attr import _make, _next_gen  # noqa: PLC0415 - another release of attrs can lack these private modules

    make: Any = vars(_make)
    tuple_class, base = make["_make_attr_tuple_class"], make["_ClassBuilder"]

    def class_of(name: str, names: Sequence[str]) -> type:
        found: type = Fields if _OF_TUPLES.isdisjoint(names) else tuple_class(name, names)
        return found

    class Builder(base):  # type: ignore[misc, valid-type] # the types of attrs leave it out
        """The builder of one class, which lives until the `__init__` is compiled."""

        __init__ = _copied(
            base.__init__, _transform_attrs=_copied(make["_transform_attrs"], _make_attr_tuple_class=class_of)
        )
        _cls: type
        _cls_dict: dict[str, Any]
        _script_snippets: list[Any]

        def add_init(self) -> "Builder":
            self._cls_dict["__init__"] = DeferredInit(self)
            return self

        def _eval_snippets(self) -> None:
            if self._script_snippets:  # the sources of other methods
                super()._eval_snippets()

        def build_class(self) -> type:
            made: type = super().build_class()
            # A reference to the class before its slots would keep it among the subclasses of its base.
            self._cls, self._cls_dict, self._script_snippets = made, {}, []
            return made

        def compiled_init(self) -> Any:
            if "__init__" not in self._cls_dict:
                super().add_init()
                super()._eval_snippets()
            return self._cls_dict["__init__"]

    quick = _copied(_next_gen.define, attrs=_copied(make["attrs"], _ClassBuilder=Builder))
    _check(quick)
    return quick


def _copied(function: Any, **names: Any) -> Any:
    """Return a copy of a function that finds these values in place of those of its module."""
    found = {**function.__globals__, **names}
    copied = FunctionType(function.__code__, found, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _check(quick: Any) -> None:
    """Make a class and an instance. Raises TypeError, or another error of attrs, if one of them is not as it should."""

    class Checked:
        number: int
        text: str = "text"

    cls = quick(Checked, eq=False, repr=False)
    deferred, fields, made = vars(cls)["__init__"], attrs.fields(cls), cls(1)
    kinds = (type(deferred), type(vars(cls)["__init__"]), type(fields))
    if kinds != (DeferredInit, FunctionType, Fields) or (made.number, made.text) != (1, fields.text.default):
        raise TypeError("attrs makes classes in another way")


if not TYPE_CHECKING:
    try:
        define = _quick()
    except Exception:  # noqa: BLE001 - a release of attrs with another shape can fail in any way
        define = attrs.define
