"""How well texts answer a query by their words: BM25 over terms and pairs of neighbouring terms, computed exactly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from warren.base.values import frozen
from warren.storage.memory.words import STOP_TERMS, Terms

Scores = NDArray[np.float64]

# Tuned on the dev split of benchmarks/memory_quality.py, and on half of the prose of manuals and READMEs.
SATURATION: Final = 0.8
"""BM25's k1: how soon more occurrences of a term stop to count."""
LENGTH: Final = 0.85
"""BM25's b: how far long texts are held back."""
STOP_WORDS: Final = 0.5
"""The weight of a word like "the", as a part of the weight by its rarity."""
PAIRS: Final = 0.4
"""The bonus for two terms side by side as in the query, as a part of their mean weight."""
EARLY: Final = 0.2
"""The bonus for a text with a term of the query at its beginning; half of it after `SOON` terms."""
SOON: Final = 20
MOST_TERMS: Final = 64
"""Of a longer query the rarest terms count."""
_SIEVE: Final = 0xFFFF


@frozen
class Corpus:
    """Figures of all texts: how many there are, and how many terms they have on average."""

    texts: int
    average_length: float

    def rarity(self, containing: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weight (BM25's idf) of a term by the number of texts with it."""
        within = np.minimum(containing, self.texts)
        return np.log(1 + (self.texts - within + 0.5) / (within + 0.5))


@frozen(eq=False)
class Question:
    """The terms of a query, and their weights.

    Attributes:
        terms: distinct, ascending.
        telling: the numbers of those a text has to have at least one of: no stop words, if there are others.
        worth: of each term: its rarity times its occurrences in the query.
        pairs: the weights of two terms side by side, by the numbers of the first and the second term.
        own: the score that the query's own text would get.
        corpus: the texts that the weights were made for.
    """

    terms: Terms
    telling: NDArray[np.intp]
    worth: Scores
    pairs: Scores
    own: float
    corpus: Corpus

    @classmethod
    def of(cls, asked: Terms, containing: Mapping[int, int], corpus: Corpus) -> Self:
        """Weigh a query's terms, in its order, by how many texts contain each."""
        counts = Counter(asked.tolist())
        # Those that no text has come last: they only say how much of the query cannot be found.
        rarest = sorted(counts, key=lambda term: containing[term] or corpus.texts)[:MOST_TERMS]
        terms = np.array(sorted(rarest), dtype=np.uint32)
        rarity = corpus.rarity(np.array([containing[term] for term in terms.tolist()], dtype=np.float64))
        stops = np.isin(terms, STOP_TERMS)
        rarity *= np.where(stops, STOP_WORDS, 1.0)
        worth = rarity * np.array([counts[term] for term in terms.tolist()], dtype=np.float64)
        telling = np.flatnonzero(~stops) if not stops.all() else np.arange(len(terms))
        question = cls(terms, telling, worth, _pairs(asked, terms, rarity), 0.0, corpus)
        return attrs.evolve(question, own=float(question.scores([asked])[0]))

    def scores(self, texts: Sequence[Terms]) -> Scores:
        """Return the score of each text; 0 if it has no telling term of the query."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        if not len(self.terms) or not lengths.sum():
            return np.zeros(len(texts))
        ends = np.cumsum(lengths)
        found = self._find(np.concatenate(texts), ends)
        damping = SATURATION * (1 - LENGTH + LENGTH * lengths.astype(np.float64) / max(self.corpus.average_length, 1.0))
        times = self._count(found, len(texts))
        by_terms = times * (SATURATION + 1) / (times + damping[:, None]) @ self.worth
        answers = times[:, self.telling].any(axis=1)
        early = 1 + EARLY / (1 + self._first(found, ends - lengths) / SOON)
        scores: Scores = np.where(answers, early * (by_terms + PAIRS * self._by_pairs(found, damping)), 0.0)
        return scores

    def relevance(self, texts: Sequence[Terms]) -> Scores:
        """Return scores as a part of the score of the query's own text: 0 has no term of it, 1 is as good."""
        return self.scores(texts) / self.own if self.own else np.zeros(len(texts))

    def _find(self, flat: Terms, ends: NDArray[np.int64]) -> "_Found":
        sieve = np.zeros(_SIEVE + 1, dtype=np.bool_)
        sieve[self.terms & _SIEVE] = True
        places = np.flatnonzero(sieve[flat & _SIEVE])
        numbers = np.searchsorted(self.terms, flat[places])
        numbers[numbers == len(self.terms)] = 0
        right = self.terms[numbers] == flat[places]
        return _Found(np.searchsorted(ends, places[right], side="right"), numbers[right], places[right])

    def _count(self, found: "_Found", texts: int) -> NDArray[np.int64]:
        """Return how often each text has each term."""
        keys = found.text * len(self.terms) + found.number
        return np.bincount(keys, minlength=texts * len(self.terms)).reshape(texts, len(self.terms)).astype(np.int64)

    def _first(self, found: "_Found", starts: NDArray[np.int64]) -> Scores:
        """Return how many terms each text has before its first telling one; infinity if it has none."""
        first = np.full(len(starts), np.inf)
        telling = np.isin(found.number, self.telling)
        texts, at = np.unique(found.text[telling], return_index=True)
        first[texts] = found.place[telling][at] - starts[texts]
        return first

    def _by_pairs(self, found: "_Found", damping: Scores) -> Scores:
        first, second = found.number[:-1], found.number[1:]
        side_by_side = (np.diff(found.place) == 1) & (found.text[:-1] == found.text[1:])
        at = np.flatnonzero(side_by_side & (self.pairs[first, second] > 0))
        keys = (found.text[at] * len(self.terms) + first[at]) * len(self.terms) + second[at]
        keys, times = np.unique(keys, return_counts=True)
        text, pair = np.divmod(keys, len(self.terms) ** 2)
        weighed = self.pairs.ravel()[pair] * times * (SATURATION + 1) / (times + damping[text])
        scores: Scores = np.bincount(text, weights=weighed, minlength=len(damping)).astype(np.float64)
        return scores


@frozen(eq=False)
class _Found:
    """Occurrences of the query's terms: in which text, of which term, at which place of all texts' terms."""

    text: NDArray[np.int64]
    number: NDArray[np.int64]
    place: NDArray[np.int64]


def _pairs(asked: Terms, terms: Terms, rarity: Scores) -> Scores:
    worth = np.zeros((len(terms), len(terms)))
    if len(terms):
        numbers = np.searchsorted(terms, asked)
        numbers[numbers == len(terms)] = 0
        kept = terms[numbers] == asked
        for first, second, both in zip(numbers, numbers[1:], kept[:-1] & kept[1:], strict=False):
            if both and first != second:
                worth[first, second] = (rarity[first] + rarity[second]) / 2
    return worth
