"""The layout holds together: links, the type checkers' view of them, and the wheel."""

import importlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LINKS: Final = ("actors", "mailbox", "storage", "transport")
BUILT_FROM: Final = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "src", *LINKS)
HEAVY: Final = ("apsw", "httpx", "numpy", "psycopg", "trio_websocket", "usearch")


@pytest.fixture(scope="module")
def project() -> Mapping[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Build the wheel from a copy, so that nothing built before gets in, and list what it holds."""
    copy = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=leave)
        else:
            shutil.copy(ROOT / name, copy / name)
    _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(copy))
    (wheel,) = out.glob("*.whl")
    return frozenset(zipfile.ZipFile(wheel).namelist())


def _run(*arguments: str, cwd: Path = ROOT) -> str:
    """Run this Python in a process of its own and give its output."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _shipped() -> set[str]:
    """Every module and data file of the library, by its path inside the package."""
    roots = {f"warren/{name}": ROOT / name for name in LINKS} | {"warren": ROOT / "src" / "warren"}
    paths = {
        PurePosixPath(prefix) / path.relative_to(root)
        for prefix, root in roots.items()
        for pattern in ("*.py", "*.sql", "*.md", "static/**/*.*", "models.json", "py.typed", "load/*.js", "load/*.css")
        for path in root.rglob(pattern)
    }
    return {str(path) for path in paths}


@pytest.mark.parametrize("name", LINKS)
def test_link_resolves_to_its_root_folder(name: str) -> None:
    """Each layer is a real folder at the root and a relative link in the package."""
    link = ROOT / "src" / "warren" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", name)
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


def test_every_link_is_named_here() -> None:
    """A new link is covered by these tests too."""
    assert {path.name for path in (ROOT / "src" / "warren").iterdir() if path.is_symlink()} == set(LINKS)


def test_pyright_enters_every_link(project: Mapping[str, Any]) -> None:
    """Pyright does not follow links below a folder, so each is on its list."""
    assert {f"src/warren/{name}" for name in LINKS} <= set(project["tool"]["pyright"]["include"])


def test_no_folder_is_importable_at_the_root(project: Mapping[str, Any]) -> None:
    """The linter refuses to import a layer other than through the package."""
    banned = project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == set(LINKS)


def test_standard_mailbox_is_reachable() -> None:
    """Our mailbox/ does not hide the standard library's."""
    module = importlib.import_module("mailbox")
    assert Path(str(module.__file__)).parent == Path(sysconfig.get_path("stdlib"))


def test_standard_mailbox_is_reachable_under_python_m_pytest() -> None:
    """The same where Python itself puts the repository root on the path."""
    test = f"{Path(__file__).relative_to(ROOT)}::{test_standard_mailbox_is_reachable.__name__}"
    assert "1 passed" in _run("-m", "pytest", "-p", "no:cacheprovider", test)


def test_wheel_holds_every_module(wheel_names: frozenset[str]) -> None:
    """The built wheel has each module, schema and the marker for type checkers."""
    shipped = _shipped()
    assert "warren/py.typed" in shipped
    assert shipped - wheel_names == set()


def test_wheel_holds_nothing_else(wheel_names: frozenset[str]) -> None:
    """Tests, benchmarks and leftovers stay out of the wheel."""
    assert {name for name in wheel_names if not name.startswith("warren-")} == _shipped()


def test_extra_all_names_every_extra(project: Mapping[str, Any]) -> None:
    """Asking for everything gives everything."""
    extras = project["project"]["optional-dependencies"]
    assert extras["all"] == [f"warren[{','.join(sorted(extras.keys() - {'all'}))}]"]


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    """Importing the library loads neither storage engines nor network clients."""
    code = f"import sys, warren; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    assert _run("-c", code, cwd=tmp_path).split() == []
