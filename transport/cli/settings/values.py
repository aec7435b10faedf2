"""The types of values that options have, and the configuration file."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import click

from warren.base.database_url import DatabaseUrl, is_url_of_database
from warren.base.durations import seconds_of
from warren.base.fields import FieldValueError, url_problem
from warren.base.principals import Principal
from warren.base.tenant_limits import TokenLimits
from warren.conversation.attachments import File
from warren.transport.embedders import KNOWN, is_known

# Few commands are given one of these: `re` compiles the pattern then.
FAR: Final = 100 * 366 * 86_400.0
"""Seconds that no time is further away."""
REALM: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
WHOLE: Final = r"-?[0-9]{1,30}"
LIMITS: Final = tuple(field.name for field in attrs.fields(TokenLimits))
"""The limits that a token may have."""


def text_of(value: str) -> str:
    """Return text that UTF-8 can hold: the shell may pass any bytes. Raises click.BadParameter for others."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it is not valid UTF-8.") from None
    return value


def tenant_of(value: str) -> str:
    """Return the name of a tenant. Raises click.BadParameter if it cannot be one."""
    try:
        return Principal(text_of(value)).tenant
    except FieldValueError as exc:
        raise click.BadParameter(f"it {exc.problem}.") from None


def folder_of(value: str) -> Path:
    """Return a folder.

    Raises click.BadParameter for a URL, for a name that is not UTF-8, as SQLite cannot open files there, and for an
    empty text, which would be the folder of the command.
    """
    if not value.strip():
        raise click.BadParameter("it must not be empty; the folder of the command is `.`.")
    problem = url_problem(text_of(value))
    if problem is not None:
        raise click.BadParameter(f"it {problem}.")
    return Path(value)


def place_of(value: str) -> Path | DatabaseUrl:
    """Return the place of a store: a folder, or the address of a PostgreSQL database.

    Raises click.BadParameter as `folder_of`.
    """
    return DatabaseUrl(value) if is_url_of_database(text_of(value)) else folder_of(value)


def existing_folder_of(value: str) -> Path:
    """Return an existing folder. Raises click.BadParameter for another path."""
    folder = folder_of(value)
    try:
        there = folder.is_dir()
    except (OSError, ValueError):
        there = False
    if not there:
        raise click.BadParameter(f"{value!r} is not a folder.")
    return folder


def realm_of(value: str) -> str:
    """Return a name that is valid for a folder. Raises click.BadParameter for another one."""
    if re.fullmatch(REALM, value) is None:
        raise click.BadParameter(
            f"{value!r} is not a name of letters, digits, `.`, `_`, `-` that begins with none of `.-`."
        )
    return value


def embedder_of(value: str) -> str:
    """Return the name of a known embedder. Raises click.BadParameter for another one."""
    if is_known(text_of(value)):
        return value
    raise click.BadParameter(f"{value!r} is unknown; there are {KNOWN}.")


def duration_of(value: str) -> float:
    """Return the seconds of a time span such as 30, 1.5s, 250ms or 1h30m. Raises click.BadParameter for other texts."""
    if seconds := delay_of(value):
        return seconds
    raise click.BadParameter(f"{value!r} is not a duration above 0, such as 30, 1.5s, 250ms or 1h30m.")


def moment_of(value: str) -> datetime:
    """Return a time: a duration before now, as 12h or 7d, or a day or a time, in UTC without another zone.

    Raises click.BadParameter for other texts.
    """
    seconds = seconds_of(value)
    try:
        found = datetime.fromisoformat(text_of(value)) if seconds is None else None
        if found is None:
            return datetime.now(UTC) - timedelta(seconds=seconds or 0)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no time, such as 7d, 2026-03-01 or 2026-03-01T12:00:00Z.") from None


def due_of(value: str) -> datetime:
    """Return a time: a duration from now on, as 10m or 7d, or a day or a time, in UTC without another zone.

    Raises click.BadParameter for other texts.
    """
    seconds = seconds_of(value)
    return moment_of(value) if seconds is None else datetime.now(UTC) + timedelta(seconds=min(seconds, FAR))


def delay_of(value: str) -> float:
    """Return the seconds of a time span that may be 0. Raises click.BadParameter."""
    seconds = seconds_of(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a duration, such as 30, 1.5s, 250ms or 1h30m.")
    return seconds


def schema_of(value: str | dict[str, Any]) -> dict[str, Any]:
    """Return the given JSON object, or that of the named file. Raises click.BadParameter for other data.

    An object is from the configuration file, which has read it.
    """
    from warren.conversation import codec  # noqa: PLC0415 - few turns have a schema

    if isinstance(value, dict):
        return value
    given = text_of(value).lstrip().startswith("{")
    try:
        data = codec.parse(value) if given else codec.parse_file(Path(value).read_bytes())
    except OSError as exc:
        raise click.BadParameter(f"{value!r} cannot be read: {exc.strerror}.") from None
    except ValueError as exc:
        raise click.BadParameter(f"it is not JSON: {exc}.") from None
    if not isinstance(data, dict):
        raise click.BadParameter("it is not a JSON object.")
    return data


def file_of(value: str) -> File:
    """Return the file at a path, to be attached. Raises click.BadParameter if it cannot be read."""
    try:
        return File.read(text_of(value))
    except OSError as exc:
        raise click.BadParameter(f"{value!r} cannot be read: {exc.strerror}.") from None


def label_of(value: str) -> tuple[str, str]:
    """Return key and value of a label K=V. Raises click.BadParameter without a key or without `=`."""
    key, equals, content = text_of(value).partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{value!r} is not of the form K=V.")
    return key, content


def limit_of(value: str) -> tuple[str, int]:
    """Return the name and the number of a limit NAME=N. Raises click.BadParameter for another text."""
    name, equals, number = text_of(value).partition("=")
    if not equals or not re.fullmatch(WHOLE, number):
        raise click.BadParameter(f"{value!r} is not of the form NAME=N, N a whole number.")
    if name not in LIMITS:
        raise click.BadParameter(f"{name!r} is none of {', '.join(LIMITS)}.")
    try:
        TokenLimits(**{name: int(number)})
    except FieldValueError as exc:
        raise click.BadParameter(f"{exc.field} {exc.problem}.") from None
    return name, int(number)
