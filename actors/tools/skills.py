"""Skills: instructions for kinds of tasks, listed by name in the model's instructions and loaded by a tool."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio

from warren.actors.tools.front_matter import FrontMatterError
from warren.actors.tools.skill_file import Skill, read_skill
from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.values import frozen
from warren.models.tools import Tool, ToolError, tool

logger: Final = logging.getLogger("warren.skills")
SHIPPED: Final = Path(__file__).parent / "shipped"
LOAD: Final = "load_skill"
USAGE: Final = """\
Load a skill: instructions for a kind of task. The skills and what each is for are listed in your instructions; load \
one before you begin with a task that it is for, then follow it."""
NOTE: Final = f"Skills tell you how to do certain tasks well; load one with {LOAD} before you begin with its task:"
MAX_SKILLS: Final = 100
"""The most skills: their list is in every request to a model."""
MAX_ENTRIES: Final = 10_000
"""The most entries of one folder that are read."""


async def _signature(name: Annotated[str, "The skill's name, as it is listed"]) -> str:
    """The argument of the tool; its description is replaced by one that lists the offered skills."""
    raise NotImplementedError


# Made once: making a tool's schema takes longer than a turn.
_TOOL: Final = tool(name=LOAD, description=USAGE, restart="replay")(_signature)


@frozen
class Skills:
    """The skills of a runtime.

    Attributes:
        known: the skills by name, in the order of the list.
        problems: a sentence for each file that was left out, beginning with the file.
    """

    known: Mapping[str, Skill] = attrs.field(factory=dict)
    problems: tuple[str, ...] = ()

    def offered(self, *, memory: bool) -> "Skills":
        """Return the skills that a runtime with a memory, or without one, can offer."""
        if memory:
            return self
        return attrs.evolve(self, known={name: skill for name, skill in self.known.items() if not skill.needs_memory})

    def note(self) -> str:
        """Return the text for the model's instructions: a sentence, and a line for each skill; empty without skills."""
        lines = [f"- {skill.name}: {skill.description}" for skill in self.known.values()]
        return "\n".join([NOTE, *lines]) if lines else ""

    def tool(self) -> Tool:
        """Return the tool that loads a skill."""
        return attrs.evolve(_TOOL, call=self._load)

    async def _load(self, name: str) -> str:
        await trio.lowlevel.checkpoint()
        skill = self.known.get(name)
        if skill is None:
            raise ToolError(f"there is no skill {name[:80]!r}; there are: {', '.join(self.known) or 'none'}")
        return skill.body


def load_skills(folders: Sequence[Path]) -> Skills:
    """Read the skills of folders, `NAME.md` or `NAME/SKILL.md`, and those that Warren ships.

    Later changes of the files have no effect. If two skills have one name, that of the first folder counts; the shipped
    ones come last. A file that is no skill is left out with a warning. Without the extra `skills` there are no skills.

    Raises:
        InvalidParamsError: if folders are named and the extra is not installed.
    """
    if problem := missing("skills", "skills need"):
        if folders:
            raise InvalidParamsError(problem, path="$.skills")
        return Skills()
    known: dict[str, Skill] = {}
    problems: list[str] = []
    for folder in (*folders, SHIPPED):
        _read_folder(folder, known, problems)
    for problem in problems:
        logger.warning("a skill is left out: %s", problem)
    return Skills(known, tuple(problems))


def _read_folder(folder: Path, known: dict[str, Skill], problems: list[str]) -> None:
    """Add the skills of a folder, and its problems."""
    try:
        paths = list(_skill_files(folder))
    except OSError as exc:
        problems.append(f"{folder}: {exc.strerror}")
        return
    for path in paths:
        try:
            skill = read_skill(path)
            _add(skill, known)
        except FrontMatterError as exc:
            problems.append(f"{path}: {exc}")


def _add(skill: Skill, known: dict[str, Skill]) -> None:
    if skill.name in known:
        if skill.path.parent == SHIPPED:  # an earlier folder has a skill of this name
            return
        raise FrontMatterError(f"the name {skill.name!r} is taken by {known[skill.name].path}")
    if len(known) >= MAX_SKILLS:
        raise FrontMatterError(f"there are {MAX_SKILLS} skills already")
    known[skill.name] = skill


def _skill_files(folder: Path) -> Iterator[Path]:
    """Yield the files that may be skills, by name; hidden entries and other folders are none."""
    for path in sorted(islice(folder.iterdir(), MAX_ENTRIES)):
        if not path.name.startswith("."):
            if path.suffix == ".md":
                yield path
            elif path.is_dir() and _is_there(path / "SKILL.md"):
                yield path / "SKILL.md"


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # reading it raises the error
