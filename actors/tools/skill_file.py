"""One skill in one file: Markdown with a YAML front matter that has its name and its description."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from warren.actors.tools.front_matter import FrontMatterError, fields_of, split, text_of
from warren.base.fields import NAME
from warren.base.values import frozen

MAX_DESCRIPTION: Final = 1024


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
    """Read a skill. Raises FrontMatterError if the file is none."""
    front, body = split(text_of(path))
    fields = fields_of(front)
    if not body.strip():
        raise FrontMatterError("there is nothing after the front matter")
    requires = fields.get("requires")
    if requires not in (None, "memory"):
        raise FrontMatterError("requires: can only be `memory`")
    return Skill(_name(fields), _description(fields), body.strip(), path, needs_memory=requires == "memory")


def _name(fields: Mapping[Any, Any]) -> str:
    name = fields.get("name")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise FrontMatterError("name: must be 1 to 64 letters, digits, `-` and `_`, the first of them no sign")
    return name


def _description(fields: Mapping[Any, Any]) -> str:
    """Return the description as one line, so that no part of it looks like another line of the instructions."""
    description = fields.get("description")
    line = " ".join(description.split()) if isinstance(description, str) else ""
    if not line or len(line) > MAX_DESCRIPTION:
        raise FrontMatterError(f"description: must be a text of 1 to {MAX_DESCRIPTION} characters")
    if not line.isprintable():
        raise FrontMatterError("description: must have no characters that cannot be seen")
    return line
