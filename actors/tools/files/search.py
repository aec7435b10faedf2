"""Walks through folders under a root and searches in their files, bounded in time and in the size of the answer.

Patterns run on RE2: its time is linear in the text for every pattern, and it releases the interpreter's lock. Python's
own engine would block the whole process for as long as a careless pattern takes.
"""

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Generator
from typing import Any, Final

import attrs
import re2  # type: ignore[import-untyped]

from warren.actors.tools.files.root import MAX_DEPTH, Place, open_regular, shown
from warren.actors.tools.files.text import SAMPLE, encoding_of
from warren.base.values import define, frozen
from warren.models.tools import ToolError
from warren.storage.folders import Folder

SEARCH_SECONDS: Final = 15.0
MAX_ENTRIES: Final = 50_000
"""Names that one walk looks at."""
MAX_LISTED: Final = 1000
MAX_MATCHES: Final = 200
MAX_SHOWN: Final = 300
"""Characters of a line that are shown."""
MAX_PATTERN: Final = 1000
MAX_SEARCHED: Final = 8 * 1024 * 1024
"""Bytes of the largest file that is searched."""
WINDOW: Final = 64 * 1024
SKIPPED: Final = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
_MEMORY: Final = 512 * 1024
"""Bytes of memory for RE2. They bound the size of a pattern too, and so the time for each byte of text."""
_WILD: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def pattern(text: str, name: str, *, ignore_case: bool = False) -> Any:
    """Compile a regular expression of the model. Raises ToolError with the name of the argument if it is invalid."""
    if not text:
        raise ToolError(f"{name}: must not be empty")
    if len(text) > MAX_PATTERN:
        raise ToolError(f"{name}: is longer than {MAX_PATTERN} characters")
    options = re2.Options()
    options.max_mem, options.never_nl, options.log_errors = _MEMORY, True, False
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(f"(?m:{text})", options)
    except UnicodeEncodeError:
        raise ToolError(f"{name}: has characters that are no text") from None
    except re2.error as exc:
        reason = exc.args[0].decode("utf-8", "replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
        hint = "the syntax is that of RE2: no look-around, no back-references, counts up to 1000"
        raise ToolError(f"{name}: is not a regular expression that can be used: {reason} ({hint})") from None


def glob_pattern(glob: str) -> Any:
    """Compile a glob for whole paths: `*` and `?` match within a name, `**` across names, `{a,b}` either text."""
    if len(glob) > MAX_PATTERN // 8:
        raise ToolError(f"glob: is longer than {MAX_PATTERN // 8} characters")
    parts: list[str] = []
    at, braces = 0, 0
    while at < len(glob):
        piece = next((wild for wild in _WILD if glob.startswith(wild, at)), glob[at])
        at += len(piece)
        if piece in _WILD:
            parts.append(_WILD[piece])
        elif piece == "{":
            parts.append("(?:")
            braces += 1
        elif piece in ",}" and braces:
            parts.append("|" if piece == "," else ")")
            braces -= piece == "}"
        else:
            parts.append(re2.escape(piece))
    if braces:
        raise ToolError("glob: has a '{' that is not closed")
    return pattern(f"^(?:{''.join(parts)})$", "glob")


@frozen
class FolderEntry:
    """An entry of a folder.

    Attributes:
        folder: the folder, which is open while the walk is at this entry.
        name: the name in the folder.
        path: the path from the start of the walk, as the model sees it.
        mode: the mode of the file; 0 if it cannot be read.
    """

    folder: Folder
    name: str
    path: str
    mode: int


@define
class Walk:
    """A sorted walk through a folder and the folders below it. It follows no links, and notes skipped entries.

    Attributes:
        notes: sentences for the model about skipped entries.
        left: number of names that may still be visited.
        deadline: the end of the walk, by the clock of the event loop.
    """

    notes: dict[str, None] = attrs.field(factory=dict)
    left: int = MAX_ENTRIES
    deadline: float = attrs.field(factory=lambda: time.monotonic() + SEARCH_SECONDS)

    def late(self) -> bool:
        """Return whether the time is over, and note it."""
        if time.monotonic() <= self.deadline:
            return False
        self.notes[f"stopped after {SEARCH_SECONDS:g} s: give a narrower path or glob"] = None
        return True

    def entries(
        self, folder: Folder, *, deep: bool, prefix: str = "", depth: int = 0
    ) -> Generator[FolderEntry, None, None]:
        """Yield the entries of an open folder; with `deep`, those of the folders below it too."""
        for name in self._names(folder):
            if self.late():
                return
            entry = FolderEntry(folder, name, prefix + shown(name), _mode(name, folder))
            yield entry
            if deep and stat.S_ISDIR(entry.mode) and self._enters(name, depth):
                with contextlib.suppress(OSError), folder.inner(name, make=False) as inner:
                    yield from self.entries(inner, deep=True, prefix=f"{entry.path}/", depth=depth + 1)

    def _names(self, folder: Folder) -> list[str]:
        try:
            with os.scandir(folder.fd) as found:
                names = [entry.name for entry in itertools.islice(found, self.left + 1)]
        except OSError as exc:
            self.notes[f"a folder could not be read: {exc.strerror}"] = None
            return []
        if len(names) > self.left:
            names.pop()
            self.notes[f"stopped after {MAX_ENTRIES} names: give a narrower path"] = None
        self.left -= len(names)
        return sorted(names)

    def _enters(self, name: str, depth: int) -> bool:
        if name in SKIPPED:
            self.notes[f"not looked into: {name} (give it as the path to do so)"] = None
            return False
        return depth < MAX_DEPTH


def _mode(name: str, folder: Folder) -> int:
    try:
        return folder.stat(name).st_mode
    except OSError:
        return 0


def answer(lines: list[str], walk: Walk, nothing: str) -> str:
    """Return lines and notes as one text."""
    return "\n".join([*(lines or [nothing]), *(f"[{note}]" for note in walk.notes)])


def listing(place: Place, glob: str) -> str:
    """Return the entries of a folder, one path a line: folders end with a slash, links with an at sign."""
    lines: list[str] = []
    walk, wanted = Walk(), glob_pattern(glob)
    deep = "/" in glob or "**" in glob
    with (
        place.folder.inner(place.name, make=False) as folder,
        contextlib.closing(walk.entries(folder, deep=deep)) as entries,
    ):
        for entry in entries:
            if wanted.search(entry.path) is None:
                continue
            if len(lines) == MAX_LISTED:
                walk.notes[f"stopped after {MAX_LISTED} paths: give a narrower path or glob"] = None
                break
            lines.append(entry.path + ("/" if stat.S_ISDIR(entry.mode) else "@" if stat.S_ISLNK(entry.mode) else ""))
    return answer(lines, walk, "(nothing matches)")


@define
class Search:
    """The search of one pattern in many files.

    Attributes:
        wanted: the compiled pattern.
        walk: bounds the search in time.
        lines: the matches, as the model reads them.
    """

    wanted: Any
    walk: Walk = attrs.field(factory=Walk)
    lines: list[str] = attrs.field(factory=list)

    def full(self) -> bool:
        """Return whether there is no room or no time for more lines, and note it."""
        if len(self.lines) < MAX_MATCHES:
            return self.walk.late()
        self.walk.notes[f"stopped after {MAX_MATCHES} matches: give a narrower pattern, path or glob"] = None
        return True

    def folder(self, place: Place, glob: str) -> None:
        """Search the files of a folder and of the folders below it, if their path or their name matches the glob."""
        fits = glob_pattern(glob)
        prefix = "" if place.path == "." else f"{shown(place.path)}/"
        with (
            place.folder.inner(place.name, make=False) as top,
            contextlib.closing(self.walk.entries(top, deep=True)) as entries,
        ):
            for entry in entries:
                name = entry.path if "/" in glob else shown(entry.name)
                if stat.S_ISREG(entry.mode) and fits.search(name) is not None:
                    self.file(entry.name, entry.folder, prefix + entry.path)
                    if self.full():
                        return

    def file(self, name: str, folder: Folder, path: str) -> None:
        """Search a file; a file that is no text, or is gone meanwhile, has no matches."""
        with contextlib.suppress(OSError, ToolError):
            with open_regular(name, folder, path) as fd, open(fd, "rb", closefd=False) as file:
                data = file.read(MAX_SEARCHED + 1)
            self._text(data, path)

    def _text(self, data: bytes, path: str) -> None:
        encoding = encoding_of(data[:SAMPLE])
        if encoding is None:
            return
        if len(data) > MAX_SEARCHED:
            self.walk.notes[f"{path}: only its first {MAX_SEARCHED} bytes were searched"] = None
            data = data[:MAX_SEARCHED]
        if encoding != "utf-8":
            data = data.decode(encoding, "replace").encode()
        self._matches(data, path)

    def _matches(self, data: bytes, path: str) -> None:
        """Add each line with a match; the engine gets the text in windows, with a look at the deadline between them."""
        start, number = 0, 1
        while start < len(data):
            end = _window_end(data, start)
            found = self.wanted.search(data[start:end])
            if found is None:
                number += data.count(b"\n", start, end)
                start = end
            else:
                at = start + found.start()
                number += data.count(b"\n", start, at)
                line_end = data.find(b"\n", at)
                line_end = len(data) if line_end < 0 else line_end
                self._note(data, at, line_end, f"{path}:{number}")
                start, number = line_end + 1, number + 1
            if self.full():
                return

    def _note(self, data: bytes, at: int, line_end: int, where: str) -> None:
        begin = data.rfind(b"\n", 0, at) + 1
        if at - begin > MAX_SHOWN // 2:
            begin = at - MAX_SHOWN // 2
        text = data[begin : min(line_end, begin + 4 * MAX_SHOWN)].decode("utf-8", "replace")
        self.lines.append(f"{where}: {text[:MAX_SHOWN].rstrip()}")


def _window_end(data: bytes, start: int) -> int:
    """Return the end of the window: behind its last line end, or its full length within a longer line."""
    if len(data) - start <= WINDOW:
        return len(data)
    return data.rfind(b"\n", start, start + WINDOW) + 1 or start + WINDOW
