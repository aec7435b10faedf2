"""Agents in files: Markdown with a front matter, as Claude Code has them in `.claude/agents`."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs

from warren.actors.tools.claude_names import CLAUDE_TOOLS
from warren.actors.tools.front_matter import FrontMatterError, fields_of, split, text_of
from warren.agents.agent import Agent
from warren.agents.written import WrittenAgent, agent_of
from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.fields import NAME, FieldValueError
from warren.conversation import codec
from warren.models.catalog import Models
from warren.settings.config import AgentFolder, Config

logger: Final = logging.getLogger("warren.agents")
FOR_ALL: Final = "AGENTS.md"
"""The file of a folder whose text all agents of the folder have behind their own."""
IN_FOLDER: Final = ("AGENT.md", "SKILL.md")
"""The files that are an agent in a folder of its own."""
MAX_FRONT: Final = 16 * 1024
"""The most characters of a front matter: descriptions with examples are long."""
MAX_ENTRIES: Final = 10_000
"""The most entries of one folder that are read."""
ALIASES: Final = frozenset({"inherit", "default", "sonnet", "opus", "haiku"})
"""Names of models that mean the runtime's own, unless the settings know a model of the name."""
OTHER_NAMES: Final = {"allowed-tools": "tools", "allowed_tools": "tools"}
NOT_ALLOWED: Final = "disallowedTools"
OWN: Final = tuple(dict.fromkeys(CLAUDE_TOOLS.values()))
"""The tools of an agent that names none, as it has all of them in Claude Code."""
SHOWN_ELSEWHERE: Final = frozenset({"color", "license", "metadata", "version", "author"})
"""Keys that are for the eyes of people, and have no effect."""
KNOWN: Final = frozenset({"name", NOT_ALLOWED, *OTHER_NAMES, *attrs.fields_dict(WrittenAgent)} - {"instructions"})
_OF_CLAUDE: Final = ("permissionMode", "skills", "hooks", "mcpServers", "memory", "background", "maxTurns")
_KEY: Final = re.compile(r"([A-Za-z][A-Za-z_-]*):(?:\s+(.*))?")
_OF_SERVER: Final = re.compile(r"mcp__(.+?)__(.+)")
"""A tool of an MCP server, which has its own name here, or that of its server before it."""
_QUOTED: Final = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_CAPITAL: Final = re.compile(r"[A-Z]\w*")


def with_agents_of_folders(config: Config) -> Config:
    """Return settings with the agents of their folders, which are read now: later changes of the files have no effect.

    A file that is no agent is left out with a warning in the log `warren.agents`; so is a key that has no meaning.

    Raises InvalidParamsError if a folder cannot be read, if two agents have one name, or without the extra `skills`.
    """
    if not config.agent_folders:
        return config
    if problem := missing("skills", "agents in files need"):
        raise InvalidParamsError(problem, path="$.agent_folders")
    found = dict[str, tuple[Path, Agent[Any]]]()
    tenants = dict(config.agent_tenants)
    for folder in config.agent_folders:
        for path, agent in _agents_in(folder, config.models):
            if agent.name in found:
                problem = f"{path}: {found[agent.name][0]} is an agent of the name {agent.name!r}, too"
                raise InvalidParamsError(problem, path="$.agent_folders")
            found[agent.name] = path, agent
            if folder.tenants:
                tenants[agent.name] = folder.tenants
    for each in config.agents:
        if each.name in found:
            problem = f"{found[each.name][0]}: there is another agent of the name {each.name!r} in the settings"
            raise InvalidParamsError(problem, path="$.agent_folders")
    agents = (*config.agents, *(agent for _, agent in found.values()))
    return attrs.evolve(config, agents=agents, agent_folders=(), agent_tenants=tenants)


def _agents_in(folder: AgentFolder, models: Models) -> Iterator[tuple[Path, Agent[Any]]]:
    """Yield the agents of a folder, by the names of their files. Raises InvalidParamsError."""
    try:
        paths = sorted(_files(folder.path))
        shared = text_of(folder.path / FOR_ALL).strip() if (folder.path / FOR_ALL).is_file() else ""
    except OSError as exc:
        raise InvalidParamsError(f"{folder.path}: {exc.strerror}", path="$.agent_folders") from None
    except FrontMatterError as exc:
        raise InvalidParamsError(f"{folder.path / FOR_ALL}: {exc}", path="$.agent_folders") from None
    for path in paths:
        try:
            yield path, read_agent(path, models, shared=shared)
        except FrontMatterError as exc:
            logger.warning("an agent is left out: %s%s", path, exc if str(exc).startswith(":") else f": {exc}")


