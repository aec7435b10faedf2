"""`docs/protocol.md` against the table it is made from."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.conftest import ROOT
from tests.docs.protocol_page import protocol_page
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.transport.rpc.methods import METHODS

PAGE: Path = ROOT / "docs" / "protocol.md"


def test_the_page_is_made_from_the_table() -> None:
    """Whoever changes a method, a field or an error runs `make docs`."""
    assert PAGE.read_text(encoding="utf-8") == protocol_page()


def section(name: str) -> str:
    """Return the part of the page under a heading."""
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n### {name}\n" in page
    return page.partition(f"\n### {name}\n")[2].partition("\n### ")[0].partition("\n## ")[0]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_its_fields(name: str) -> None:
    """Each method is there with what it takes and returns."""
    method = METHODS[name]
    for cls in (method.params, method.result):
        for field in attrs.fields(cls):
            assert not field.init or f"| `{codec.wire_name(cls, field.name)}` |" in section(name)
    assert method.doc in section(name)


@pytest.mark.parametrize("name", sorted(codec.EVENT_TYPES))
def test_every_event_has_its_fields(name: str) -> None:
    """Each event is there with its tag and all of its fields."""
    cls: Any = codec.EVENT_TYPES[name]
    shown = section(cls.__name__)
    assert f'`"{name}"`' in shown
    for field in attrs.fields(cls):
        assert f"| `{field.name}` |" in shown


def test_the_page_has_no_dead_links() -> None:
    """Every type that is named is explained."""
    page = PAGE.read_text(encoding="utf-8")
    headings = {line.lstrip("# ").replace("/", "").lower() for line in page.splitlines() if line.startswith("#")}
    targets = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert targets <= headings
    assert Envelope.__name__.lower() not in targets


def test_the_example_works(tmp_path: Path) -> None:
    """The commands of the page can be pasted into a shell, and print the same."""
    page = PAGE.read_text(encoding="utf-8")
    (command,) = [line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ ")]
    environ = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, capture_output=True, cwd=tmp_path, env=environ, check=True, timeout=30)  # noqa: S602 - a reader's shell runs it
    assert json.loads(done.stdout.splitlines()[-1])["result"]["text"] == "hello"
    assert done.stderr == b""
