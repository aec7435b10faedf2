"""What each method of the Agent Client Protocol takes, checked field by field. No I/O."""
# ruff: noqa: N815 - the fields have the protocol's own names, and errors name them so

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import attrs

from warren import codec
from warren.fields import FieldValueError, not_negative

T = TypeVar("T")


def _absolute(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        raise FieldValueError(attribute.name, "must be an absolute path")


@attrs.frozen
class Initialize:
    """Of `initialize`: the newest version of the protocol that the client speaks."""

    protocolVersion: int = attrs.field(validator=not_negative)
    clientCapabilities: Mapping[str, Any] | None = None
    clientInfo: Mapping[str, Any] | None = None


@attrs.frozen
class NewSession:
    """Of `session/new`: the folder that the conversation is about, and MCP servers that could be of use."""

    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...]


@attrs.frozen
class LoadSession:
    """Of `session/load`."""

    sessionId: str
    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...]


@attrs.frozen
class ResumeSession:
    """Of `session/resume`."""

    sessionId: str
    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...] | None = None


@attrs.frozen
class ForkSession:
    """Of `session/fork`."""

    sessionId: str
    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...] | None = None


@attrs.frozen
class ListSessions:
    """Of `session/list`: `cursor` is a `nextCursor` of an earlier answer; `cwd` shows the sessions of one folder."""

    cwd: str | None = attrs.field(default=None, validator=_absolute)
    cursor: str | None = None


@attrs.frozen
class OneSession:
    """Of a method that names one session and nothing else."""

    sessionId: str


@attrs.frozen
class SetMode:
    """Of `session/set_mode`."""

    sessionId: str
    modeId: str


@attrs.frozen
class Prompt:
    """Of `session/prompt`: what the user says, as blocks."""

    sessionId: str
    prompt: tuple[Mapping[str, Any], ...]


def read(cls: type[T], data: object, root: str = "$") -> T:
    """Build `cls` from a client's data; what it has no field for is passed over, as the protocol wants it.

    None stands for an object without fields.

    Raises InvalidParamsError that names the bad field, as in `$.prompt[0].text`.
    """
    data = {} if data is None else data
    if isinstance(data, dict) and attrs.has(cls):
        known = {field.name for field in attrs.fields(cls)}
        data = {name: value for name, value in data.items() if name in known}
    return codec.from_data(cls, data, root=root)
