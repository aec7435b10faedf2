"""The classes of `warren.quick_define` beside those of attrs."""

import copy
import gc
import inspect
import pickle
import subprocess
import sys
import threading
import traceback
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import attrs
import cattrs
import pytest

from warren import quick_define
from warren.quick_define import DeferredInit

Define = Callable[..., Any]
BOTH: Final[list[Define]] = [attrs.define, quick_define.define]
both: Final = pytest.mark.parametrize("define", BOTH, ids=["attrs", "quick"])


@attrs.frozen
class Part:
    """A value for fields."""

    number: int


@quick_define.define
class Moved:
    """A value that is pickled."""

    part: Part
    texts: list[str] = attrs.field(factory=list)


def made(define: Define, **settings: Any) -> Any:
    """Make a class with fields of several kinds, which no code has used yet."""

    class Value:
        number: int = attrs.field(validator=attrs.validators.instance_of(int))
        text: str = attrs.field(default="text", converter=str)
        parts: list[Part] = attrs.field(factory=list, kw_only=True)
        _hidden: "Part | None" = None
        total: int = attrs.field(init=False)

        def __attrs_post_init__(self) -> None:
            object.__setattr__(self, "total", self.number + 1)

    return define(Value, **settings)


def init_of(cls: Any) -> object:
    """Return the `__init__` of a class without an access that compiles it."""
    return vars(cls)["__init__"]


def test_the_first_instance_compiles_init() -> None:
    """Before it the class has a descriptor, after it the function that attrs makes, and keeps that one."""
    cls = made(quick_define.define)
    assert isinstance(init_of(cls), DeferredInit)
    cls(1)
    function = init_of(cls)
    assert isinstance(function, FunctionType)
    assert cls(2).total == 3
    assert init_of(cls) is function


@both
@pytest.mark.parametrize("settings", [{}, {"frozen": True, "on_setattr": None}, {"slots": False}], ids=str)
def test_an_instance_is_as_with_attrs(define: Define, settings: dict[str, Any]) -> None:
    """Validators, converters, factories, aliases and `__attrs_post_init__` run, for each kind of class."""
    cls = made(define, **settings)
    one = cls(1, 2, hidden=Part(3), parts=[Part(4)])
    assert (one.number, one.text, one._hidden, one.parts, one.total) == (1, "2", Part(3), [Part(4)], 2)
    assert cls(1).parts is not cls(1).parts
    with pytest.raises(TypeError, match="'number' must be <class 'int'>"):
        cls("1")