def _files(folder: Path) -> Iterator[Path]:
    for entry in islice(folder.iterdir(), MAX_ENTRIES):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from [entry / name for name in IN_FOLDER if (entry / name).is_file()][:1]
        elif entry.suffix == ".md" and entry.name != FOR_ALL:
            yield entry


def read_agent(path: Path, models: Models, *, shared: str = "") -> Agent[Any]:
    """Read an agent. `shared` is a text that its instructions end with. Raises FrontMatterError if the file is none."""
    front, body = split(text_of(path), most=MAX_FRONT)
    fields, lines = _fields(front), _lines_of(front)

    def at(key: str) -> str:
        return f":{lines[key]}" if key in lines else ""

    written: dict[str, Any] = {}
    for key, value in fields.items():
        if key not in KNOWN and key not in SHOWN_ELSEWHERE:
            logger.warning("%s%s: %s: is not known here and has no effect", path, at(str(key)), key)
        elif key in KNOWN:
            written[OTHER_NAMES.get(key, key)] = value
    named = path.parent.name if path.name in IN_FOLDER else path.stem
    name = written.pop("name", None) or named
    if not isinstance(name, str) or not NAME.fullmatch(name):
        problem = "must be 1 to 64 letters, digits, `-` and `_`, the first of them no sign"
        raise FrontMatterError(f"{at('name')}: name: {problem}")
    written["description"] = _line(written.get("description"))
    tools = _tools(written.get("tools"), path, at("tools") or at("allowed-tools"))
    barred = _tools(written.pop(NOT_ALLOWED, ()), path, at(NOT_ALLOWED))
    written["tools"] = [each for each in tools if each not in barred]
    if (model := written.get("model")) in ALIASES and model not in models:
        del written["model"]
    written["instructions"] = "\n\n".join(filter(None, (body.strip(), shared)))
    try:
        return agent_of(name, codec.from_data(WrittenAgent, written))
    except FieldValueError as exc:
        raise FrontMatterError(f"{at(_head(exc.field))}: {exc.field}: {exc.problem}") from None
    except InvalidParamsError as exc:
        field = str(exc.details.get("path", "")).removeprefix("$.")
        raise FrontMatterError(f"{at(_head(field))}: {exc.message.removeprefix('$.')}") from None


def _head(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _fields(front: str) -> Mapping[Any, Any]:
    """Return the fields of a front matter.

    Claude Code takes descriptions that are no YAML, with colons and over several lines: then each known key at the
    beginning of a line begins a field.
    """
    try:
        return fields_of(front)
    except FrontMatterError:
        found = _lenient(front)
        if not found.keys() & {"name", "description"}:
            raise
        return found


def _lenient(front: str) -> dict[str, str]:
    found, key = dict[str, str](), ""
    for line in front.split("\n"):
        match = _KEY.fullmatch(line)
        if match is not None and _begins_field(match[1]) and match[1] not in found:
            key, found[match[1]] = match[1], match[2] or ""
        elif key:
            found[key] += f"\n{line}"
    return {key: _unquoted(value.strip()) for key, value in found.items()}


def _unquoted(value: str) -> str:
    match = _QUOTED.fullmatch(value)
    return match[2] if match else value


def _begins_field(key: str) -> bool:
    return key in KNOWN or key in SHOWN_ELSEWHERE or key in _OF_CLAUDE


def _lines_of(front: str) -> Mapping[str, int]:
    """Return the number of the line of the file where each key stands."""
    found = dict[str, int]()
    for number, line in enumerate(front.split("\n"), 2):
        if match := _KEY.fullmatch(line):
            found.setdefault(match[1], number)
    return found


def _line(value: Any) -> Any:
    """Return a text as one line, without the escaped ends of lines that generated files have."""
    return " ".join(value.replace("\\n", " ").split()) if isinstance(value, str) else value or ""


def _tools(value: Any, path: Path, line: str) -> Sequence[Any]:
    """Return the names of our tools for a list, or a text with commas; None takes all that have a name of Claude's."""
    if value is None:
        return OWN
    named = re.split(r"[,\n]", value) if isinstance(value, str) else value
    if not isinstance(named, Sequence):
        return [value]  # is refused as any other value
    found = dict[Any, None]()
    for each in named:
        name = each.strip() if isinstance(each, str) else each
        if not isinstance(name, str):
            found[name] = None
        elif name == "*":
            found |= dict.fromkeys(OWN)
        elif name in CLAUDE_TOOLS or not name:
            found |= {CLAUDE_TOOLS[name]: None} if name else {}
        elif match := _OF_SERVER.fullmatch(name):
            found |= dict.fromkeys(each for each in (match[2], f"{match[1]}_{match[2]}") if each not in OWN)
        elif "(" in name or _CAPITAL.fullmatch(name):
            logger.warning("%s%s: tools: there is no %s here; the agent does without", path, line, name)
        else:
            found[name] = None
    return list(found)
