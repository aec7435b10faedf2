"""The settings of the tools that a runtime has itself, and of its MCP servers, as plain values."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from warren.base.fields import FieldValueError, OneOf, not_blank, not_negative, optional, positive
from warren.base.values import frozen
from warren.models.tools import RESTARTS, Restart

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _plain_name(_instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not NAME.fullmatch(value):
        raise FieldValueError(attribute.name, "must be 1 to 64 of the characters A-Z, a-z, 0-9, _ and -")


def web_address(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse texts that are no address on the web; None passes."""
    if value is None:
        return
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise FieldValueError(attribute.name, "must be an http:// or https:// address")


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise FieldValueError("args", "must be a list of texts")
    return tuple(values)


def _restarts(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, Mapping):
        raise FieldValueError(attribute.name, "must be an object")
    for name, restart in value.items():
        if not isinstance(name, str) or not name:
            raise FieldValueError(attribute.name, f"has {name!r}, which is no name of a tool")
        if restart not in RESTARTS:
            raise FieldValueError(f"{attribute.name}.{name}", f"must be one of {', '.join(RESTARTS)}")


@frozen
class McpServer:
    """An MCP server: either a process that is started (`command`) or a web service (`url`, streamable HTTP).

    Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        name: the name in errors, and the prefix of tools with a name that another server has too.
        command: the program, looked up on the PATH that the process gets.
        args: arguments of the program.
        env: variables for the process, besides a few harmless ones. It gets no other variables of this process.
        cwd: working folder of the process; None for that of this process.
        url: address of the service.
        headers: headers of every request to the service.
        connect_timeout: seconds to connect and to list the tools, and to answer a ping.
        call_timeout: seconds for a call; None takes the runtime's limit for tools.
        stop_timeout: seconds that the process has to end by itself, and again after SIGTERM.
        ping_interval: seconds between two pings of an idle server; None for no pings.
        shared: whether one connection serves all sessions. A server that keeps state for its client, such as one that
            drives a browser, needs a connection for each session.
        restart: what becomes of calls that ran when the process or the connection ended, as `warren.tool` has it: one
            of `replay`, `ask` and `report`. None believes the hints of the server: a tool with `readOnlyHint` or
            `idempotentHint` is replayed, any other one reports.
        tool_restart: the same of single tools, by the server's own names for them; it wins over `restart`.
        tasks: whether calls of tools that can run as tasks of the server do so. Tools that can run in no other way do
            so in any case.
        task_timeout: seconds that such a call may take, and for which the server is asked to keep its result.
    """

    name: str = attrs.field(validator=_plain_name)
    command: str | None = attrs.field(default=None, validator=not_blank)
    args: Sequence[str] = attrs.field(default=(), converter=_texts)
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    cwd: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    url: str | None = attrs.field(default=None, validator=web_address)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    connect_timeout: float = attrs.field(default=30.0, validator=positive)
    call_timeout: float | None = attrs.field(default=None, validator=positive)
    stop_timeout: float = attrs.field(default=2.0, validator=not_negative)
    ping_interval: float | None = attrs.field(default=30.0, validator=positive)
    shared: bool = True
    restart: Restart | None = attrs.field(default=None, validator=optional(OneOf(RESTARTS)))
    tool_restart: Mapping[str, Restart] = attrs.field(factory=dict, validator=_restarts)
    tasks: bool = True
    task_timeout: float = attrs.field(default=24 * 3600.0, validator=positive)

    def __attrs_post_init__(self) -> None:
        if self.command is None and self.url is None:
            raise FieldValueError("command", "is required, or url")
        if self.command is not None and self.url is not None:
            raise FieldValueError("url", "must not be set together with command")
        other, kind = (("headers",), "command") if self.url is None else (("args", "env", "cwd"), "url")
        for field in other:
            if getattr(self, field):
                raise FieldValueError(field, f"has no meaning for a server with {kind}")


@frozen(kw_only=True)
class ToolsConfig:
    """The tools that a runtime has. Tools that touch the machine are offered only if their kind is enabled.

    Trap: everyone who may set the switches of a session can enable these tools. Do not configure a tool that no client
    may use.

    Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        root: the folder whose files can be read, and in which commands start; None for no tools for files. Tools for
            files or for fetching come with the tools of the clock. Only sessions of the tenant `default` are offered
            the tools for files and the shell: the folder is one for all.
        writable: whether the files can be written.
        shell: whether there is a tool that runs commands. Trap: commands can do all that Warren's user can, also
            outside of the root.
        shell_timeout: seconds that a command may run.
        env: names of environment variables that commands get besides the harmless ones; `*` matches any characters.
        fetch: whether there is a tool that reads the public web. Files that prompts have by URL are fetched and stored
            then, too.
        fetch_allow: networks of private addresses that may be read too, as in "10.0.0.0/8". Without `fetch` they open
            the web for files of prompts alone.
        skills: folders of skills, besides the skills that Warren ships; None for no skills at all.
        mcp_servers: servers whose tools every session gets.
        wake_me: whether every session has the tool by which its model is woken later. Without it those have it whose
            list of tools names it.
        delegate: whether every session has the tool by which its model has child sessions do work. Without it those
            have it whose list of tools names it.
    """

    root: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    writable: bool = True
    shell: bool = False
    shell_timeout: float = attrs.field(default=120.0, validator=positive)
    env: tuple[str, ...] = ()
    fetch: bool = False
    fetch_allow: tuple[str, ...] = ()
    skills: tuple[Path, ...] | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    wake_me: bool = False
    delegate: bool = False

    def __attrs_post_init__(self) -> None:
        if self.shell and self.root is None:
            raise FieldValueError("root", "is required if there is a shell")
        for server in self.mcp_servers:
            if not server.shared:
                raise FieldValueError("mcp_servers", f"must be shared, as {server.name} is not: add it to sessions")
