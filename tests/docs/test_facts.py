"""Facts that the pages repeat from elsewhere: commands that install, versions, time limits."""

import re
import tomllib
from typing import Final

import attrs
import pytest

from tests.conftest import REAL_LIMIT, ROOT
from tests.docs.snippets import DOCS
from warren.storage.sqlite.file import VERSION
from warren.transport.providers.scripted import Script, ScriptedCall, ScriptedError, ScriptedStep

PYPROJECT: Final = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
INSTALL: Final = re.compile(r"pip install '?((?:\.|warren)[^'`\s\"]*)")
EXTRAS: Final = frozenset(tomllib.loads(PYPROJECT)["project"]["optional-dependencies"])
TEXTS: Final = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((ROOT / "transport").rglob("*.py"))]
SHOWN: Final = {
    text.relative_to(ROOT).as_posix(): found for text in TEXTS if (found := INSTALL.findall(text.read_text()))
}


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_to_be_installed_can_be(text: str) -> None:
    """Pages install from a clone, or further extras, as there is no package on an index; each extra exists."""
    for target in SHOWN[text]:
        match = re.fullmatch(r"(?:\.|warren(?=\[))(?:\[([a-z,-]+)\])?", target)
        assert match is not None, target
        assert set((match[1] or "all").split(",")) <= EXTRAS


def test_the_readme_installs() -> None:
    """Its chapter begins with a command and explains every extra."""
    chapter = (ROOT / "README.md").read_text(encoding="utf-8").split("## Install")[1].split("## ")[0]
    assert INSTALL.search(chapter)
    assert set(re.findall(r"^\| `([a-z-]+)` \|", chapter, re.MULTILINE)) == EXTRAS


def test_the_page_about_the_store_has_its_version() -> None:
    """The doctor's output there is the same as for a store that is up to date."""
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert re.findall(r"^schema: +version (\d+)$", page, re.MULTILINE) == [str(VERSION)]
    shown = (DOCS / "postgres.md").read_text(encoding="utf-8").split("$ warren store init\n")[1].split("```")[0]
    assert {*re.findall(r"version:? +(\d+)", shown)} == {str(VERSION)}


def test_the_time_limit_of_tests_is_told() -> None:
    """It is on the page for contributors."""
    assert f"fail after {REAL_LIMIT:g} seconds" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"({REAL_LIMIT:g} s real" in PYPROJECT


@pytest.mark.parametrize(
    ("heading", "cls"),
    [("The file", Script), ("A step", ScriptedStep), ("A tool call", ScriptedCall), ("An error", ScriptedError)],
)
def test_the_page_on_scripts_has_every_member(heading: str, cls: type[attrs.AttrsInstance]) -> None:
    """Each member of each object is in its table, and no other."""
    chapter = (DOCS / "scripted.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    public = [field.name for field in attrs.fields(cls) if field.init and not field.name.startswith("_")]
    assert sorted(re.findall(r"^\| `(\w+)` \|", chapter, re.MULTILINE)) == sorted(public)
