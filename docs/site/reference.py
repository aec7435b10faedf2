# ruff: noqa: INP001 - the builder of the site loads it by its path
"""The pages of the public names: their docstrings, each with the shortest example that the other pages have of it."""

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

import warren

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WRITTEN = re.compile(r"^\$ cat > \S+\.py <<'END'\n(.*?)^> END$", re.MULTILINE | re.DOTALL)
SHORT = 25
"""Lines of a program that is shown whole; of a longer one only the part with the name is shown."""
LONGEST = 40
"""Characters of the default of an argument that is shown."""
PARTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
"""The parts of a program that can be shown by themselves, besides the cases of a `match`."""
VALUES = {f"warren.base.values.{name}" for name in ("frozen", "value", "define")}


@dataclass
class Program:
    """A program that the tests run: a block of a page, or a file of `examples/`."""

    source: str
    text: str

    def shows(self, module: str, name: str) -> bool:
        """Tell whether the program has a name of a module: imported, or as a member of the module."""
        tree = ast.parse(self.text)
        places = {}  # what a local name stands for
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                places |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                places |= {each.asname or each.name: each.name for each in node.names}
        members = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == name)
        return f"{module}.{name}" in places.values() or any(
            isinstance(node.value, ast.Name) and places.get(node.value.id) == module for node in members
        )

    def part(self, name: str) -> str:
        """Return the smallest part with the name that can be read by itself."""
        lines = self.text.splitlines(keepends=True)
        if len(lines) <= SHORT:
            return self.text
        nodes = list(ast.walk(ast.parse(self.text)))
        spans = [(node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, PARTS)]
        spans += [
            (each.pattern.lineno, each.body[-1].end_lineno or 0) for each in nodes if isinstance(each, ast.match_case)
        ]
        texts = ["".join(lines[first - 1 : last]) for first, last in spans]
        return textwrap.dedent(min((text for text in texts if re.search(rf"\b{name}\b", text)), key=len))


def programs() -> list[Program]:
    """Return the programs of the pages and of `examples/`, the shortest first."""
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        source = f"[{page.stem}](../{page.name})"
        found += [Program(source, block) for block in BLOCK.findall(text)]
        found += [Program(source, re.sub("^> ?", "", block, flags=re.MULTILINE)) for block in WRITTEN.findall(text)]
    for file in sorted((ROOT / "examples").glob("*.py")):
        found.append(Program(f"`examples/{file.name}`", file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda each: len(each.text))


def modules() -> list[str]:
    """Return the modules whose names are public: `warren` itself and the files beside it."""
    below = (each.name for each in pkgutil.iter_modules(warren.__path__) if not each.ispkg)
    return ["warren", *(f"warren.{name}" for name in sorted(below) if not name.startswith("_"))]


def names(module: str) -> list[str]:
    """Return the public names of a module."""
    there = importlib.import_module(module)
    found = getattr(there, "__all__", None) or [name for name in vars(there) if not name.startswith("_")]
    return sorted(name for name in found if not isinstance(getattr(there, name), ModuleType))


def example(there: list[Program], module: str, name: str) -> Program | None:
    """Return the first program with a name of a module, or with the same thing from another; None if there is none."""
    thing = getattr(importlib.import_module(module), name)
    homes = [each for each in modules() if getattr(importlib.import_module(each), name, None) is thing]
    return next((each for home in homes for each in there if each.shows(home, name)), None)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of the reference: the name of the file and its text."""
    there = programs()
    for module in modules():
        parts = [f"# {module}", str(inspect.getdoc(importlib.import_module(module)))]
        for name in names(module):
            parts.append(f"::: {module}.{name}")
            found = example(there, module, name)
            if found is not None:
                parts.append(f"From {found.source}:\n\n```python\n{found.part(name)}```")
        yield f"reference/{module}.md", "\n\n".join(parts) + "\n"


def short(value: str) -> str:
    """Return a default as it is shown: not one that fills lines."""
    return value if len(value) <= LONGEST else "..."


class Constructors(griffe.Extension):
    """The arguments of the classes that attrs makes, which are in no source text."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor of one."""
        if not any(str(each.callable_path) in VALUES for each in cls.decorators):
            return
        signature = inspect.signature(getattr(importlib.import_module(cls.module.path), cls.name))
        fields = (cls.members.get(name) for name in signature.parameters)
        made = griffe.Parameters(
            *(
                griffe.Parameter(
                    each.name,
                    annotation=getattr(field, "annotation", None),
                    kind=griffe.ParameterKind[each.kind.name.lower()],
                    default=None if each.default is each.empty else short(repr(each.default)),
                )
                for each, field in zip(signature.parameters.values(), fields, strict=True)
            )
        )
        cls.set_member("__init__", griffe.Function("__init__", parameters=made))
