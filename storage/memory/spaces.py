"""Vectors of texts: the kinds of spaces that they lie in, and how much of a score they make."""

import contextlib
import logging
import math
import re
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
import trio
from numpy.typing import NDArray

from warren.base.errors import ProviderError, WarrenError
from warren.base.values import define, frozen
from warren.conversation.memory import Embedder
from warren.storage.memory.weights import Scores
from warren.storage.memory.words import pieces
from warren.storage.runner import Runner

Vectors = NDArray[np.float32]
logger: Final = logging.getLogger("warren.memory")
PATIENCE: Final = 10.0
"""Seconds that a text or a query waits for its vector: it is stored or searched by its words then."""
QUICK: Final = 1.0
"""Seconds within which an embedder may fail and is asked again the next time: nobody has waited."""
COOL_DOWN: Final = 60.0
"""Seconds for which one that has failed later is left alone."""
LONGEST_COOL_DOWN: Final = 600.0
"""Seconds for which one is left alone that fails so again and again."""
OF_TEXTS: Final = ProviderError.refusals | {"bad_embedding", "bad_response"}
"""Causes of errors that may be about one of several texts."""
_ROWS_AT_ONCE: Final = 256
"""Vectors unpacked at a time: 4 MB of the widest."""


BLOB: Final = "CASE typeof({0}) WHEN 'blob' THEN {0} WHEN 'null' THEN NULL ELSE x'00' END"
"""SQL for a column of bytes; a value of another type comes as one byte, which is neither a vector nor a term."""


