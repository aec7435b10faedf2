"""The reference of the public names: each has a docstring, and an example that the tests run."""

import runpy
from typing import Any

import pytest

from tests.conftest import ROOT

REFERENCE: Any = runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))


@pytest.mark.parametrize("module", REFERENCE["modules"]())
def test_each_public_name_has_an_example(module: str) -> None:
    """On a page, or in a program of `examples/`."""
    programs = REFERENCE["programs"]()
    without = [name for name in REFERENCE["names"](module) if REFERENCE["example"](programs, module, name) is None]
    assert not without


def test_each_module_of_public_names_has_a_page() -> None:
    """With all of its names."""
    pages = dict(REFERENCE["pages"]())
    assert sorted(pages) == sorted(f"reference/{module}.md" for module in REFERENCE["modules"]())
    assert "::: warren.Agent\n" in pages["reference/warren.md"]
    assert "::: warren.events.RunCompleted\n" in pages["reference/warren.events.md"]


def test_of_a_long_program_the_part_with_the_name_is_shown() -> None:
    """A case, a function or a class."""
    programs = REFERENCE["programs"]()
    (part,) = {each.part("ModelSwitched") for each in programs if each.source == "`examples/turn_log.py`"}
    assert part == 'case on.ModelSwitched(from_model=old, to_model=new):\n    return f"{new} takes over from {old}"\n'
