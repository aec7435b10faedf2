"""`define`, which is `attrs.define` but for one thing: a class gets its `__init__` when somebody asks for it.

attrs writes the source of an `__init__` for each class and compiles it at once, which takes half of the time of a
class. A command imports hundreds of classes, and makes instances of a quarter of them. A class by this module has a
descriptor instead, which lets attrs do that at the first access, of `Class(...)` or of `Class.__init__`, and gives its
place to the function: from the second instance on, each costs what it costs with attrs.

attrs has no public way to put this off, so the module uses private names of attrs. It changes none of them, and so no
class of anybody else: it calls copies of two functions of attrs that find another builder of classes. If a release of
attrs has other names or another shape, as older ones have, `define` is `attrs.define`.
"""

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


def _lazy() -> Any:
    """Return `attrs.define` with a builder that defers `__init__`. Raises an error of any kind if attrs has changed."""
    from attr import _make, _next_gen  # noqa: PLC0415 - another release of attrs can lack these private modules

    make: Any = _make

    class Builder(make._ClassBuilder):  # type: ignore[misc] # noqa: SLF001 - see the module
        """The builder of one class, which lives until the `__init__` is compiled."""

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

    lazy = _copied(_next_gen.define, attrs=_copied(make.attrs, _ClassBuilder=Builder))
    _check(lazy)
    return lazy


def _copied(function: Any, **names: Any) -> Any:
    """Return a copy of a function that finds these values in place of those of its module."""
    found = {**function.__globals__, **names}
    copied = FunctionType(function.__code__, found, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _check(lazy: Any) -> None:
    """Make a class and an instance. Raises TypeError, or another error of attrs, if one of them is not as it should."""

    class Checked:
        number: int
        text: str = "text"

    cls = lazy(Checked, eq=False, repr=False)
    deferred = isinstance(cls.__dict__["__init__"], DeferredInit)
    made = cls(1)
    if not (
        deferred and isinstance(cls.__dict__["__init__"], FunctionType) and (made.number, made.text) == (1, "text")
    ):
        raise TypeError("attrs makes classes in another way")


if not TYPE_CHECKING:
    try:
        define = _lazy()
    except Exception:  # noqa: BLE001 - a release of attrs with another shape can fail in any way
        define = attrs.define