class Space(Protocol):
    """Vectors of one kind, packed to bytes in the store.

    Attributes:
        name: of the embedder, dimensions included: vectors of different names cannot be compared.
        dimensions: numbers in each vector; 0 if the space has no vectors, and words alone decide.
        share: the part of a score that the vectors make; the rest is that of the words.
        has_floor: whether unrelated texts have a cosine above 0, as with models of meaning; it is then taken off.
    """

    @property
    def name(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def share(self) -> float: ...
    @property
    def has_floor(self) -> bool: ...

    async def pack(self, texts: Sequence[str], runner: Runner) -> list[bytes]:
        """Return a packed vector for each text. Raises whatever an embedder raises.

        `runner` runs computing that would hold up the event loop.
        """

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return the vectors of packed ones, a row each."""


@frozen
class TermSpace:
    """The default: no vectors. A text is weighed by its words alone, which the full-text table finds."""

    name: str = "bm25/0"
    dimensions: int = 0
    share: float = 0.0
    has_floor: bool = False

    async def pack(self, texts: Sequence[str], _runner: Runner) -> list[bytes]:
        """Return an empty vector for each text."""
        return [b""] * len(texts)

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return rows without columns."""
        return np.zeros((len(packed), 0), dtype=np.float32)


@frozen
class WordSpace:
    """The plain bag of words: runs of word characters, counted in one of 4,096 places each; nothing else counts."""

    name: str = "bag-of-words/4096"
    dimensions: int = 4_096
    share: float = 1.0
    has_floor: bool = False

    async def pack(self, texts: Sequence[str], runner: Runner) -> list[bytes]:
        """Return each text's words, each word as the number of its place."""
        return [await runner(partial(self._packed, text)) for text in texts]

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return how often each place was hit."""
        counts = [np.bincount(np.frombuffer(body, dtype="<u2"), minlength=self.dimensions) for body in packed]
        return np.array(counts, dtype=np.float32).reshape(len(packed), self.dimensions)

    def _packed(self, text: str) -> bytes:
        words = (word for piece in pieces(text) for word in _words(piece))
        return np.array([zlib.crc32(word.encode()) % self.dimensions for word in words], dtype="<u2").tobytes()


@frozen
class MeaningSpace:
    """Vectors of a model of meaning, which count as much as the words."""

    embedder: Embedder
    share: float = 0.5
    has_floor: bool = True

    @property
    def name(self) -> str:
        """The embedder's, with its dimensions."""
        return f"{self.embedder.name}/{self.dimensions}"

    @property
    def dimensions(self) -> int:
        """Numbers in each vector."""
        return self.embedder.dimensions

    async def pack(self, texts: Sequence[str], runner: Runner) -> list[bytes]:
        """Return the texts' vectors. Raises ProviderError(cause="bad_embedding") and whatever the embedder raises."""
        if not texts:
            return []
        vectors = await self.embedder.embed(texts)
        # Lists of a hundred thousand numbers take milliseconds to become an array.
        return await runner(partial(self._packed, vectors, len(texts)))

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return the vectors, of length 1."""
        return halves(packed, self.dimensions)

    def _packed(self, vectors: Sequence[Sequence[float]], count: int) -> list[bytes]:
        return [row.tobytes() for row in normal(self._checked(vectors, count)).astype("<f2")]

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


@define(eq=False)
class Vectorizer:
    """Makes the vectors of texts and queries, and keeps those who wait for them from waiting again and again.

    After a timeout, or a failure that took long, texts and queries do without vectors for a cool-down. Then one call
    tries the embedder while the others still do without; if that fails too, the cool-down is twice as long.

    Attributes:
        space: makes the vectors.
        runner: runs computing that would hold up the event loop.
        fails: whether the newest call for a text or a query has failed.
    """

    space: Space
    runner: Runner
    fails: bool = False
    _cool_down: float = 0.0
    _until: float = -math.inf
    _probing: bool = False

    async def soon(self, texts: Sequence[str]) -> Sequence[bytes | None]:
        """Return a packed vector for each text; None for all of them if the embedder fails, or takes too long.

        Texts are stored all the same then: their words find them, and the vectors are made later.
        """
        began = trio.current_time()
        if not texts or self._probing or began < self._until:
            return [None] * len(texts)
        before = self._cool_down
        self._probing = before > 0
        try:
            with trio.fail_after(PATIENCE):
                found = await self.space.pack(texts, self.runner)
        except trio.TooSlowError:
            logger.warning("the embedder is slow: %s texts do without vectors", len(texts))
        except WarrenError as exc:
            logger.warning("%s texts do without vectors: %s", len(texts), exc)
        except Exception:  # an embedder may be the host's code
            logger.exception("the embedder crashed: %s texts do without vectors", len(texts))
        else:
            self.fails, self._cool_down = False, 0.0
            return found
        finally:
            self._probing = False
        self.fails, now = True, trio.current_time()
        if now - began >= QUICK and self._cool_down == before:  # else a call beside this one has found the same
            self._cool_down = min(max(COOL_DOWN, 2 * before), LONGEST_COOL_DOWN)
            self._until = now + self._cool_down
        return [None] * len(texts)

    async def later(self, texts: Sequence[str]) -> Sequence[bytes | None]:
        """Return a packed vector for each text, however long that takes; None for one that is refused for good.

        Raises whatever an embedder raises if it is away, or if it refuses all of several texts.
        """
        began = trio.current_time()
        found = await packed_singly(self.space, texts, self.runner)
        if texts and trio.current_time() - began < PATIENCE:  # it is worth a try again
            self._until = -math.inf
        return found


async def packed_singly(space: Space, texts: Sequence[str], runner: Runner) -> Sequence[bytes | None]:
    """Return a packed vector for each text; None for one that the embedder refuses for good.

    Raises whatever an embedder raises if it is away, or if it refuses all of several texts.
    """
    try:
        return await space.pack(texts, runner)
    except WarrenError as exc:
        if exc.retryable or exc.cause not in OF_TEXTS:
            raise
        if len(texts) == 1:
            logger.warning("a text of the memory gets no vector, only its words find it: %s", exc)
            return [None]
        found = [each for text in texts for each in await packed_singly(space, [text], runner)]
        if not any(each is not None for each in found):
            await space.pack(["a"], runner)  # raises if it is not the texts
        return found


@frozen
class PackedSpace:
    """A space as another process knows it, by its name alone: it unpacks stored vectors and makes none.

    Attributes:
        name: of the embedder, dimensions included.
    """

    name: str

    @property
    def dimensions(self) -> int:
        """Numbers in each vector."""
        return int(self.name.rpartition("/")[2])

    def unpack(self, packed: Sequence[bytes]) -> Vectors:
        """Return the vectors of packed ones, a row each."""
        words = WordSpace()
        return words.unpack(packed) if self.name == words.name else halves(packed, self.dimensions)


def halves(packed: Sequence[bytes], dimensions: int) -> Vectors:
    """Return vectors that are stored as numbers of two bytes."""
    return np.frombuffer(b"".join(packed), dtype="<f2").astype(np.float32).reshape(len(packed), dimensions)


def normal(vectors: Vectors) -> Vectors:
    """Return the vectors with length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def unpacked(space: "Space | PackedSpace", packed: Sequence[bytes]) -> Vectors:
    """Return the vectors of packed ones, a row each; one that is damaged has length 0, and is like nothing."""
    try:
        return space.unpack(packed)
    except ValueError:
        rows = np.zeros((len(packed), space.dimensions), dtype=np.float32)
        for number, body in enumerate(packed):
            with contextlib.suppress(ValueError):
                rows[number] = space.unpack([body])[0]
        return rows


def cosines(space: Space, query: Vectors, packed: Sequence[bytes]) -> Scores:
    """Return the cosine of the query with each packed vector, exactly; 0 for one of length 0."""
    parts = [packed[at : at + _ROWS_AT_ONCE] for at in range(0, len(packed), _ROWS_AT_ONCE)]
    found = [normal(unpacked(space, part)) @ normal(query) for part in parts]
    return np.concatenate(found).astype(np.float64) if found else np.zeros(0)


def _words(piece: str) -> list[str]:
    """Return the words of a piece in small letters, and behind them those that case folding makes otherwise."""
    words = re.findall(r"\w+", lowered := piece.lower())
    if piece.isascii() or (folded := piece.casefold()) == lowered:
        return words
    return words + list(set(re.findall(r"\w+", folded)) - set(words))
