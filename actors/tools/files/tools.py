"""Tools to read, list, search, write and edit the files under a root."""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from warren.actors.tools.files import search as files_search
from warren.actors.tools.files import text as files_text
from warren.actors.tools.files.root import Root, shown, told
from warren.base.values import frozen
from warren.models.tools import Tool, tool

MAX_LINES: Final = 2000
_Path = Annotated[str, "path from the root folder, as in src/main.py"]
_Folder = Annotated[str, "folder, from the root folder; '.' is the root itself"]
_Offset = Annotated[int, msgspec.Meta(ge=0), "how many lines to leave out at the beginning"]
_Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_LINES), "how many lines to return at most"]
_Pattern = Annotated[str, "regular expression in RE2's syntax, looked for in each line"]
_ListGlob = Annotated[
    str, "'*' matches within the folder, '**/*.py' also in the folders below it, '*.{js,ts}' either ending"
]
_Glob = Annotated[
    str, "which files: a glob over the name, as in '*.py', or with a slash over the path below the folder"
]


def file_tools(root: Path, *, writable: bool = True) -> tuple[Tool, ...]:
    """Return the tools for the files under a root; tools that change files only if it is `writable`.

    Nothing outside of the root is read or written, even if another process swaps links meanwhile. POSIX only.

    Traps: links under the root are refused even if they lead to a place inside. An interrupt does not stop a write that
    has begun: the file is written whole.

    Raises:
        FieldValueError: if the root is no folder.
    """
    files = _Files(Root.at(root))
    reading = (files.read_file, files.list_files, files.search_files)
    changing = (files.write_file, files.edit_file) if writable else ()
    replayed = tool(restart="replay")
    return (*[replayed(each) for each in reading], *[tool(each) for each in changing])


@frozen
class _Files:
    """The functions of the tools; the model reads their docstrings."""

    root: Root

    def read_file(self, path: _Path, offset_lines: _Offset = 0, limit_lines: _Limit = MAX_LINES) -> str:
        """Read a text file. Long files come in parts: a note at the end has the offset to go on with."""
        with self.root.place(path) as place:
            return files_text.read_page(place, offset_lines, limit_lines)

    def list_files(self, path: _Folder = ".", glob: _ListGlob = "*") -> str:
        """List a folder, one path a line, relative to that folder.

        Folders end with '/', links with '@'. Below the folder, .git, node_modules and the like are not looked into.
        """
        with self.root.place(path) as place, told(place.path):
            return files_search.listing(place, glob)

    def search_files(
        self, pattern: _Pattern, path: _Folder = ".", glob: _Glob = "*", *, ignore_case: bool = False
    ) -> str:
        """Search text files for a regular expression. Returns 'path:line: text' for each line that matches.

        The path may be a folder, which is searched with all that is in it, or one file. Binary files, links, .git,
        node_modules and the like are left out.
        """
        search = files_search.Search(files_search.pattern(pattern, "pattern", ignore_case=ignore_case))
        with self.root.place(path) as place:
            if place.is_folder():
                with told(place.path):
                    search.folder(place, glob)
            else:
                with place.reading():  # raises for a bad pattern
                    search.file(place.name, place.folder, shown(place.path))
        return files_search.answer(search.lines, search.walk, "(no matches)")

    def write_file(self, path: _Path, content: Annotated[str, "the whole text of the file"]) -> str:
        """Write a text file, in the place of an old one if there is one. Folders on the way are made.

        To change a part of a file use edit_file.
        """
        data = files_text.encoded(content, "content")
        with self.root.place(path, make=True) as place, place.changing():
            old = place.found()
            place.replace(data, old)
            return f"{'made' if old is None else 'replaced'} {shown(place.path)}: {len(data)} bytes"

    def edit_file(
        self,
        path: _Path,
        old: Annotated[str, "the text to replace, to the letter; it must be in the file exactly once"],
        new: Annotated[str, "the text to put in its place"],
        *,
        replace_all: Annotated[bool, "replace every occurrence"] = False,
    ) -> str:
        """Replace a passage of a text file. Read the file first: the passage must be the same to the letter."""
        with self.root.place(path) as place, place.changing():
            text, version = files_text.read_whole(place)
            changed, count = files_text.replaced(text, old, new, every=replace_all, path=place.path)
            place.replace(files_text.encoded(changed, "new"), version)
            return f"changed {shown(place.path)}: {count} {'place' if count == 1 else 'places'}"
