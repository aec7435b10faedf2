"""One skill in one file: Markdown with a YAML front matter that has its name and its description."""

from pathlib import Path
from typing import Any, Final

import attrs

from warren.base.fields import NAME
from warren.base.values import frozen

MAX_BYTES: Final = 64 * 1024
"""The most bytes of a file: a model reads it as a whole."""
MAX_FRONT: Final = 4 * 1024
"""The most characters of a front matter: PyYAML takes seconds for as many brackets."""
MAX_DESCRIPTION: Final = 1024
MARK: Final = "---"


class SkillFileError(Exception):
    """A file is no skill; the text continues after the file's name."""


@frozen
class Skill:
    """Instructions for a kind of task.

    Attributes:
        name: letters, digits, `-` and `_`.
        description: its purpose in one line.
        body: the text for a model that loads it.
        path: the file.
        needs_memory: whether it needs a memory (`requires: memory`).
    """

    name: str
    description: str
    body: str = attrs.field(repr=False)
    path: Path
    needs_memory: bool = False


def read_skill(path: Path) -> Skill:
    """Read a skill. Raises SkillFileError if the file is none."""
    front, body = _split(_text(path))
    fields = _fields(front)
    if not body.strip():
        raise SkillFileError("there is nothing after the front matter")
    requires = fields.get("requires")
    if requires not in (None, "memory"):
        raise SkillFileError("requires: can only be `memory`")
    return Skill(_name(fields), _description(fields), body.strip(), path, needs_memory=requires == "memory")


def _text(path: Path) -> str:
    try:
        if not path.is_file():  # opening a pipe would block
            raise SkillFileError("is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise SkillFileError(str(exc.strerror)) from exc
    if len(data) > MAX_BYTES:
        raise SkillFileError(f"has more than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise SkillFileError(f"is not UTF-8 at byte {exc.start}") from exc


def _split(text: str) -> tuple[str, str]:
    """Return the front matter and the text after it."""
    first, *lines = text.replace("\r\n", "\n").split("\n")
    marks = [at for at, line in enumerate(lines) if line.rstrip() == MARK]
    if first.rstrip() != MARK or not marks:
        raise SkillFileError(f"has no front matter between two lines of {MARK}")
    front = "\n".join(lines[: marks[0]])
    if len(front) > MAX_FRONT:
        raise SkillFileError(f"the front matter has more than {MAX_FRONT} characters")
    return front, "\n".join(lines[marks[0] + 1 :])


def _fields(front: str) -> dict[Any, Any]:
    import yaml  # noqa: PLC0415 - it has an extra of its own

    try:
        fields = yaml.safe_load(front)
    except yaml.MarkedYAMLError as exc:
        at = f" in line {exc.problem_mark.line + 2}" if exc.problem_mark else ""
        raise SkillFileError(f"the front matter is not YAML{at}: {exc.problem}") from exc
    except Exception as exc:  # PyYAML fails in many ways: with KeyError for `!!bool x`, with RecursionError too
        raise SkillFileError("the front matter is not YAML") from exc
    if not isinstance(fields, dict):
        raise SkillFileError("the front matter must have `name: …` and `description: …`")
    return fields


def _name(fields: dict[Any, Any]) -> str:
    name = fields.get("name")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise SkillFileError("name: must be 1 to 64 letters, digits, `-` and `_`, the first of them no sign")
    return name


def _description(fields: dict[Any, Any]) -> str:
    """Return the description as one line, so that no part of it looks like another line of the instructions."""
    description = fields.get("description")
    line = " ".join(description.split()) if isinstance(description, str) else ""
    if not line or len(line) > MAX_DESCRIPTION:
        raise SkillFileError(f"description: must be a text of 1 to {MAX_DESCRIPTION} characters")
    if not line.isprintable():
        raise SkillFileError("description: must have no characters that cannot be seen")
    return line
