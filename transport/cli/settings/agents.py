"""The agents of the configuration file: the tables `[agents.NAME]`, and folders with agents in files."""

import json
from pathlib import Path
from typing import Any, Final

import attrs

from warren.agents.agent import Agent
from warren.agents.written import WrittenAgent, agent_of
from warren.base.errors import InvalidParamsError
from warren.base.fields import NAME, FieldValueError
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.options import in_row, part
from warren.settings.config import AgentFolder, are_tenants

FOLDERS: Final = "$.config.agent_folders"


@frozen(kw_only=True)
class AgentTable(WrittenAgent):
    """The table `[agents.NAME]`.

    Attributes:
        instructions_file: a file with the instructions; a relative path is from the folder of the settings.
        output_schema_file: a file with the output schema, in JSON.
        tenants: the tenants that know it; empty for all.
    """

    instructions_file: str | None = None
    output_schema_file: str | None = None
    tenants: tuple[str, ...] = attrs.field(default=(), converter=in_row, validator=are_tenants)


@frozen(kw_only=True)
class FolderTable:
    """An entry of `[[agent_folders]]`."""

    path: str
    tenants: tuple[str, ...] = attrs.field(default=(), converter=in_row, validator=are_tenants)


def agent_in(name: str, table: AgentTable, config: Path | None) -> Agent[Any]:
    """Return the agent of a table in a file. Raises InvalidParamsError at its path in the file."""
    root = f"$.config.agents.{name}"
    if not NAME.fullmatch(name):
        raise InvalidParamsError.at(root, "the name must be 1 to 64 letters, digits, `-` and `_`, the first no sign")
    try:
        return agent_of(name, _whole(table, config))
    except FieldValueError as exc:
        raise exc.refusal(root) from None


def _whole(table: AgentTable, config: Path | None) -> WrittenAgent:
    """Return an agent with the content of the files that it names. Raises FieldValueError."""
    written = part(WrittenAgent, table)
    for field in ("instructions", "output_schema"):
        if getattr(table, f"{field}_file") is not None and getattr(table, field):
            raise FieldValueError(f"{field}_file", f"does not go with `{field}`")
    if (name := table.instructions_file) is not None:
        written = attrs.evolve(written, instructions=_text("instructions_file", name, config).strip())
    if (name := table.output_schema_file) is not None:
        try:
            schema = json.loads(_text("output_schema_file", name, config))
        except ValueError as exc:
            raise FieldValueError("output_schema_file", f"{name}: {exc}") from None
        written = attrs.evolve(written, output_schema=schema)
    return written


def folders_in(data: Any, config: Path | None) -> tuple[AgentFolder, ...]:
    """Return the folders of a list of paths and tables. Raises InvalidParamsError at the place in the file."""
    if not isinstance(data, list):
        raise InvalidParamsError.at(FOLDERS, "must be a list of folders")
    found = list[AgentFolder]()
    for index, each in enumerate(data):
        place = f"{FOLDERS}[{index}]"
        table = FolderTable(path=each) if isinstance(each, str) else codec.from_data(FolderTable, each, root=place)
        folder = _place(table.path, config)
        if not folder.is_dir():
            raise InvalidParamsError.at(place, f"there is no folder {table.path}")
        found.append(AgentFolder(folder, table.tenants))
    return tuple(found)


def _text(field: str, name: str, config: Path | None) -> str:
    try:
        return _place(name, config).read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise FieldValueError(field, f"{name}: {exc.strerror}") from None
    except ValueError as exc:
        raise FieldValueError(field, f"{name}: {exc}") from None


def _place(name: str, config: Path | None) -> Path:
    return Path(name) if config is None else config.parent / name
