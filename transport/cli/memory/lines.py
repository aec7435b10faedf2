"""Lines of JSON for the memory: their fields, and errors that name the line and the field."""

import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Generic, Literal, TypeVar

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import Between, fits, is_text, not_blank, not_negative
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.memory import CONVERSATION_END, MAX_HITS, MemoryEntry
from warren.transport.cli.terminal.lines import LineSource

T = TypeVar("T")
ADDED: Final = "added"
"""The session of texts without one."""


@frozen
class Defaults:
    """The defaults of a search.

    Attributes:
        session: the session to search.
        scope: `session` or `project`; None is the session if one is named, else the project.
        limit: the most hits.
    """

    session: str | None
    scope: str | None
    limit: int


@frozen
class Wanted:
    """One line of `warren memory search --batch`."""

    query: str = attrs.field(validator=[is_text, not_blank])
    limit: int | None = attrs.field(default=None, validator=Between(1, MAX_HITS))
    scope: Literal["session", "project"] | None = None
    session_id: str | None = attrs.field(default=None, validator=not_blank)

    def within(self, defaults: Defaults) -> str | None:
        """Return the session to search, None for all. Raises InvalidParamsError if the scope needs one."""
        session = self.session_id or defaults.session
        # A session on the line is nearer than a scope on the command line.
        scope = self.scope or (defaults.scope if self.session_id is None else None)
        if scope == "session" and session is None:
            raise InvalidParamsError.at("$.session_id", "is required to search one session")
        return None if scope == "project" else session


@frozen
class AddedText:
    """One line of `warren memory add`."""

    content: str = attrs.field(validator=[is_text, not_blank])
    session_id: str = attrs.field(default=ADDED, validator=[is_text, not_blank])
    turn: int = attrs.field(default=0, validator=[not_negative, fits])

    def entry(self, now: datetime) -> MemoryEntry:
        """Return the entry for the memory.

        Its position is a hash of turn and content, so that the same text gets the same position again; it is far above
        the positions of a conversation's own messages.
        """
        digest = hashlib.sha256(f"{self.turn}\0{self.content}".encode()).digest()
        position = int.from_bytes(digest[:8], "big") >> 2 | CONVERSATION_END
        return MemoryEntry(self.session_id, position, self.turn, self.content, now)


@frozen
class InputLine(Generic[T]):
    """One line with its data; `number` counts from 1."""

    number: int
    value: T

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the number of the line to errors of the body."""
        try:
            yield
        except InvalidParamsError as exc:
            raise _named(exc, self.number) from None


async def read_lines(source: LineSource, kind: type[T]) -> AsyncGenerator[InputLine[T], None]:
    """Yield the data of all lines but blank ones. Raises InvalidParamsError with the line and the field of bad data."""
    number = 0
    while (raw := await source.next()) is not None:
        number += 1
        if raw.strip():
            yield _read(number, raw, kind)


def _read(number: int, raw: bytes, kind: type[T]) -> InputLine[T]:
    try:
        return InputLine(number, codec.from_data(kind, codec.parse(raw)))
    except InvalidParamsError as exc:
        raise _named(exc, number) from None
    except ValueError as exc:
        raise InvalidParamsError(f"line {number}: is not JSON: {exc}", path="$") from None


def _named(exc: InvalidParamsError, number: int) -> InvalidParamsError:
    return InvalidParamsError(f"line {number}: {exc.message.removeprefix('$.')}", path=exc.path)
