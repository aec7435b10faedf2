"""The part of a search that all homes of a memory share: which candidates to look for, and the score of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from warren.base.errors import InvalidParamsError
from warren.base.values import frozen
from warren.conversation.memory import Embedder, MemoryConfig, ScoreParts, Weighs
from warren.storage.memory.spaces import MeaningSpace, Space, TermSpace, WordSpace
from warren.storage.memory.weights import Question, Scores
from warren.storage.memory.words import Terms

BUILT_IN: Final[dict[str, Space]] = {"bm25": TermSpace(), "bag-of-words": WordSpace()}
QUERY_LENGTH: Final = 4_000
"""Characters of a query that count."""
BY_WORDS: Final = 100
BY_VECTORS: Final = 100
"""Candidates that are looked for by the words of a query, and by its vector."""
SMALL_SESSION: Final = 1_000
"""Entries up to which all of a session is searched, also by words alone."""
BACKGROUND: Final = 64
"""Entries, spread over the memory, that tell how like a query an unrelated text is."""
AT_ONCE: Final = 250
"""Candidates that are fetched or weighed at a time."""
_DIGITS: Final = 6
"""Decimal places of a score and of its parts."""


def space_of(config: MemoryConfig, embedder: Embedder | None) -> Space:
    """Return the space of an embedder, or of a built-in one by its name. Raises InvalidParamsError."""
    if embedder is not None:
        return MeaningSpace(embedder)
    if config.embedder not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise InvalidParamsError.at("$.embedder", f"must be one of {known}, or an embedder has to be given")
    return BUILT_IN[config.embedder]


def weighs(space: Space, *, embedder_fails: bool) -> Weighs:
    """Return the parts that make the scores of a memory's searches."""
    if embedder_fails or not space.share:
        return "words"
    return "vectors" if space.share == 1 else "words_and_vectors"


def rarest(question: Question, containing: Mapping[int, int], most: int) -> list[int]:
    """Return the terms to look for: the rarest ones that stay within `most` rows, and at least one.

    Args:
        question: the terms.
        containing: how many texts contain each.
        most: rows that the home ranks quickly enough.
    """
    chosen: list[int] = []
    rows = 0
    for count, term in sorted((containing[term], term) for term in question.terms[question.telling].tolist()):
        rows += count
        if chosen and rows > most:
            break
        if count:
            chosen.append(term)
    return chosen


def by_words(question: Question, texts: Sequence[Terms]) -> Scores:
    """Return how well each text answers by its words."""
    parts = [question.relevance(texts[at : at + AT_ONCE]) for at in range(0, len(texts), AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros(0)


@frozen(eq=False)
class Weighed:
    """The scores of candidates, and the parts of each.

    Attributes:
        scores: the relevance of each: how well it answers.
        words: the part by words.
        likeness: the part by likeness to the query; not a number for an entry that is judged by its words alone.
        share: the part of a score that the likeness makes.
    """

    scores: Scores
    words: Scores
    likeness: Scores
    share: float

    def parts(self, at: int) -> ScoreParts:
        """Return the parts of the score of the candidate at a place."""
        words, likeness = round(float(self.words[at]), _DIGITS), float(self.likeness[at])
        if math.isnan(likeness):
            return ScoreParts(words, None, 0.0)
        return ScoreParts(words, round(likeness, _DIGITS), self.share)


def mixed(words: Scores, share: float, at: Sequence[int], likeness: Scores) -> Weighed:
    """Return scores by words of which those at some places have their share by likeness to the query.

    An entry without a vector is judged by its words alone. The words are a part of the best that the query could get,
    the score of its own text, and not of the best text found: with all-MiniLM-L6-v2 the half of each finds 0.585 MRR@10
    on human queries instead of 0.572, and a poor match keeps a poor score.
    """
    both, known = words.copy(), np.full(len(words), np.nan)
    both[at] = (1 - share) * words[at] + share * likeness
    known[at] = likeness
    return Weighed(both, words, known, share)


def floor_of(cosines: Scores) -> float:
    """Return the cosine with a query that unrelated texts have, by the cosines of some; a few tell nothing.

    Models differ: with some any two texts have 0.7.
    """
    if len(cosines) < BACKGROUND // 4:
        return 0.0
    return max(0.0, float(cosines.mean() + cosines.std()))


def above(cosines: Scores, floor: float) -> Scores:
    """Return the likeness of texts to a query: their cosines above that of unrelated texts."""
    likeness: Scores = np.clip((cosines - floor) / max(1 - floor, 1e-6), 0, None)
    return likeness


def best_first(scores: Scores) -> list[int]:
    """Return the places of the texts that are hits, best first; of equal ones the earlier first."""
    return [at for at in np.argsort(-scores, kind="stable").tolist() if scores[at] > 0]


def score_of(relevance: float) -> float:
    """Return the score of a hit."""
    distance = 1 - min(1.0, relevance)
    return round(1 - distance / 2, _DIGITS)
