"""Semantic memory: its entries, hits and settings, as plain values."""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import attrs

from warren.base.database_url import is_database_url, without_password
from warren.base.fields import LARGEST, FieldValueError, fits, is_text, not_negative, positive
from warren.base.values import frozen
from warren.conversation.messages import Message

MAX_HITS: Final = 20
"""The most hits that a search returns."""
CONVERSATION_END: Final = 1 << 61
"""The first position for texts that were added by hand. Messages have smaller positions."""
_TEXT_ID: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
Index = Callable[[int, Sequence[Message]], Awaitable[None]]
"""Adds messages to the memory, all or none; the position is that of the first one. Raises WarrenError."""
Progress = Callable[[int, int], None]
"""Called with the entries that are done and the entries in all. It runs on the event loop and must not block."""


def _aware(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value.tzinfo is None:
        raise FieldValueError(attribute.name, "must have a time zone")


@frozen
class MemoryEntry:
    """The text of one message, to be remembered. Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        session_id: the session of the message.
        position: the message's position in the transcript. It identifies the entry together with `session_id`.
        turn: the message's turn, from 1; 0 for a text that belongs to no turn.
        content: the text.
        created_at: the time of the message in the store; without a store, and for a turn that still runs, the time at
            which the entry was made.
    """

    session_id: str = attrs.field(validator=is_text)
    position: int = attrs.field(validator=[not_negative, fits])
    turn: int = attrs.field(validator=[not_negative, fits])
    content: str = attrs.field(validator=is_text)
    created_at: datetime = attrs.field(validator=_aware)


@frozen
class Tail:
    """The remembered messages of a session from a position on.

    Attributes:
        session_id: the session.
        first: the first position.
    """

    session_id: str
    first: int


def text_id_of(position: int) -> str:
    """Return the id of the text at a position: a text, as clients whose numbers are all floats cannot hold it."""
    return str(position)


def is_text_id(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that cannot be the id of a text. Raises FieldValueError."""
    if not isinstance(value, str) or not _TEXT_ID.fullmatch(value) or int(value) > LARGEST:
        raise FieldValueError(attribute.name, "must be the text_id of a hit of a search")


@frozen
class Chosen:
    """Remembered texts of a session that are to be forgotten: one, those of a turn, or all.

    Attributes:
        session_id: the session.
        tenant: its tenant.
        turn: the turn; None is any.
        position: the position of one text; None is any.
    """

    session_id: str
    tenant: str
    turn: int | None = None
    position: int | None = None


@frozen
class Unsettled:
    """A session with a remembered tail that its store may never have committed.

    Attributes:
        session_id: the session.
        since: the time at which the newest such tail was remembered.
    """

    session_id: str
    since: datetime


@frozen
class ScoreParts:
    """The parts of the score of a hit: `score = (1 + min(1, (1 - share) * words + share * likeness)) / 2`.

    Nothing else counts: neither the age of a text nor its session.

    Attributes:
        words: how well the text answers by its words, as BM25 weighs them, as a part of what the query's own text would
            get; a text that has them early or often may be above 1.
        likeness: how far the vector of the text is like that of the query: the cosine, for a model of meaning that
            above unrelated texts. None if vectors were not weighed: the embedder makes none or failed, or the text has
            no vector yet.
        share: the part of the likeness, from 0 to 1: 0 if `likeness` is None, 0.5 with a model of meaning.
    """

    words: float
    likeness: float | None
    share: float


@frozen
class MemoryHit:
    """One result of a search.

    Attributes:
        content: the remembered text.
        score: 1 - distance / 2, as for the cosine distance of vectors: 1 is the query's own text, 0.5 a text with
            nothing in common, and useful hits are mostly above 0.7.
        session_id: the session of the text.
        turn: the turn of the text, from 1; 0 for a text that belongs to no turn.
        text_id: the id of the text within its session, by which `memory/forget` removes this text alone.
        parts: the parts of the score.
    """

    content: str
    score: float
    session_id: str
    turn: int
    text_id: str
    parts: ScoreParts


Weighs = Literal["words", "vectors", "words_and_vectors"]
"""The parts of a hit that make its score."""


@frozen
class MemoryStats:
    """The size of the memory and the state of its index.

    Attributes:
        entries: remembered texts.
        sessions: sessions with remembered texts.
        indexed: entries in the index; a search weighs them in full.
        behind: entries without a vector of this embedder; a search finds them by their words.
        embedder: the name of the embedder.
        dimensions: numbers in each vector; 0 if the embedder makes no vectors and words decide.
        weighs: what a search weighs: "words" alone without an embedder, and while the embedder fails.
        database_bytes: size of the file of texts; 0 for a memory without a file.
        index_bytes: size of the saved graph of vectors; 0 if there are too few vectors to need a graph.
        rebuilt: reason for not using the saved graph at the opening: "damaged", "stale" or "other_embedder"; None if
            it was used, or there was none.
    """

    entries: int
    sessions: int
    indexed: int
    behind: int
    embedder: str
    dimensions: int
    weighs: Weighs
    database_bytes: int
    index_bytes: int
    rebuilt: str | None


class Embedder(Protocol):
    """Turns texts into vectors. The smaller the angle of two vectors, the closer the texts are in meaning.

    Implement it for a model of meaning: a search weighs the vectors as much as the words. The built-in "bm25" and
    "bag-of-words" weigh words alone and do not have this interface.
    """

    @property
    def name(self) -> str:
        """The name of the embedder. If the name or the dimensions change, all vectors are made again."""

    @property
    def dimensions(self) -> int:
        """Numbers in each vector."""

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return a vector for each text, in order. The vectors need not be normalised.

        Raises:
            WarrenError: if it fails; the memory then stores the texts without vectors, and asks again later.
        """


@frozen
class MemoryConfig:
    """The settings of the semantic memory.

    Attributes:
        path: the folder; it is created on first use. Without a folder and a `url` the texts stay in the process alone.
        embedder: "bm25", "bag-of-words", or the name of the embedder that the host passes.
        busy_timeout: seconds that a write waits for another process's lock.
        readers: searches that may run at once.
        url: the address of a PostgreSQL database that has the texts, as `PostgresConfig.url`. It takes the place of a
            folder, and knows no "bag-of-words".
        embedder_folder: the files of the model of the embedder `local`, or a cache of fastembed with them; None is the
            cache of the user, `FASTEMBED_CACHE_PATH` or `~/.cache/fastembed`.
    """

    path: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    embedder: str = "bm25"
    busy_timeout: float = attrs.field(default=5.0, validator=not_negative)
    readers: int = attrs.field(default=2, validator=positive)
    url: str | None = attrs.field(default=None, validator=attrs.validators.optional(is_database_url))
    embedder_folder: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))

    def __attrs_post_init__(self) -> None:
        """Refuse two places."""
        if self.path is not None and self.url is not None:
            raise FieldValueError("url", "must not be given beside a path")

    @property
    def place(self) -> str:
        """The folder, or the address without its password, for people."""
        if self.url is not None:
            return without_password(self.url)
        return "the process" if self.path is None else str(self.path)

    def __repr__(self) -> str:
        shown = None if self.url is None else without_password(self.url)
        others = [f"{f.name}={getattr(self, f.name)!r}" for f in attrs.fields(MemoryConfig) if f.name != "url"]
        return f"MemoryConfig({', '.join(others)}, url={shown!r})"
