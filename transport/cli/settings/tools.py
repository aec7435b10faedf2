"""The tools that a command's options, the tables `[tools]` and `[mcp_servers.NAME]` and an MCP file ask for."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import attrs

from warren.base.durations import seconds_of
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.categories import Switch, Switches
from warren.models.tools import Restart
from warren.settings.tool_config import McpServer, ToolsConfig
from warren.transport.cli.settings.table import duration

T = TypeVar("T")
FOREIGN: Final = frozenset({"alwaysAllow", "autoApprove", "description", "timeout", "trust"})
"""Settings that other programs write into MCP files, and that have no meaning here."""
WEB: Final = ("http", "streamable-http", "streamableHttp")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@frozen(kw_only=True)
class ServerTable:
    """The table `[mcp_servers.NAME]`, a program or a web service: as `warren.settings.tool_config.McpServer`."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    connect_timeout: str | None = attrs.field(default=None, validator=duration)
    call_timeout: str | None = attrs.field(default=None, validator=duration)
    restart: Restart | None = None
    tool_restart: Mapping[str, Restart] = attrs.field(factory=dict)
    tasks: bool = True
    task_timeout: str | None = attrs.field(default=None, validator=duration)

    @property
    def where(self) -> str:
        """The program or the address, without parts that may be secret."""
        return " ".join([self.command or "", *self.args]) if self.url is None else self.url.partition("?")[0]


@frozen
class McpFile:
    """The JSON that MCP's clients have in common."""

    mcpServers: Mapping[str, Mapping[str, Any]]  # noqa: N815 - its name there


class FileOfTools(Protocol):
    """The part of a configuration file that is about tools; `warren.transport.cli.settings.file.ConfigFile` has it."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The values of settings, by their names in the file."""

    @property
    def servers(self) -> Mapping[str, ServerTable]:
        """The MCP servers, by name."""

    def settings(self, table: str) -> dict[str, Any]:
        """Return the settings of a table that have no option, by the names in its class."""


def tools_of(given: Mapping[str, Any], file: FileOfTools | None, environ: Mapping[str, str]) -> ToolsConfig | None:
    """Return the settings of the runtime's tools; None if there are none.

    Raises InvalidParamsError, whose path names the setting, the file's below `$.config`.
    """
    values, servers = ({}, {}) if file is None else (file.values, file.servers)
    found = {name: _server(name, each, "$.config.mcp_servers", environ) for name, each in servers.items()}
    if given["mcp_config"] is not None:
        found |= read_servers(given["mcp_config"], environ)
    if given["shell"] and given["root"] is None:
        raise InvalidParamsError.at("$.root", "is needed for --shell: --root DIR is the folder in which commands start")
    skills = given["skills"] or (() if "tools.skills" in values else None)
    settings = {} if file is None else file.settings("tools")
    asked = (
        given["root"],
        given["builtins"],
        given["shell"],
        found,
        settings.get("fetch_allow"),
        settings.get("wake_me"),
        settings.get("delegate"),
    )
    if not any(asked) and skills is None:
        return None
    return _made(
        lambda: ToolsConfig(
            root=given["root"],
            shell=given["shell"],
            fetch=bool(given["builtins"]),
            skills=skills,
            mcp_servers=tuple(found.values()),
            **settings,
        ),
        "$",
    )


def switches_of(given: Mapping[str, Any]) -> Switches:
    """Return the switches of kinds of tools. The settings of tools switch their kind on, unless it is switched off."""
    builtins: Switch = "enable" if given["builtins"] or given["root"] is not None else "inherit"
    if given["builtins"] is False:
        builtins = "disable"
    return Switches(builtins=builtins, shell="enable" if given["shell"] else "inherit")


def read_servers(path: Path, environ: Mapping[str, str]) -> dict[str, McpServer]:
    """Return the servers of a JSON file, by name; those that it disables are left out.

    Raises InvalidParamsError: its path is `$.mcp_config` for a file that cannot be read, else that of the field below.
    """
    root = "$.mcp_config"
    try:
        data = codec.parse_file(path.read_bytes())
    except (OSError, ValueError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError.at(root, f"{path}: {problem}") from None
    try:
        listed = codec.from_data(McpFile, data, root=root).mcpServers
        return {
            name: _server(name, _table(dict(each), f"{root}.mcpServers.{name}"), f"{root}.mcpServers", environ)
            for name, each in listed.items()
            if each.get("disabled") is not True
        }
    except InvalidParamsError as exc:
        raise InvalidParamsError(f"{exc.message} ({path})", path=exc.path) from None


def _table(data: dict[str, Any], path: str) -> ServerTable:
    """Return one server of a JSON file. Raises InvalidParamsError."""
    kind, _ = data.pop("type", None), data.pop("disabled", None)
    if kind not in (None, "stdio", *WEB):
        raise InvalidParamsError.at(f"{path}.type", f"must be stdio or http: {kind!r} is not spoken here")
    return codec.from_data(ServerTable, {name: data[name] for name in data.keys() - FOREIGN}, root=path)


def _server(name: str, table: ServerTable, root: str, environ: Mapping[str, str]) -> McpServer:
    """Return a server, with the values of the variables that its texts name as `${NAME}`."""
    path = f"{root}.{name}"

    def filled(field: str, text: str) -> str:
        return _VARIABLE.sub(lambda found: _value(found, f"{path}.{field}", environ), text)

    def each(field: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: filled(f"{field}.{key}", text) for key, text in texts.items()}

    command, url = table.command, table.url
    settings: dict[str, Any] = {
        "command": None if command is None else filled("command", command),
        "args": [filled(f"args[{at}]", arg) for at, arg in enumerate(table.args)],
        "env": each("env", table.env),
        "cwd": None if table.cwd is None else filled("cwd", table.cwd),
        "url": None if url is None else filled("url", url),
        "headers": each("headers", table.headers),
        "restart": table.restart,
        "tool_restart": table.tool_restart,
        "tasks": table.tasks,
    }
    if table.connect_timeout is not None:
        settings["connect_timeout"] = seconds_of(table.connect_timeout)
    if table.call_timeout is not None:
        settings["call_timeout"] = seconds_of(table.call_timeout)
    if table.task_timeout is not None:
        settings["task_timeout"] = seconds_of(table.task_timeout)
    return _made(lambda: McpServer(name, **settings), path)


def _value(found: "re.Match[str]", path: str, environ: Mapping[str, str]) -> str:
    value = environ.get(found[1])
    if not value and found[2] is not None:
        return found[2]
    if value is None:
        raise InvalidParamsError.at(path, f"the environment has no {found[1]}")
    return value


def _made(make: Callable[[], T], path: str) -> T:
    try:
        return make()
    except FieldValueError as exc:
        raise exc.refusal(path) from None
