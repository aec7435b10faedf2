"""The configuration file: what a folder sets for the commands that run in it."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from warren import codec
from warren.compaction_config import CompactionConfig
from warren.config import Limits, RetryPolicy
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError, fits, no_url, positive
from warren.transport.cli.config_tables import LimitsTable, RetryTable, duration
from warren.transport.cli.config_tools import ServerTable, ToolsTable
from warren.transport.cli.kinds import KINDS
from warren.transport.cli.tool_options import TOOLS

MAX_PORT: Final = 65_535


def _path(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and "\0" in value:
        raise FieldValueError(attribute.name, "must not hold NUL")


@attrs.frozen(kw_only=True)
class CompactionTable(CompactionConfig):
    """The table `[compaction]`: the settings of `CompactionConfig` under their names.

    Attributes:
        enabled: false turns the capability off.
    """

    enabled: bool = True


@attrs.frozen(kw_only=True)
class RetentionTable:
    """The table `[retention]`: the ages of `warren.retention.Retention` under their names, as durations."""

    superseded: str | None = attrs.field(default=None, validator=duration)
    events: str | None = attrs.field(default=None, validator=duration)
    archived: str | None = attrs.field(default=None, validator=duration)


def _port(_instance: object, attribute: "attrs.Attribute[Any]", value: int | None) -> None:
    if value is not None and not 0 <= value <= MAX_PORT:
        raise FieldValueError(attribute.name, f"must be from 0 to {MAX_PORT}")


@attrs.frozen(kw_only=True)
class ServeTable:
    """The table `[serve]`: where `warren serve` listens and whom it lets in; `token_file` is relative as `store` is."""

    host: str | None = None
    port: int | None = attrs.field(default=None, validator=_port)
    token_file: str | None = attrs.field(default=None, validator=_path)
    origins: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class FileSettings:
    """The settings that a file may have, named as the options are; `store` is relative to where the command runs."""

    store: str | None = attrs.field(default=None, validator=[_path, no_url])
    ephemeral: bool | None = None
    model: str | None = None
    provider: str | None = None
    system: str | None = None
    stream: bool | None = None
    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_total_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_duration: str | None = attrs.field(default=None, validator=duration)
    max_tool_calls: int | None = attrs.field(default=None, validator=[positive, fits])
    max_steps: int | None = attrs.field(default=None, validator=[positive, fits])
    memory: bool | None = None
    embedder: str | None = None
    compaction: CompactionTable = attrs.field(factory=CompactionTable)
    retention: RetentionTable = attrs.field(factory=RetentionTable)
    serve: ServeTable = attrs.field(factory=ServeTable)
    limits: LimitsTable = attrs.field(factory=LimitsTable)
    retry: RetryTable = attrs.field(factory=RetryTable)
    tools: ToolsTable = attrs.field(factory=ToolsTable)
    mcp_servers: Mapping[str, ServerTable] = attrs.field(factory=dict)

    def value(self, name: str) -> Any:
        """Return a setting by its name, tables with a dot."""
        table, _, inner = name.rpartition(".")
        return getattr(getattr(self, table) if table else self, inner)


def _names() -> dict[str, str]:
    """Return the file's name of each option, tables with a dot, by the option's name in the code."""
    names: dict[str, str] = {}
    for field in attrs.fields(FileSettings):
        table = TABLES.get(field.name)
        if field.name in OF_THE_RUNTIME:
            continue
        if table is None:
            names[field.name] = field.name
            continue
        for inner in attrs.fields(table):
            if table is ToolsTable and inner.name not in (*TOOLS, *KINDS):
                continue
            name = f"{field.name}.{inner.name}"
            names[OTHERWISE.get(name, inner.name)] = name
    return names | {"drain": "limits.drain"}


TABLES: Final[Mapping[str, type]] = {
    "compaction": CompactionTable,
    "retention": RetentionTable,
    "serve": ServeTable,
    "tools": ToolsTable,
}
OTHERWISE: Final = {"compaction.enabled": "no_compaction", "serve.origins": "origin"}
OF_THE_RUNTIME: Final = frozenset({"limits", "retry", "mcp_servers"})
"""Tables whose settings are no options, but for `--drain`."""
FILE_NAMES: Final[Mapping[str, str]] = _names()
"""What a file may set of the options: its name there, by the name of the option in the code."""


@attrs.frozen
class ConfigFile:
    """What a file says.

    Attributes:
        defaults: the options' values, by their names in the code.
        limits: bounds of the runtime.
        retry: how failed model calls are tried again.
        tools: what it says of tools; of what is an option too, `defaults` has it.
        servers: its MCP servers, by name.
        there: the names of all that it sets, tables with a dot.
    """

    defaults: Mapping[str, Any]
    limits: Limits
    retry: RetryPolicy
    tools: ToolsTable
    servers: Mapping[str, ServerTable]
    there: frozenset[str]


def read_config(path: Path) -> ConfigFile:
    """Return what a file says.

    Raises InvalidParamsError: its path is `$.config` for a file that cannot be read or is no TOML, else that of the
    bad field below it, as in `$.config.compaction.window`.
    """
    data = _parse(path)
    try:
        settings = codec.from_data(FileSettings, data, root="$.config")
    except InvalidParamsError as exc:
        raise InvalidParamsError(f"{exc.message} ({path})", path=exc.path) from None
    there = frozenset(_dotted(data))
    found = {option: settings.value(name) for option, name in FILE_NAMES.items() if name in there}
    if "no_compaction" in found:
        found["no_compaction"] = not found["no_compaction"]
    return ConfigFile(
        found, settings.limits.limits(), settings.retry.policy(), settings.tools, settings.mcp_servers, there
    )


def _dotted(data: Mapping[str, Any]) -> Iterator[str]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _dotted(value))
        else:
            yield name


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError(f"$.config: {path}: {problem}", path="$.config") from None
