"""The parameters of the methods that only surfaces have; those of all others are the classes of the service."""

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from warren.base.fields import (
    AtMost,
    FieldValueError,
    fits,
    is_text,
    is_whole,
    not_blank,
    not_negative,
    optional,
    positive,
)
from warren.base.values import frozen
from warren.conversation.attachments import MAX_NAME
from warren.models.tools import ToolSpec

MAX_TOOLS: Final = 128
"""Tools that one client may register: no provider takes more in one request."""
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _tools(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[ToolSpec, ...]) -> None:
    if len(value) > MAX_TOOLS:
        raise FieldValueError(attribute.name, f"must be at most {MAX_TOOLS} tools")
    for index, spec in enumerate(value):
        if not TOOL_NAME.fullmatch(spec.name):
            problem = "must be 1 to 64 letters, digits, _ or -: model providers accept no other names"
            raise FieldValueError(f"{attribute.name}[{index}].name", problem)
        if spec.name in {earlier.name for earlier in value[:index]}:
            raise FieldValueError(f"{attribute.name}[{index}].name", "must differ from the names before it")


@frozen
class NoParams:
    """No parameters."""


@frozen
class Initialize:
    """The greeting of a client.

    Attributes:
        client_info: the client's description of itself, `{name, version, …}`.
    """

    client_info: Mapping[str, Any] | None = None


@frozen
class RegisterTools:
    """Tools that the client runs itself, each with the JSON schema of its arguments."""

    tools: tuple[ToolSpec, ...] = attrs.field(validator=_tools)


@frozen
class PutFile:
    """The next bytes of a file, ahead of the prompt that it goes with.

    Attributes:
        data: the bytes; JSON has them in base64.
        offset: bytes of the file that were sent before.
        size: bytes of the whole file, the same with each piece; null if `data` is all of it.
        upload_id: your own name for the file while it is on its way, if several are at once.
        media_type: its type, as of a `File`; that of the last piece counts.
        name: its name, for people and models; that of the last piece counts.
    """

    data: bytes = attrs.field(repr=False)
    offset: int = attrs.field(default=0, validator=[is_whole, not_negative, fits], kw_only=True)
    size: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits), kw_only=True)
    upload_id: str = attrs.field(default="", validator=[is_text, AtMost(MAX_NAME)], kw_only=True)
    media_type: str | None = attrs.field(default=None, validator=optional(is_text, not_blank), kw_only=True)
    name: str | None = attrs.field(default=None, validator=optional(is_text, not_blank, AtMost(MAX_NAME)), kw_only=True)
