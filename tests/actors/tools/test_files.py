"""The tools for files: what they answer, what they change, what they refuse."""

import ctypes
import errno
import itertools
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from warren.actors.tools.files import text as files_text
from warren.actors.tools.files.tools import file_tools
from warren.base.fields import FieldValueError
from warren.models.tools import Tool, ToolArgumentsError, ToolError

Use = Callable[..., str]


def named(tools: tuple[Tool, ...]) -> dict[str, Tool]:
    """Return tools by name."""
    return {each.spec.name: each for each in tools}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root, a folder beside others."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def use(root: Path) -> Use:
    """Use a tool as the model does: its arguments are checked, then it runs."""
    tools = named(file_tools(root))

    def call(name: str, **args: Any) -> str:
        text = tools[name].call(**tools[name].bind(args))
        assert isinstance(text, str)
        return text

    return call


def fails(use: Use, name: str, **args: Any) -> str:
    """Return the text of the error that the model reads."""
    with pytest.raises(ToolError) as caught:
        use(name, **args)
    return str(caught.value)


def test_tools_that_only_read(root: Path) -> None:
    """Without leave to write there are no tools for it; each tool says what it and its arguments are for."""
    assert list(named(file_tools(root, writable=False))) == ["read_file", "list_files", "search_files"]
    every = named(file_tools(root))
    assert list(every)[3:] == ["write_file", "edit_file"]
    for each in every.values():
        assert len(each.spec.description) > 40
        assert "self" not in each.spec.input_schema["properties"]


@pytest.mark.parametrize("name", ["missing", "file", "loop", "a\0b"])
def test_root_that_is_no_folder(tmp_path: Path, name: str) -> None:
    """A path that cannot be a root is refused when the tools are made."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FieldValueError, match=r"^root is not a folder"):
        file_tools(tmp_path / name)


def test_root_behind_a_link(tmp_path: Path, root: Path) -> None:
    """The way to the root may lead through links: it is the host's, not the model's."""
    (tmp_path / "link").symlink_to(root)
    (root / "a").write_text("here")
    tools = named(file_tools(tmp_path / "link"))
    assert tools["read_file"].call("a") == "here"


def test_root_that_was_replaced(tmp_path: Path, root: Path, use: Use) -> None:
    """Another folder in the place of the root is not used."""
    root.rename(tmp_path / "old")
    root.mkdir()
    (root / "a").write_text("other")
    assert "replaced" in fails(use, "read_file", path="a")


@pytest.mark.parametrize(
    "path",
    ["../secret", "a/../../secret", "/etc/passwd", "{root}/../secret", "{root}x/secret", "..", "a/../b", "//etc"],
)
@pytest.mark.parametrize("name", ["read_file", "list_files", "write_file"])
def test_paths_that_lead_out(tmp_path: Path, root: Path, use: Use, name: str, path: str) -> None:
    """Neither '..' nor an absolute path leads out of the root."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "rootx").mkdir()
    (tmp_path / "rootx" / "secret").write_text("secret")
    args = {"content": "overwritten"} if name == "write_file" else {}
    assert fails(use, name, path=path.format(root=root), **args).startswith("path: ")
    assert (tmp_path / "secret").read_text() == (tmp_path / "rootx" / "secret").read_text() == "secret"
    assert list(root.iterdir()) == []


def test_absolute_path_below_the_root(root: Path, use: Use) -> None:
    """The absolute path of a file under the root is as good as the one from the root."""
    (root / "a").write_text("here")
    assert use("read_file", path=f"{root}/a") == use("read_file", path="./a") == "here"
    assert use("list_files", path=str(root)) == "a"


@pytest.mark.parametrize("target", ["../outside", "inside", "/etc", "nowhere"])
def test_links_are_refused(tmp_path: Path, root: Path, use: Use, target: str) -> None:
    """A link is not followed, wherever it leads: as a folder on the way, as the file, by a search."""
    for folder in (tmp_path / "outside", root / "inside"):
        folder.mkdir()
        (folder / "passwd").write_text("secret")
    (root / "way").symlink_to(target)
    (root / "file").symlink_to(f"{target}/passwd")
    assert "links are not followed" in fails(use, "read_file", path="way/passwd")
    assert "links are not followed" in fails(use, "read_file", path="file")
    assert "links are not followed" in fails(use, "write_file", path="file", content="x")
    assert "links are not followed" in fails(use, "write_file", path="way/new/passwd", content="x")
    assert "links are not followed" in fails(use, "edit_file", path="file", old="s", new="x")
    assert "links are not followed" in fails(use, "list_files", path="way")
    assert "links are not followed" in fails(use, "search_files", path="way", pattern=".")
    assert use("search_files", pattern="secret").splitlines() == ["inside/passwd:1: secret"]
    assert {"way@", "file@"} <= set(use("list_files", glob="**").splitlines())
    assert [each.name for each in (tmp_path / "outside").iterdir()] == ["passwd"]
    assert (tmp_path / "outside" / "passwd").read_text() == "secret"


