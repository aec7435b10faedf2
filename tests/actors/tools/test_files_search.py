"""Listing and searching: what is found, what is left out, and that neither takes for ever."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from warren.actors.tools.files import search as files_search
from warren.actors.tools.files.tools import file_tools
from warren.models.tools import ToolError
from warren.storage.folders import Disk, Folder


def use(root: Path, name: str, **args: Any) -> str:
    """Use a tool as the model does."""
    (found,) = (each for each in file_tools(root) if each.spec.name == name)
    text = found.call(**found.bind(args))
    assert isinstance(text, str)
    return text


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project."""
    files = {
        "README.md": "needle in the readme\n",
        "src/a.py": "x = 1\nNEEDLE = 2\n",
        "src/deep/b.py": "# no\n# needle é needle\n",
        "src/deep/c.js": "needle\r\n",
        ".git/config": "needle\n",
        "node_modules/m/index.js": "needle\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, newline="")
    return tmp_path


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("*", ".git/ README.md node_modules/ src/"),
        ("src/*", "src/a.py src/deep/"),
        ("**/*.py", "src/a.py src/deep/b.py"),
        ("src/**/*.{py,js}", "src/a.py src/deep/b.py src/deep/c.js"),
        ("src/deep/?.js", "src/deep/c.js"),
        ("[ab].py", "(nothing matches)"),
    ],
)
def test_globs(tree: Path, glob: str, paths: str) -> None:
    """One star stays within a name, two go through folders, braces are either."""
    lines = [line for line in use(tree, "list_files", glob=glob).splitlines() if not line.startswith("[")]
    assert lines == (["(nothing matches)"] if paths.startswith("(") else paths.split())


def test_folders_that_are_left_out(tree: Path) -> None:
    """A folder that a walk leaves out is named, and can be looked into on its own."""
    text = use(tree, "list_files", glob="**")
    assert "[not looked into: .git (give it as the path to do so)]" in text
    assert "node_modules/m" not in text
    assert use(tree, "list_files", path="node_modules", glob="**/*.js") == "m/index.js"


def test_searching(tree: Path) -> None:
    """Every line with a match is told once, with its file and number."""
    lines = use(tree, "search_files", pattern="needle").splitlines()
    assert lines[:3] == [
        "README.md:1: needle in the readme",
        "src/deep/b.py:2: # needle é needle",
        "src/deep/c.js:1: needle",
    ]
    assert use(tree, "search_files", pattern=r"^needle\b", path="src", ignore_case=True).splitlines() == [
        "src/a.py:2: NEEDLE = 2",
        "src/deep/c.js:1: needle",
    ]
    assert use(tree, "search_files", pattern="é", path="src", glob="*.py") == "src/deep/b.py:2: # needle é needle"
    assert use(tree, "search_files", pattern="needle", glob="src/*.py") == "(no matches)" + _left_out(lines)
    assert use(tree, "search_files", pattern="needle", path="src/deep/c.js") == "src/deep/c.js:1: needle"
    assert use(tree, "search_files", pattern=r"1\s+NEEDLE", path="src") == "(no matches)"


def _left_out(lines: list[str]) -> str:
    """Return the notes at the end of an answer."""
    return "".join(f"\n{line}" for line in lines if line.startswith("["))


@pytest.mark.parametrize(
    "pattern", ["", "(", "(?=a)", r"(a)\1", "a{5000}", "((a{100}){100}){100}", "x" * 2000, "\ud800"]
)
def test_bad_patterns(tree: Path, pattern: str) -> None:
    """A pattern that cannot be used is refused by a text that says why."""
    with pytest.raises(ToolError, match=r"^pattern: "):
        use(tree, "search_files", pattern=pattern)


@pytest.mark.parametrize("glob", ["", "{a,b", "x" * 1000])
def test_bad_globs(tree: Path, glob: str) -> None:
    """So is a glob."""
    for name, args in (("list_files", {}), ("search_files", {"pattern": "x"})):
        if glob or name == "search_files":
            with pytest.raises(ToolError, match=r"^glob: "):
                use(tree, name, glob=glob or "{", **args)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(x|xx|x.)*[^x]{3}z", "((.{0,9}x?){0,9}q){0,9}z", "x*x*x*x*x*x*x*z"])
