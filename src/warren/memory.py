"""Semantic memory: what is put in, what a search returns, how it is set up. Plain values, no I/O."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from warren.fields import FieldValueError, fits, not_negative, positive

MAX_HITS: Final = 20
"""A search returns no more, whatever it asks for."""
CONVERSATION_END: Final = 1 << 61
"""Positions from here on are no messages': texts that were added by hand lie there."""
Progress = Callable[[int, int], None]
"""Told how many entries are done and how many there are in all. Called on the event loop: it must not block."""


def storable(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse what is no text, and text that UTF-8 cannot hold."""
    if not isinstance(value, str):
        raise FieldValueError(attribute.name, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FieldValueError(attribute.name, "has a lone surrogate, which UTF-8 cannot hold") from None


def _aware(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value.tzinfo is None:
        raise FieldValueError(attribute.name, "must have a time zone")


@attrs.frozen
class MemoryEntry:
    """One message's text, to be remembered. Raises FieldValueError that names the bad field.

    Attributes:
        session_id: the session it comes from.
        position: its message's position in the transcript; with `session_id` it tells an entry from all others.
        turn: the turn in which it was said, from 1; 0 for a text that belongs to none.
        content: the text.
        created_at: when it was said: for a message that the store has, the time that the store has for it; for one of
            a turn that still runs, and without a store, the time at which it was remembered.
    """

    session_id: str = attrs.field(validator=storable)
    position: int = attrs.field(validator=[not_negative, fits])
    turn: int = attrs.field(validator=[not_negative, fits])
    content: str = attrs.field(validator=storable)
    created_at: datetime = attrs.field(validator=_aware)


@attrs.frozen
class Tail:
    """What is remembered of a session's messages from a position on.

    Attributes:
        session_id: the session.
        first: the position.
    """

    session_id: str
    first: int


@attrs.frozen
class Unsettled:
    """A session of which a tail was taken in that its store may never have committed.

    Attributes:
        session_id: the session.
        since: when that was, the last time.
    """

    session_id: str
    since: datetime


@attrs.frozen
class MemoryHit:
    """One result of a search.

    Attributes:
        content: the remembered text.
        score: 1 - distance / 2, as for the cosine distance of vectors: 1 is the query's own text, 0.5 nothing in
            common, and what is useful is mostly above 0.7.
        session_id: where it comes from.
        turn: the turn in which it was said, from 1; 0 for a text that belongs to none.
    """

    content: str
    score: float
    session_id: str
    turn: int


@attrs.frozen
class MemoryStats:
    """How much is remembered, and how far its index is.

    Attributes:
        entries: texts remembered.
        sessions: sessions they come from.
        indexed: entries that a search weighs in full: all but those that are `behind`.
        behind: entries that have no vector of this embedder yet; a search finds them by their words.
        embedder: the name of the embedder.
        dimensions: numbers in each vector; 0 if the embedder makes none and words decide.
        database_bytes: size of the texts' file, 0 in memory.
        index_bytes: size of the saved graph of vectors; 0 if there is none, as there are too few vectors to need one.
        rebuilt: why the saved graph was not used when the store was opened: "damaged", "stale" or "other_embedder";
            None if it was used, or there was none.
    """

    entries: int
    sessions: int
    indexed: int
    behind: int
    embedder: str
    dimensions: int
    database_bytes: int
    index_bytes: int
    rebuilt: str | None


class Embedder(Protocol):
    """Turns texts into vectors whose angles say how alike the texts are in meaning.

    The built-in ones ("bm25", "bag-of-words") are no embedders of this kind: this is for a model of meaning, and a
    search counts it as much as the words.
    """

    @property
    def name(self) -> str:
        """Tell it from all others; another name, or other dimensions, makes the vectors anew."""
        ...

    @property
    def dimensions(self) -> int:
        """Numbers in each vector."""
        ...

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return a vector for each text, in order; they need not have any particular length.

        Raises WarrenError: what was to be remembered is then refused, and nothing of it is stored.
        """
        ...


@attrs.frozen
class MemoryConfig:
    """The semantic memory.

    Attributes:
        path: its folder, created on first use; None keeps everything in memory.
        embedder: "bm25", "bag-of-words", or the name of the embedder that is given along.
        busy_timeout: seconds a write waits for another process's lock.
        readers: searches that run at once.
    """

    path: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    embedder: str = "bm25"
    busy_timeout: float = attrs.field(default=5.0, validator=not_negative)
    readers: int = attrs.field(default=2, validator=positive)