def test_what_is_no_plain_file(root: Path, use: Use) -> None:
    """Pipes, sockets, devices and folders are refused at once, by their kind."""
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(root / "socket"))
    for name, kind in (("pipe", "a pipe"), ("socket", "a socket"), ("folder", "a folder"), (".", "a folder")):
        assert kind in fails(use, "read_file", path=name)
        assert kind in fails(use, "write_file", path=name, content="x")
    with pytest.raises(ToolError, match="a device"):
        named(file_tools(Path("/dev")))["read_file"].call("null")
    assert use("search_files", pattern="x") == "(no matches)"
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)


@pytest.mark.parametrize("path", ["missing", "missing/a", "a/b", "x" * 300, "a\0b", "\ud800", "/".join("x" * 70)])
def test_paths_that_are_none(root: Path, use: Use, path: str) -> None:
    """A path with nothing there, or that cannot be one, is an error and not a traceback."""
    (root / "a").touch()
    for name in ("read_file", "list_files"):
        assert fails(use, name, path=path)


def test_reading_in_parts(root: Path, use: Use) -> None:
    """A long file comes in parts, each with a note of where to go on; together they are the whole."""
    lines = [f"line {number} {'x' * 40}\n" for number in range(5000)]
    (root / "long").write_text("".join(lines))
    got, offset = "", 0
    while offset < 5000:
        text = use("read_file", path="long", offset_lines=offset)
        body, _, note = text.partition("[")
        got += body
        offset += body.count("\n")
        assert len(text) < files_text.MAX_PAGE + 200
        assert note == (f"truncated: go on at line {offset + 1} with offset_lines={offset}]\n" if offset < 5000 else "")
    assert got == "".join(lines)
    assert use("read_file", path="long", offset_lines=10, limit_lines=1).startswith("line 10 x")
    assert "has only 5000 lines" in fails(use, "read_file", path="long", offset_lines=5000)


@pytest.mark.parametrize("args", [{"offset_lines": -1}, {"limit_lines": 0}, {"limit_lines": 10**9}, {"limit": 3}])
def test_arguments_out_of_bounds(use: Use, args: dict[str, int]) -> None:
    """Counts are checked before a file is opened, and the error names the argument."""
    with pytest.raises(ToolArgumentsError, match=next(iter(args))):
        use("read_file", path="a", **args)


def test_long_line(root: Path, use: Use) -> None:
    """A line that is too long is cut, and said to be."""
    (root / "min.js").write_text("y" * 1_000_000 + "\nnext")
    text = use("read_file", path="min.js")
    assert text.splitlines()[0] == "y" * files_text.MAX_LINE + " [line cut]"
    assert text.splitlines()[1:] == ["next", "[1 lines longer than 4000 characters were cut]"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("näh\n".encode(), "näh\n"),
        ("näh\n".encode("utf-8-sig"), "näh\n"),
        ("näh\r\n".encode("utf-16"), "näh\n"),
        ("näh\n".encode("latin-1"), "n\ufffdh\n[bytes that are not UTF-8 are shown as \ufffd]\n"),
        (b"", "[the file is empty]\n"),
    ],
)
def test_encodings(root: Path, use: Use, data: bytes, text: str) -> None:
    """Text is shown whatever its encoding, as far as that can be told."""
    (root / "a").write_bytes(data)
    assert use("read_file", path="a") == text


def test_binary_file(root: Path, use: Use) -> None:
    """A binary file is neither shown nor searched nor edited."""
    (root / "a.bin").write_bytes(b"\x7fELF\0\xff needle")
    assert "is a binary file of 13 bytes" in fails(use, "read_file", path="a.bin")
    assert use("search_files", pattern="needle") == "(no matches)"
    assert "is not UTF-8" in fails(use, "edit_file", path="a.bin", old="needle", new="x")


