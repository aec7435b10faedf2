"""The order in which the full-text table ranks the texts of a tenant, computed as if it had no others.

Its own ranks count the texts of all tenants, so texts of other tenants would decide which texts are candidates.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from warren.storage.memory.weights import Scores
from warren.storage.memory.words import Terms

# The constants of FTS5's bm25().
_SATURATION: Final = 1.2
_LENGTH: Final = 0.75
_LEAST: Final = 1e-6
"""The weight of a term that most texts have."""


def counted(texts: Sequence[Terms], terms: Sequence[int]) -> Scores:
    """Return how often each text has each term."""
    ends = np.cumsum([len(text) for text in texts])
    together = np.concatenate(texts) if texts else np.zeros(0, dtype=np.uint32)
    found = [np.searchsorted(ends, np.flatnonzero(together == term), side="right") for term in terms]
    columns = [np.bincount(each, minlength=len(texts)) for each in found]
    return np.array(columns, dtype=np.float64).T.reshape(len(texts), len(terms))


def ranked(times: Scores, lengths: Scores, containing: Scores, texts: int, average_length: float) -> list[int]:
    """Return the places of texts, the best first, and of equal ones the earlier.

    Args:
        times: how often each text has each term.
        lengths: words of each text in the table.
        containing: how many texts have each term.
        texts: how many there are.
        average_length: words of a text.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rarity = np.log((texts - containing + 0.5) / (containing + 0.5))
    rarity = np.where(rarity > 0, rarity, _LEAST)
    damping = _SATURATION * (1 - _LENGTH + _LENGTH * lengths / max(average_length, 1.0))
    scores = (times * (_SATURATION + 1) / (times + damping[:, None]) * rarity).sum(axis=1)
    places: list[int] = np.argsort(-scores, kind="stable").tolist()
    return places
