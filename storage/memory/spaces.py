"""Vectors of texts: three kinds of spaces, and how far a search goes by each."""

import re
import zlib
from collections.abc import Sequence
from typing import Final, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from warren.errors import ProviderError
from warren.memory import Embedder
from warren.storage.memory.weights import Question, Scores
from warren.storage.memory.words import Terms, pieces

Vectors = NDArray[np.float32]
_ROWS_AT_ONCE: Final = 256
"""Vectors made at a time: 4 MB of the widest."""


class Space(Protocol):
    """Vectors of one kind. They lie packed in the store, or are made of what lies there anyway.

    Attributes:
        name: of the embedder, dimensions included: vectors of different names have nothing to do with each other.
        dimensions: numbers in each vector.
        share: the part of a score that the vectors make; the rest is that of the words.
        packs: whether packed vectors are stored beside the texts. Else the terms of a text stand for them.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - told above
    @property
    def dimensions(self) -> int: ...  # noqa: D102
    @property
    def share(self) -> float: ...  # noqa: D102
    @property
    def packs(self) -> bool: ...  # noqa: D102

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return the vectors, a row each, of what was packed (or of terms)."""
        ...


@attrs.frozen
class TermSpace:
    """The default: a text's terms, each thrown into one of the dimensions with a sign.

    Where the words are looked at themselves, these vectors say nothing new; they lead the graph to texts that share
    many terms of a long query, and count for nothing in the score.
    """

    name: str = "bm25/1024"
    dimensions: int = 1_024
    share: float = 0.0
    packs: bool = False

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return vectors of terms; what is rare is left to the query to weigh, as it changes with every text."""
        vectors = np.zeros((len(packed), self.dimensions), dtype=np.float32)
        for row, body in zip(vectors, packed, strict=True):
            terms, times = np.unique(np.frombuffer(body, dtype="<u4"), return_counts=True)
            self._throw(row, terms, times / (times + 1))
        return vectors

    def query(self, question: Question) -> Vectors:
        """Return the vector of a query, its terms weighed by their rarity."""
        vector = np.zeros(self.dimensions, dtype=np.float32)
        self._throw(vector, question.terms, question.worth)
        return vector

    def _throw(self, vector: Vectors, terms: Terms, weights: Scores) -> None:
        mixed = terms * np.uint32(0x9E3779B1)
        signs = np.where(mixed & 1, 1.0, -1.0)
        np.add.at(vector, (mixed >> 16) % self.dimensions, (weights * signs).astype(np.float32))


@attrs.frozen
class WordSpace:
    """The plain bag of words: runs of word characters, counted in one of 4,096 places each; nothing else counts."""

    name: str = "bag-of-words/4096"
    dimensions: int = 4_096
    share: float = 1.0
    packs: bool = True

    def pack(self, text: str) -> bytes:
        """Return a text's words, each as the number of its place."""
        words = (word for piece in pieces(text) for word in re.findall(r"\w+", piece.lower()))
        return np.array([zlib.crc32(word.encode()) % self.dimensions for word in words], dtype="<u2").tobytes()

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return how often each place was hit."""
        counts = [np.bincount(np.frombuffer(body, dtype="<u2"), minlength=self.dimensions) for body in packed]
        return np.array(counts, dtype=np.float32).reshape(len(packed), self.dimensions)


@attrs.frozen
class MeaningSpace:
    """Vectors of a model of meaning, which count as much as the words."""

    embedder: Embedder
    share: float = 0.5
    packs: bool = True

    @property
    def name(self) -> str:
        """The embedder's, with its dimensions."""
        return f"{self.embedder.name}/{self.dimensions}"

    @property
    def dimensions(self) -> int:
        """Numbers in each vector."""
        return self.embedder.dimensions

    async def pack(self, texts: Sequence[str]) -> list[bytes]:
        """Return the texts' vectors. Raises ProviderError(cause="bad_embedding") and what the embedder raises."""
        vectors = await self.embedder.embed(texts) if texts else []
        return [row.tobytes() for row in normal(self._checked(vectors, len(texts))).astype("<f2")]

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return the vectors, of length 1."""
        return np.frombuffer(b"".join(packed), dtype="<f2").astype(np.float32).reshape(len(packed), self.dimensions)

    def _checked(self, vectors: Sequence[Sequence[float]], count: int) -> Vectors:
        try:
            matrix = np.array(vectors, dtype=np.float32).reshape(count, self.dimensions)
        except (TypeError, ValueError):
            raise self._bad(f"did not return {count} vectors of {self.dimensions} numbers") from None
        if not np.isfinite(matrix).all():
            raise self._bad("returned a number that is not finite")
        return matrix

    def _bad(self, problem: str) -> ProviderError:
        return ProviderError(f"the embedder {self.embedder.name} {problem}", cause="bad_embedding", retryable=False)


def normal(vectors: Vectors) -> Vectors:
    """Return the vectors with length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def cosines(space: Space, query: Vectors, packed: Sequence[bytes]) -> Scores:
    """Return the cosine of the query with each packed vector, exactly; 0 for one of length 0."""
    parts = [packed[at : at + _ROWS_AT_ONCE] for at in range(0, len(packed), _ROWS_AT_ONCE)]
    found = [normal(space.unpack(part)) @ normal(query) for part in parts]
    return np.concatenate(found).astype(np.float64) if found else np.zeros(0)
