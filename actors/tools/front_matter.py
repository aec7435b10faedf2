"""Files in Markdown with a YAML front matter, as skills and agents are written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

MAX_BYTES: Final = 64 * 1024
"""The most bytes of a file: a model reads it as a whole."""
MAX_FRONT: Final = 4 * 1024
"""The most characters of a front matter: PyYAML takes seconds for as many brackets."""
MARK: Final = "---"


class FrontMatterError(Exception):
    """A file is not what it should be; the text continues after the file's name."""


def text_of(path: Path) -> str:
    """Return the text of a file. Raises FrontMatterError."""
    try:
        if not path.is_file():  # opening a pipe would block
            raise FrontMatterError("is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise FrontMatterError(str(exc.strerror)) from exc
    if len(data) > MAX_BYTES:
        raise FrontMatterError(f"has more than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise FrontMatterError(f"is not UTF-8 at byte {exc.start}") from exc


def split(text: str, *, most: int = MAX_FRONT) -> tuple[str, str]:
    """Return the front matter, of `most` characters, and the text after it. Raises FrontMatterError."""
    first, *lines = text.replace("\r\n", "\n").split("\n")
    marks = [at for at, line in enumerate(lines) if line.rstrip() == MARK]
    if first.rstrip() != MARK or not marks:
        raise FrontMatterError(f"has no front matter between two lines of {MARK}")
    front = "\n".join(lines[: marks[0]])
    if len(front) > most:
        raise FrontMatterError(f"the front matter has more than {most} characters")
    return front, "\n".join(lines[marks[0] + 1 :])


def fields_of(front: str) -> Mapping[Any, Any]:
    """Return the fields of a front matter. Raises FrontMatterError."""
    import yaml  # noqa: PLC0415 - it has an extra of its own

    try:
        fields = yaml.safe_load(front)
    except yaml.MarkedYAMLError as exc:
        at = f" in line {exc.problem_mark.line + 2}" if exc.problem_mark else ""
        raise FrontMatterError(f"the front matter is not YAML{at}: {exc.problem}") from exc
    except Exception as exc:  # PyYAML fails in many ways: with KeyError for `!!bool x`, with RecursionError too
        raise FrontMatterError("the front matter is not YAML") from exc
    if not isinstance(fields, dict):
        raise FrontMatterError("the front matter must have `name: …` and `description: …`")
    return fields