def test_writing(root: Path, use: Use) -> None:
    """A file is made with the folders on its way, replaced as a whole, and nothing else is left there."""
    assert use("write_file", path="a/b/c.txt", content="é\n") == "made a/b/c.txt: 3 bytes"
    assert use("write_file", path="a/b/c.txt", content="") == "replaced a/b/c.txt: 0 bytes"
    assert [str(each.relative_to(root)) for each in sorted(root.rglob("*"))] == ["a", "a/b", "a/b/c.txt"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((root / "a/b/c.txt").stat().st_mode) == 0o666 & ~umask


def test_mode_of_an_old_file_is_kept(root: Path, use: Use) -> None:
    """A script stays executable, a private file private; another name of the same file keeps the old content."""
    for name, mode in (("script", 0o755), ("private", 0o600)):
        (root / name).write_text("old")
        (root / name).chmod(mode)
        os.link(root / name, root / f"{name}.other")
        use("write_file", path=name, content="new")
        use("edit_file", path=name, old="new", new="newer")
        assert stat.S_IMODE((root / name).stat().st_mode) == mode
        assert (root / f"{name}.other").read_text() == "old"


def test_read_only_file_is_kept(root: Path, use: Use) -> None:
    """A file that nobody may write is not replaced, and nothing is left beside it."""
    (root / "a").write_text("old")
    (root / "a").chmod(0o444)
    assert fails(use, "write_file", path="a", content="new") == "a: is read-only"
    assert fails(use, "edit_file", path="a", old="old", new="new") == "a: is read-only"
    assert [each.name for each in root.iterdir()] == ["a"]
    assert (root / "a").read_text() == "old"


def test_content_that_cannot_be_written(root: Path, use: Use) -> None:
    """Half a character, or too much, is refused before anything is touched."""
    assert fails(use, "write_file", path="a", content="\ud800").startswith("content: cannot be written as UTF-8")
    assert fails(use, "write_file", path="a", content="x" * (files_text.MAX_FILE + 1)).startswith("content: would make")
    assert list(root.iterdir()) == []


def test_editing(root: Path, use: Use) -> None:
    """A passage is replaced where it is there once, or everywhere if asked for."""
    (root / "a").write_text("one\ntwo\none\n")
    assert use("edit_file", path="a", old="two\n", new="2\n") == "changed a: 1 place"
    assert "is 2 times in a, first in lines 1, 3" in fails(use, "edit_file", path="a", old="one", new="1")
    assert use("edit_file", path="a", old="one", new="1", replace_all=True) == "changed a: 2 places"
    assert (root / "a").read_text() == "1\n2\n1\n"
    assert fails(use, "edit_file", path="a", old="three", new="3").startswith("old: is not in a")
    assert fails(use, "edit_file", path="a", old="", new="3").startswith("old: must not be empty")
    assert fails(use, "edit_file", path="a", old="1", new="1").startswith("new: is the same")
    assert (root / "a").read_text() == "1\n2\n1\n"


def test_editing_keeps_line_ends_and_mark(root: Path, use: Use) -> None:
    """A text that is read with plain line ends can be replaced in a file with others; the rest stays to the byte."""
    (root / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    assert use("read_file", path="a") == "one\ntwo\nthree\n"
    use("edit_file", path="a", old="one\ntwo\n", new="1\n2\n")
    assert (root / "a").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"


def test_edits_at_once(root: Path, use: Use) -> None:
    """Edits of one file by several calls at once all stay, also through tools that were made apart."""
    (root / "a").write_text("".join(f"<{number}>\n" for number in range(40)))
    others = named(file_tools(root))

    def edit(number: int) -> None:
        args = {"path": "a", "old": f"<{number}>", "new": f"[{number}]"}
        use("edit_file", **args) if number % 2 else others["edit_file"].call(**args)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(edit, range(40)))
    assert (root / "a").read_text() == "".join(f"[{number}]\n" for number in range(40))


def exchange(one: Path, other: Path) -> None:
    """Swap two names at once, so that neither is ever missing; also of a link and what it stands for."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), both) and ctypes.get_errno() != errno.ENOENT:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.skipif(sys.platform != "linux", reason="swapping at once is Linux's")
@pytest.mark.parametrize("calls", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_adversary_who_swaps_links(tmp_path: Path, root: Path, use: Use, calls: int) -> None:
    """While links come and go in the place of a folder and a file, nothing outside is ever read or written."""
    outside = tmp_path / "outside"
    for folder, text in ((outside, "SECRET"), (root / "folder", "plain")):
        folder.mkdir()
        (folder / "file").write_text(text)
    (root / "link").symlink_to(outside)
    (root / "folder" / "other").symlink_to(outside / "file")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(root / "folder" / "file", root / "folder" / "other")
            exchange(root / "folder", root / "link")

    seen: list[str] = []
    refused = 0
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(swap)
        try:
            for number in itertools.count():
                if number >= calls and refused and "plain" in "".join(seen):  # how often is the scheduler's affair
                    break
                call: tuple[str, dict[str, str]] = ("read_file", {"path": "folder/file"})
                if number % 20 == 0:
                    call = ("write_file", {"path": f"folder/new{number % 7}", "content": "plain"})
                elif number % 5 == 0:
                    call = ("search_files", {"path": "folder", "pattern": "SECRET|plain"})
                elif number % 7 == 0:
                    call = ("list_files", {"path": "folder", "glob": "**"})
                try:
                    seen.append(use(call[0], **call[1]))
                except ToolError:
                    refused += 1
        finally:
            stop.set()
        swapping.result()
    assert not [text for text in seen if "SECRET" in text]
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("file", "SECRET")]
