"""`docs/architecture.md` speaks of files, folders and names that exist."""

import ast
import re
from pathlib import Path
from typing import Final

from tests.docs import diagram, rooms

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LAYERS: Final = ("mailbox", "storage", "actors", "transport")


def test_the_states_are_those_of_the_table() -> None:
    """The page has the session's machine as `make docs` writes it now."""
    assert diagram.renewed(PAGE) == PAGE


def test_the_imports_of_the_folders_are_those_of_the_code() -> None:
    """The page has the folders and their imports as `make docs` draws them now."""
    assert rooms.renewed(PAGE) == PAGE


def test_an_import_that_follows_from_others_is_not_drawn() -> None:
    """What a folder imports through another one needs no arrow; imports of other layers are none of the picture's."""
    graph = {
        "warren.actors.a.x": {"warren.actors.b.x", "warren.actors.c.x", "warren.storage.d.x"},
        "warren.actors.b.x": {"warren.actors.c.x"},
        "warren.actors.loose": {"warren.actors.a.x"},
    }
    drawn = rooms.between({"actors/a", "actors/b", "actors/c", "storage/d"}, graph)
    assert {room: others for room, others in drawn.items() if others} == {
        "actors/a": {"actors/b"},
        "actors/b": {"actors/c"},
    }


def picture() -> str:
    """Return the picture of the folders."""
    found = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_picture_has_every_folder() -> None:
    """Each folder of a layer is in the picture, and nothing else is."""
    shown: dict[str, set[str]] = {}
    layer = ""
    for line in picture().splitlines():
        if (outer := re.match(r"(\S+)/ ", line)) is not None:
            layer = outer[1]
        elif re.match(r"  [a-z]", line):
            shown.setdefault(layer, set()).update(re.findall(r"(?:^|(?<=\s))([a-z]+)/(?=\s)", line.split("(import")[0]))
    for layer in LAYERS:
        there = {path.parent.name for path in (ROOT / layer).glob("*/__init__.py")}
        assert shown.get(layer, set()) == there, layer
    assert shown["src/warren"] == {path.parent.name for path in (ROOT / "src" / "warren").glob("*/__init__.py")} - {
        *LAYERS
    }


def test_every_file_of_the_page_exists() -> None:
    """A path on the page is one from the root of the repository, or the end of one."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    files = [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.py")]
    named = set(re.findall(r"[\w/]+\.py\b", PAGE))
    assert len(named) > 20
    assert [name for name in sorted(named) if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_every_owner_is_a_class_in_its_file() -> None:
    """The table of state names classes, each defined in the file beside it."""
    owners = re.findall(r"`(\w+)`, `([\w/]+\.py)`", PAGE)
    assert len(owners) > 10
    for name, file in owners:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}, (name, file)
