"""The public face: few names, all of them real, and light to import."""

import json
import subprocess
import sys
from typing import Final

import pytest

import warren

SHOW: Final = "import sys, json, warren; {more}; print(json.dumps(sorted(sys.modules)))"
HEAVY: Final = {"apsw", "trio", "httpx", "usearch", "numpy", "trio_websocket", "click", "rich"}


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
