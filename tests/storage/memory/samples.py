"""Things to remember, a memory to put them in, and a model of meaning that knows three subjects."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

from warren.base.errors import ProviderError
from warren.conversation.memory import Embedder, MemoryConfig, MemoryEntry, MemoryHit
from warren.storage.memory import FileMemory
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.memory.vectors import EXACT_BYTES
from warren.storage.memory_store import MemoryStore
from warren.storage.runner import Runner, inline_runner

Place = Path | str
"""A folder, or the address of a database."""
NOW: Final = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
SUBJECTS: Final = ({"cat", "dog", "pet", "kitten"}, {"car", "engine", "vehicle"}, {"bread", "flour", "oven"})


def entry(content: str, *, session: str = "a", position: int = 0, turn: int = 1) -> MemoryEntry:
    """Return an entry."""
    return MemoryEntry(session, position, turn, content, NOW)


def entries(contents: Sequence[str], *, session: str = "a", first: int = 0) -> list[MemoryEntry]:
    """Return entries at successive positions of a session; each one's turn is its position."""
    return [MemoryEntry(session, at, at, content, NOW) for at, content in enumerate(contents, first)]


def word(number: int) -> str:
    """Return a word of the number's own, in letters: digits would be found apart."""
    return "q" + "".join("abcdefghij"[int(digit)] for digit in str(number)) + "q"


def text(number: int) -> str:
    """Return a text with two words that all of them have and one of its own."""
    return f"common thing {word(number)}"


def numbered(count: int, *, session: str = "a", first: int = 0) -> list[MemoryEntry]:
    """Return entries with the texts of successive numbers."""
    return entries([text(at) for at in range(first, first + count)], session=session, first=first)


def contents(hits: Sequence[MemoryHit]) -> list[str]:
    """Return what was found, best first."""
    return [hit.content for hit in hits]


@asynccontextmanager
async def opened(
    place: Place | None = None,
    embedder: Embedder | None = None,
    *,
    name: str = "bm25",
    runner: Runner = inline_runner,
    exact_bytes: int = EXACT_BYTES,
) -> AsyncIterator[MemoryStore]:
    """Open a memory, by default one without files, and close it."""
    memory: MemoryStore
    if isinstance(place, str):
        memory = await PostgresMemory.open(MemoryConfig(url=place, embedder=name), embedder, runner=runner)
    else:
        config = MemoryConfig(place, embedder=name)
        memory = await FileMemory.open(config, embedder, runner=runner, exact_bytes=exact_bytes)
    try:
        yield memory
    finally:
        await memory.aclose()


@attrs.define
class SubjectEmbedder:
    """A model of meaning: a text's vector counts its words of each subject, and a constant that all texts share.

    Attributes:
        name: as the store remembers it.
        dimensions: as it claims; more than the four it has are zeros.
        base: the constant.
        asked: every text it was given.
        fails: whether it raises.
    """

    name: str = "subjects"
    dimensions: int = 4
    base: float = 0.5
    asked: list[str] = attrs.field(factory=list)
    fails: bool = False

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return the vectors, or raise ProviderError."""
        if self.fails:
            raise ProviderError("the model is away", retryable=True)
        self.asked += texts
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        """Return a text's vector."""
        words = text.lower().split()
        counts = [float(sum(word in subject for word in words)) for subject in SUBJECTS]
        return [*counts, self.base, *[0.0] * (self.dimensions - 4)]
