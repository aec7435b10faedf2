"""Terms and their weights: pure functions."""

import itertools
import math
import unicodedata
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.storage.memory.weights import EARLY, LENGTH, PAIRS, SATURATION, SOON, STOP_WORDS, Corpus, Question
from warren.storage.memory.words import PIECE, Analyzer, Terms, pieces

ANALYZER = Analyzer()


def same(one: str, other: str) -> bool:
    """Tell whether two texts are the same terms in the same order."""
    return bool(np.array_equal(ANALYZER.terms(one), ANALYZER.terms(other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Deployments deployed DEPLOY", "deploy deploys deploying"),
        ("fetchUserProfile", "fetch_user_profile"),
        ("HTTPServer", "http_server"),
        ("Café", "cafe\u0301"),
        ("\uff21\uff22\uff23", "abc"),
        ("auth.", "auth"),
    ],
)
def test_spellings_of_the_same(one: str, other: str) -> None:
    """Case, inflection, accents, width, punctuation and the style of identifiers make no difference."""
    assert same(one, other)


def test_identifiers_are_parts_and_a_whole() -> None:
    """An identifier is found by its parts, and by the whole without a separator."""
    terms = set(ANALYZER.terms("file_name").tolist())
    assert terms >= set(ANALYZER.terms("file").tolist()) | set(ANALYZER.terms("filename").tolist())


def test_unspaced_scripts_are_characters_and_pairs() -> None:
    """Four characters of a script without spaces are four terms and three pairs."""
    assert len(ANALYZER.terms("図書館員")) == 7


@given(st.text(alphabet="ab \n漢", max_size=200), st.integers(0, 3))
def test_pieces_are_the_text(text: str, times: int) -> None:
    """Cutting a text loses nothing."""
    long = text * (1 + times * PIECE // 50)
    assert "".join(pieces(long)) == long


def test_words_are_not_cut_between_pieces() -> None:
    """A text that is longer than a piece has the same terms as its words one by one."""
    words = [f"word{number}" for number in range(5_000)]
    assert set(ANALYZER.terms(" ".join(words)).tolist()) == {t for word in words for t in ANALYZER.terms(word).tolist()}


def test_what_was_learnt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An analyzer forgets words rather than growing for ever, and says the same of them afterwards."""
    monkeypatch.setattr("warren.storage.memory.words._REMEMBERED", 10)
    analyzer = Analyzer()
    first = analyzer.terms("alpha beta").tolist()
    analyzer.terms(" ".join(f"w{number}x" for number in range(100)))
    assert len(analyzer._known) <= 10  # noqa: SLF001 - its size is the point
    assert analyzer.terms("alpha beta").tolist() == first


def terms(numbers: list[int]) -> Terms:
    """Return terms of these numbers, none of which is a stop word's."""
    return np.array(numbers, dtype=np.uint32)


def reference(asked: list[int], text: list[int], containing: Counter[int], corpus: Corpus) -> float:
    """Compute a score as the formula reads, one term at a time."""

    def rarity(term: int) -> float:
        count = min(containing[term], corpus.texts)
        return math.log(1 + (corpus.texts - count + 0.5) / (count + 0.5))

    def saturated(times: int) -> float:
        damping = SATURATION * (1 - LENGTH + LENGTH * len(text) / max(corpus.average_length, 1))
        return times * (SATURATION + 1) / (times + damping)

    words = sum(saturated(text.count(term)) * rarity(term) for term in asked if term in text)
    pairs = {pair for pair in itertools.pairwise(asked) if pair[0] != pair[1]}
    beside = Counter(itertools.pairwise(text))
    side_by_side = sum(
        saturated(beside[pair]) * (rarity(pair[0]) + rarity(pair[1])) / 2 for pair in pairs if beside[pair]
    )
    first = min((text.index(term) for term in asked if term in text), default=math.inf)
    return (1 + EARLY / (1 + first / SOON)) * (words + PAIRS * side_by_side)


numbers = st.lists(st.integers(1, 6), max_size=12)


@given(asked=numbers.filter(bool), texts=st.lists(numbers, min_size=1, max_size=6))
def test_scores_are_those_of_the_formula(asked: list[int], texts: list[list[int]]) -> None:
    """All texts at once score what the formula gives for each."""
    containing = Counter(term for text in texts for term in set(text))
    corpus = Corpus(len(texts), sum(map(len, texts)) / len(texts))
    question = Question.of(terms(asked), containing, corpus)
    expected = [reference(asked, text, containing, corpus) for text in texts]
    assert question.scores([terms(text) for text in texts]).tolist() == pytest.approx(expected)
    assert question.own == pytest.approx(reference(asked, asked, containing, corpus))


def test_what_comes_to_the_point_wins() -> None:
    """Of two texts with the same words the one that has the query's at its beginning scores higher."""
    corpus = Corpus(10, 20.0)
    early, late = terms([1, *range(2, 42)]), terms([*range(2, 42), 1])
    scores = Question.of(terms([1]), {1: 2}, corpus).scores([early, late])
    assert scores[0] > scores[1] > 0


def test_stop_words_help_but_do_not_find() -> None:
    """A stop word adds a little to what another word found; alone it finds only if the query has nothing else."""
    the, cat = ANALYZER.terms("the"), ANALYZER.terms("cat")
    both = ANALYZER.terms("the cat")
    corpus = Corpus(10, 2.0)
    containing = {int(the[0]): 3, int(cat[0]): 3}
    question = Question.of(both, containing, corpus)
    with_both, with_cat, with_the = question.scores([both, cat, the])
    assert with_both > with_cat > 0
    assert with_the == 0
    assert Question.of(the, containing, corpus).scores([the])[0] > 0
    worth = dict(zip(question.terms.tolist(), question.worth.tolist(), strict=True))
    assert worth[int(the[0])] == pytest.approx(STOP_WORDS * worth[int(cat[0])])


def test_no_terms_no_score() -> None:
    """A query without terms, and texts without any, score 0."""
    corpus = Corpus(0, 0.0)
    assert Question.of(terms([]), {}, corpus).relevance([terms([1]), terms([])]).tolist() == [0, 0]
    assert Question.of(terms([1]), {1: 0}, corpus).relevance([terms([]), terms([])]).tolist() == [0, 0]


def test_words_of_earlier_releases_are_asked_for() -> None:
    """A text that was stored before words were case-folded has small letters: a query has that term, too."""
    for word in ("Straße", "GROẞ", "ΟΔΟΣ"):
        stored = zlib.crc32(unaccented(word).lower().encode())
        assert stored in ANALYZER.terms(word).tolist()


def unaccented(word: str) -> str:
    """Return a word without its accents."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", word) if not unicodedata.combining(letter))
