"""Who imports whom: the modules of the library and their imports, from sources that are parsed once."""

import ast
import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.layers import FOLDERS

ROOT: Final = Path(__file__).resolve().parents[2]
DOMAIN: Final = PurePosixPath("src/warren")

parsed = functools.cache(ast.parse)


@functools.cache
def read(path: PurePosixPath) -> str:
    """Return the source of a module, by its path from the repository root."""
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def sources() -> list[PurePosixPath]:
    """Every module of the library, by its path from the repository root."""
    roots = [ROOT / folder for folder in FOLDERS]
    domain = [path for path in (ROOT / DOMAIN).rglob("*.py") if path.relative_to(ROOT / DOMAIN).parts[0] not in FOLDERS]
    inner = [path for root in roots for path in root.rglob("*.py")]
    return sorted(PurePosixPath(path.relative_to(ROOT)) for path in [*domain, *inner])


def module_of(path: PurePosixPath) -> str:
    """Return the module of a file, by its path from the repository root."""
    parts = path.relative_to(DOMAIN).parts if path.is_relative_to(DOMAIN) else path.parts
    return ".".join(("warren", *parts)).removesuffix(".py").removesuffix(".__init__")


@functools.cache
def library() -> Mapping[str, set[str]]:
    """Return the imports between the modules of the library, as `arrows` has them."""
    return arrows({module_of(path): read(path) for path in sources()})


def arrows(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, for each module in `texts`, the others that it imports anywhere: inside functions and for types, too."""
    return {module: {each for each in named(text, texts) if each in texts} - {module} for module, text in texts.items()}


def named(text: str, modules: Collection[str]) -> Iterator[str]:
    """Yield the modules that a source imports; a name that is one of `modules` is a module."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (each if each in modules else node.module or "" for each in inner)