@pytest.mark.parametrize("arguments", [((), {}), ((1, 2, 3, 4), {}), ((1,), {"other": 1})], ids=str)
def test_wrong_arguments_are_refused_as_with_attrs(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """The first instance of a class that gets wrong arguments raises the error that any later one does."""
    args, kwargs = arguments
    told = []
    for define in BOTH:
        cls = made(define)
        for _ in range(2):
            with pytest.raises(TypeError) as caught:
                cls(*args, **kwargs)
            told.append((str(caught.value), len(traceback.extract_tb(caught.tb))))
    assert len(set(told)) == 1


def test_a_signature_is_as_with_attrs() -> None:
    """It can be asked for before there is an instance, of the class and of the method, with annotations and names."""
    of_attrs, quick = made(attrs.define), made(quick_define.define)
    assert inspect.signature(quick) == inspect.signature(of_attrs)
    for ask in (inspect.signature, typing.get_type_hints, inspect.getdoc, inspect.getsource):
        assert ask(made(quick_define.define).__init__) == ask(made(attrs.define).__init__)
    for name in ("__annotations__", "__doc__", "__module__", "__name__", "__qualname__"):
        assert getattr(made(quick_define.define).__init__, name) == getattr(of_attrs.__init__, name)


def test_a_debugger_finds_the_source() -> None:
    """A frame within `__init__` has its line, which tracebacks show."""
    with pytest.raises(TypeError) as caught:
        made(quick_define.define)("1")
    lines = [frame.line for frame in traceback.extract_tb(caught.tb) if "attrs generated" in frame.filename]
    assert lines == ["__attr_validator_number(self, __attr_number, self.number)"]


@both
def test_classes_below_it(define: Define) -> None:
    """A class below it takes its `__init__` or has one of its own, and the first use of one leaves the others alone."""
    base: Any = made(define)
    heir: Any = type("Heir", (base,), {})

    class Own(base):  # type: ignore[misc] # a base of any type
        def __init__(self, number: int) -> None:
            super().__init__(number * 2)

    class More(base):  # type: ignore[misc] # as above
        more: int = 0

    more = define(More)
    assert (more(1, more=5).more, more(1).total) == (5, 2)
    assert isinstance(init_of(base), DeferredInit) is (define is quick_define.define)
    assert (Own(4).number, heir(4).number, base(4).number) == (8, 4, 4)
    assert isinstance(init_of(base), FunctionType)
    assert "__init__" not in vars(heir)


@both
def test_an_init_of_its_own(define: Define) -> None:
    """A class with an `__init__` keeps it, and `__attrs_init__` sets the fields."""

    class Doubled:
        number: int

        def __init__(self, number: int) -> None:
            self.__attrs_init__(number * 2)  # type: ignore[attr-defined] # attrs writes it

    assert define(Doubled)(2).number == 4


@both
def test_an_error_with_fields(define: Define) -> None:
    """The class can be an exception."""

    class Failed(Exception):  # noqa: N818 - a name in a test
        reason: str

    error = define(Failed)("because")
    assert (error.reason, error.args) == ("because", ("because",))


def test_other_ways_to_an_instance() -> None:
    """Pickles, copies, changed values, fields and cattrs work with a class that has no instance yet."""
    cls = made(quick_define.define)
    assert [field.name for field in attrs.fields(cls)] == ["number", "text", "parts", "_hidden", "total"]
    assert isinstance(init_of(cls), DeferredInit)
    assert cattrs.structure({"part": {"number": 1}}, Moved) == Moved(Part(1))
    empty = object.__new__(made(quick_define.define))
    empty.__init__(1)
    moved = Moved(Part(1), ["a"])
    assert pickle.loads(pickle.dumps(moved)) == copy.deepcopy(moved) == moved  # noqa: S301 - its own pickle
    assert attrs.evolve(moved, texts=[]) == Moved(Part(1))
    assert empty == attrs.evolve(copy.copy(empty))


def test_threads_make_the_first_instance() -> None:
    """Any of them gets an instance, and the class one `__init__`."""
    for _ in range(20):
        cls, start = made(quick_define.define), threading.Barrier(6)
        found: list[Any] = []

        def make(cls: Any = cls, start: threading.Barrier = start, found: list[Any] = found) -> None:
            start.wait()
            found.append((cls(1).total, init_of(cls)))

        threads = [threading.Thread(target=make) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [(2, init_of(cls))] * 6


def test_the_class_without_slots_is_gone() -> None:
    """From a class without slots attrs makes one with them; the first does not stay for the sake of its `__init__`."""
    base = type("Base", (), {"__slots__": ()})

    class Below(base):  # type: ignore[misc, valid-type] # a base that is made here
        number: int

    below = quick_define.define(Below)
    del Below
    gc.collect()
    assert base.__subclasses__() == [below]


@both
def test_fields_have_their_names(define: Define) -> None:
    """A field is an attribute of the fields of its class, also if a base has it, or tuples a method of that name."""

    class Base:
        number: int = 1

    class Counted(define(Base)):  # type: ignore[misc] # a base that is made here
        count: int = 2

    fields = attrs.fields(define(Counted))
    assert [field.name for field in fields] == ["number", "count"]
    assert (fields.number.default, fields.count.default) == (1, 2)
    assert attrs.fields(define(Base)).number.default == 1
    assert not hasattr(fields, "text")
    assert not hasattr(attrs.fields(define(Base)), "text")


def test_classes_of_others_are_left_alone() -> None:
    """A class by attrs itself has its `__init__` at once: nothing of attrs was changed."""
    cls = made(attrs.define)
    assert isinstance(init_of(cls), FunctionType)
    assert type(attrs.fields(cls)).__name__ == "ValueAttributes"


def test_the_service_compiles_no_request() -> None:
    """A program that imports the service does not compile the classes of its arguments for the signatures of `help`."""
    program = """
from warren import requests, service
from warren.quick_define import DeferredInit
assert isinstance(vars(requests.ForkRequest)["__init__"], DeferredInit)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "change",
    [
        "del attr._next_gen; sys.modules['attr._next_gen'] = None",
        "_next_gen.define = functools.partial(_next_gen.define)",
        "before = _next_gen.define; _next_gen.define = lambda *args, **settings: before(*args, **settings)",
    ],
)
def test_another_attrs_makes_the_classes_itself(change: str) -> None:
    """If the private names of attrs are missing, or do something else, classes are those of attrs, and work."""
    program = f"""
import functools, sys
import attr, attrs
from attr import _next_gen
{change}
from warren import quick_define
from warren.values import frozen
assert quick_define.define is attrs.define
@frozen
class Value:
    number: int
assert repr(Value(1)) == "Value(number=1)"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
