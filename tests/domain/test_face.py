"""The public face: few names, all of them real, and light to import."""

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin, get_type_hints

import attrs
import pytest

import warren

SHOW: Final = "import sys, json, warren; {more}; print(json.dumps(sorted(sys.modules)))"
HEAVY: Final = {"apsw", "trio", "httpx", "usearch", "numpy", "trio_websocket", "click", "rich"}

NOT_OF_PROGRAMS: Final = {
    *("Call", "SessionCall", "TurnCall", "SignedCall", "Opened"),  # what surfaces hand to the service
    *("Awaited", "Remote", "Files"),  # fields that the runtime fills
    *("EndBudget", "Log", "ScriptedRequest"),
}
"""Types in signatures and fields that no program has to name."""


def loaded(more: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after importing the library and doing more."""
    done = subprocess.run([sys.executable, "-c", SHOW.format(more=more)], check=True, capture_output=True)
    return set(json.loads(done.stdout))


def test_every_name_is_there() -> None:
    """Each name that the face promises exists, once, in order; nothing else of ours is in it."""
    assert warren.__all__ == sorted(set(warren.__all__))
    assert 15 <= len(warren.__all__) <= 60
    for name in warren.__all__:
        assert getattr(warren, name) is not None


def test_an_unknown_name() -> None:
    """A misspelt name is an AttributeError that says which."""
    with pytest.raises(AttributeError, match="module 'warren' has no attribute 'open_superviser'"):
        getattr(warren, "open_superviser")  # noqa: B009 - mypy knows that it does not exist


def test_importing_the_face_is_light() -> None:
    """A program that only reads Warren's types loads no event loop, no database and no network."""
    assert loaded("pass") & HEAVY == set()


def test_the_runtime_comes_with_its_first_use() -> None:
    """The way in loads the event loop, and does so only then."""
    assert "trio" in loaded("warren.open_supervisor")


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes of ours in a type."""
    for part in get_args(hint):
        yield from (each for one in (part if isinstance(part, list) else [part]) for each in classes_in(one))
    origin = get_origin(hint) or hint
    if inspect.isclass(origin) and origin.__module__.startswith("warren."):
        yield origin


def hints_of(thing: Any) -> list[Any]:
    """Return the types in the signature of a function, or in the public fields of a class of attrs."""
    if inspect.isclass(thing):
        if not attrs.has(thing):
            return []
        fields = {each.name for each in attrs.fields(thing) if not each.name.startswith("_")}
        return [hint for name, hint in get_type_hints(thing).items() if name in fields]
    signature = inspect.signature(thing)
    return [*(each.annotation for each in signature.parameters.values()), signature.return_annotation]


def test_a_program_can_name_whatever_the_service_takes_and_returns() -> None:
    """From `warren` or from a module beside it: the types of all arguments and results, and what these have in them."""
    beside = [each.name for each in pkgutil.iter_modules(warren.__path__) if not each.ispkg and each.name[0] != "_"]
    spaces = [importlib.import_module(f"warren.{name}") for name in [*beside, "compaction"]]
    public = {id(getattr(space, name)) for space in spaces for name in dir(space) if not name.startswith("_")}
    public |= {id(getattr(warren, name)) for name in warren.__all__}
    todo = [method for name, method in inspect.getmembers(warren.RuntimeService, callable) if not name.startswith("_")]
    met: dict[str, type] = {}
    while todo:
        for hint in hints_of(todo.pop()):
            for found in classes_in(hint):
                if found.__name__ not in met and found.__name__ not in NOT_OF_PROGRAMS:
                    met[found.__name__] = found
                    todo.append(found)
    assert len(met) > 60
    assert [f"{each.__module__}.{name}" for name, each in sorted(met.items()) if id(each) not in public] == []
