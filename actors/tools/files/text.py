"""Text of files: its encoding, a page of its lines, the replacement of a passage."""

import codecs
import os
import time
from collections.abc import Iterator
from typing import Final, TextIO

import attrs

from warren.actors.tools.files.root import Place, shown, told
from warren.base.values import define
from warren.models.tools import ToolError

MAX_PAGE: Final = 64 * 1024
"""Characters that one reading returns."""
MAX_LINE: Final = 4000
MAX_FILE: Final = 4 * 1024 * 1024
"""Bytes of a file that can be written, or changed."""
READ_SECONDS: Final = 10.0
SAMPLE: Final = 8192
MAX_PLACES: Final = 10
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(sample: bytes) -> str | None:
    """Return the encoding by the first bytes of a file; None if it is no text."""
    for mark, name in _MARKS:
        if sample.startswith(mark):
            return name
    return None if b"\0" in sample else "utf-8"


@define
class _Page:
    """The lines of one answer of read_file, up to its bound."""

    room: int = MAX_PAGE
    lines: list[str] = attrs.field(factory=list)
    cut: int = 0

    def add(self, line: str, *, whole: bool) -> bool:
        """Add a line; return False if there is no room for it. There is always room for the first."""
        if len(line) > self.room:
            return False
        self.room -= len(line)
        self.cut += not whole
        self.lines.append(line if whole else f"{line} [line cut]\n")
        return True


def read_page(place: Place, offset: int, limit: int) -> str:
    """Return up to `limit` lines after the first `offset` ones, with a note of the next offset if there are more."""
    page, seen, more = _Page(), 0, False
    with place.reading() as fd:
        encoding = encoding_of(os.pread(fd, SAMPLE, 0))
        if encoding is None:
            size = os.fstat(fd).st_size
            raise ToolError(f"{shown(place.path)}: is a binary file of {size} bytes; it cannot be shown as text")
        with told(place.path), open(fd, encoding=encoding, errors="replace", closefd=False) as file:
            for line, whole in _lines(file, place.path):
                more = seen >= offset and (len(page.lines) == limit or not page.add(line, whole=whole))
                if more:
                    break
                seen += 1
    if offset and not page.lines:
        raise ToolError(f"{shown(place.path)}: has only {seen} lines; offset_lines must be below that")
    return _with_notes(page, seen, more=more)


def _lines(file: TextIO, path: str) -> Iterator[tuple[str, bool]]:
    """Yield the shown part of each line, and whether it is the whole line. Raises ToolError after too long."""
    deadline = time.monotonic() + READ_SECONDS
    while line := file.readline(MAX_LINE):
        whole, piece = True, line
        while not piece.endswith("\n") and (piece := file.readline(MAX_LINE)):
            whole = whole and piece == "\n"
            _check_time(deadline, path)
        _check_time(deadline, path)
        yield line, whole


def _check_time(deadline: float, path: str) -> None:
    if time.monotonic() > deadline:
        raise ToolError(f"{shown(path)}: is too large to read that far; find the place with search_files")


def _with_notes(page: _Page, seen: int, *, more: bool) -> str:
    text = "".join(page.lines)
    notes = [] if text else ["the file is empty"]
    if more:
        notes.append(f"truncated: go on at line {seen + 1} with offset_lines={seen}")
    if page.cut:
        notes.append(f"{page.cut} lines longer than {MAX_LINE} characters were cut")
    if "\ufffd" in text:
        notes.append("bytes that are not UTF-8 are shown as \ufffd")
    if not notes:
        return text
    return text + ("" if text.endswith("\n") or not text else "\n") + "".join(f"[{note}]\n" for note in notes)


def encoded(text: str, name: str) -> bytes:
    """Return a text as the bytes of a file. Raises ToolError with the name of the argument if it has no bytes."""
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise ToolError(f"{name}: cannot be written as UTF-8: {exc.reason} at character {exc.start}") from None
    if len(data) > MAX_FILE:
        raise ToolError(f"{name}: would make a file of {len(data)} bytes; at most {MAX_FILE} can be written")
    return data


def read_whole(place: Place) -> tuple[str, os.stat_result]:
    """Return the whole text of a file, with its line ends as they are, and the version that was read."""
    with place.reading() as fd, told(place.path):
        found = os.fstat(fd)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ToolError(f"{shown(place.path)}: is larger than {MAX_FILE} bytes and cannot be edited")
    try:
        return data.decode(), found
    except UnicodeDecodeError as exc:
        problem = f"is not UTF-8 text (byte {exc.start}) and cannot be edited"
        raise ToolError(f"{shown(place.path)}: {problem}") from None


def replaced(text: str, old: str, new: str, *, every: bool, path: str) -> tuple[str, int]:
    """Return the text with a passage replaced, and the number of replacements. Raises ToolError if it is ambiguous."""
    if not old:
        raise ToolError("old: must not be empty; write_file makes a file")
    if old == new:
        raise ToolError("new: is the same as old: nothing would change")
    if old not in text and "\r\n" in text:  # read_file shows all line ends as "\n"
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    count = text.count(old)
    if not count:
        hint = "it must be the same text to the letter, with its white space; read_file shows it"
        raise ToolError(f"old: is not in {shown(path)}; {hint}")
    if count > 1 and not every:
        hint = "give more of the text around it, or set replace_all"
        raise ToolError(f"old: is {count} times in {shown(path)}, first in lines {_places(text, old)}; {hint}")
    if len(text) + count * (len(new) - len(old)) > MAX_FILE:
        raise ToolError(f"new: would make a file of more than {MAX_FILE} bytes")
    return text.replace(old, new), count


def _places(text: str, passage: str) -> str:
    numbers: list[int] = []
    at = text.find(passage)
    while at >= 0 and len(numbers) < MAX_PLACES:
        numbers.append(text.count("\n", 0, at) + 1)
        at = text.find(passage, at + len(passage))
    return ", ".join(map(str, numbers))
