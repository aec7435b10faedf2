"""A public method says what it does, at its own place or at the interface that it implements, and nowhere twice."""

import ast
import re
from collections.abc import Iterator

from tests.support.imports import parsed, read, sources

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_a_method_without_a_docstring_is_told_by_its_interface() -> None:
    """A name is told by a docstring of any class: the method's own, or the `Attributes:` of the class."""
    classes = [(where, found) for where, found in _nodes() if isinstance(found, ast.ClassDef)]
    methods = [(where, cls, each) for where, cls in classes for each in cls.body if isinstance(each, Function)]
    told = {each.name for _, _, each in methods if ast.get_docstring(each)}
    for _, cls in classes:
        told.update(re.findall(r"^    (\w+): ", ast.get_docstring(cls) or "", re.MULTILINE))
    silent = [
        f"{where}:{each.lineno} {cls.name}.{each.name}"
        for where, cls, each in methods
        if not cls.name.startswith("_") and not each.name.startswith("_") and each.name not in told
    ]
    assert silent == []


def test_no_docstring_only_points_to_another() -> None:
    """Without `See Store.` the tools of a reader show the docstring of the interface in its place."""
    functions = ((where, each) for where, each in _nodes() if isinstance(each, Function))
    docstrings = ((f"{where}:{each.lineno} {each.name}", ast.get_docstring(each) or "") for where, each in functions)
    assert [where for where, docstring in docstrings if docstring.startswith("See ")] == []


def _nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sources():
        for node in ast.walk(parsed(read(path))):
            yield str(path), node
