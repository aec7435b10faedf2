"""The parameters of each method of the Agent Client Protocol, checked field by field. No I/O."""
# ruff: noqa: N815 - the fields have the protocol's own names, and errors name them so

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import attrs

from warren.base.fields import FieldValueError, not_negative
from warren.base.values import frozen
from warren.conversation import codec

T = TypeVar("T")


def _absolute(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        raise FieldValueError(attribute.name, "must be an absolute path")


@frozen
class AcpInitialize:
    """Parameters of `initialize`. `protocolVersion` is the newest version that the client speaks."""

    protocolVersion: int = attrs.field(validator=not_negative)
    clientCapabilities: Mapping[str, Any] | None = None
    clientInfo: Mapping[str, Any] | None = None

    @property
    def wants_unstable(self) -> bool:
        """Whether the client asks for members that are no part of the protocol yet, in the object for extensions."""
        match self.clientCapabilities:
            case {"_meta": {"warren": {"unstable": True}}}:
                return True
        return False


@frozen
class NewSession:
    """Parameters of `session/new`: the working folder as an absolute path, and MCP servers for the session."""

    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...]


@frozen
class LoadSession:
    """Parameters of `session/load`."""

    sessionId: str
    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...]


@frozen
class ResumeSession:
    """Parameters of `session/resume` and `session/fork`."""

    sessionId: str
    cwd: str = attrs.field(validator=_absolute)
    mcpServers: tuple[Mapping[str, Any], ...] | None = None


@frozen
class ListSessions:
    """Parameters of `session/list`. `cursor` is the `nextCursor` of an earlier page; `cwd` selects one folder."""

    cwd: str | None = attrs.field(default=None, validator=_absolute)
    cursor: str | None = None


@frozen
class OneSession:
    """Parameters of a method that takes a session and nothing else."""

    sessionId: str


@frozen
class SetMode:
    """Parameters of `session/set_mode`."""

    sessionId: str
    modeId: str


@frozen
class Prompt:
    """Parameters of `session/prompt`: the user's prompt as content blocks."""

    sessionId: str
    prompt: tuple[Mapping[str, Any], ...]


def read(cls: type[T], data: object, root: str = "$") -> T:
    """Return an instance of `cls` made from a client's data. Unknown fields are ignored, as the protocol demands.

    Args:
        cls: the class of the parameters.
        data: the JSON value; None stands for an object without fields.
        root: the path of `data`, for errors.

    Raises:
        InvalidParamsError: if a field is bad, with its path, such as `$.prompt[0].text`.
    """
    data = {} if data is None else data
    if isinstance(data, dict) and attrs.has(cls):
        known = {field.name for field in attrs.fields(cls)}
        data = {name: value for name, value in data.items() if name in known}
    return codec.from_data(cls, data, root=root)