def test_pattern_that_would_take_for_ever(tmp_path: Path, pattern: str) -> None:
    """It ends in time, and other threads run meanwhile: the interpreter's lock is not held."""
    (tmp_path / "a").write_text(("x" * 5000 + "\n") * 30)
    beats, stop = 0, threading.Event()

    def beat() -> None:
        nonlocal beats
        while not stop.wait(0.001):
            beats += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        began = time.monotonic()
        assert use(tmp_path, "search_files", pattern=pattern).startswith("(no matches)")
        took = time.monotonic() - began
    finally:
        stop.set()
        thread.join()
    assert took < files_search.SEARCH_SECONDS + 30
    assert beats > 0 or took < 0.5


def test_many_matches(tmp_path: Path) -> None:
    """A search ends after so many matches, and says so; a line is shown around its match."""
    (tmp_path / "a").write_text("y" * 5000 + "needle" + "y" * 5000 + "\n" + "needle\n" * 1000)
    lines = use(tmp_path, "search_files", pattern="needle").splitlines()
    assert len(lines) == files_search.MAX_MATCHES + 1
    assert "needle" in lines[0]
    assert len(lines[0]) < files_search.MAX_SHOWN + 20
    assert lines[-2] == "a:200: needle"
    assert lines[-1].startswith("[stopped after 200 matches")


def test_line_numbers_across_windows(tmp_path: Path) -> None:
    """Files and lines longer than what is searched at once lose neither a match nor the count of lines."""
    (tmp_path / "a").write_text("filler\n" * 50_000 + "needle\n" + "z" * 300_000 + "\nneedle 2\n")
    assert use(tmp_path, "search_files", pattern="^needle").splitlines() == ["a:50001: needle", "a:50003: needle 2"]


def test_many_files(tmp_path: Path) -> None:
    """A listing ends after so many paths, and says so."""
    for number in range(files_search.MAX_LISTED + 5):
        (tmp_path / f"{number:05}").touch()
    lines = use(tmp_path, "list_files").splitlines()
    assert lines[:2] == ["00000", "00001"]
    assert len(lines) == files_search.MAX_LISTED + 1
    assert lines[-1].startswith("[stopped after 1000 paths")


def test_time_is_up(tmp_path: Path) -> None:
    """A walk whose time is over stops, and says so."""
    (tmp_path / "a").touch()
    with contextlib.closing(Folder.at(Disk(), tmp_path)) as folder:
        walk = files_search.Walk(deadline=time.monotonic() - 1)
        assert list(walk.entries(folder, deep=True)) == []
        assert [note[:13] for note in walk.notes] == ["stopped after"]


def test_odd_names(tmp_path: Path) -> None:
    """Names that are no text are listed and searched with escapes, one a line."""
    for name in (b"latin-\xe9.txt", b"two\nlines.txt", b"esc\x1b[31m.txt", "gr\u00fc\u00df.txt".encode()):
        (tmp_path / os.fsdecode(name)).write_text("needle")
    names = ["esc\\x1b[31m.txt", "gr\u00fc\u00df.txt", "latin-\\xe9.txt", "two\\nlines.txt"]
    assert sorted(use(tmp_path, "list_files").splitlines()) == names
    assert sorted(use(tmp_path, "search_files", pattern="needle").splitlines()) == [
        f"{name}:1: needle" for name in names
    ]


def test_deep_folders(tmp_path: Path) -> None:
    """Folders deeper than the walk goes use up no descriptors, and all are closed after it."""
    folder = tmp_path
    for _level in range(100):
        folder /= "d"
    folder.mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert 60 < len(use(tmp_path, "list_files", glob="**").splitlines()) < 70
    assert len(list(Path("/proc/self/fd").iterdir())) == before
