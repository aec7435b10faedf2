"""Texts as sequences of terms: the rules for words, in any language and in code.

A term is the 32-bit hash of a stemmed, case-folded word without accents. The hashes stand for the words everywhere: in
the full-text table, in the vectors and in comparisons, so that no text, however odd, is a command of a query language.
"""

import re
import time
import unicodedata
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import Stemmer  # type: ignore[import-not-found]
from numpy.typing import NDArray

Terms = NDArray[np.uint32]
"""A text's terms in order, each the hash of a word."""
PIECE: Final = 8_192
"""Characters handled at a time: about a millisecond, for which the event loop may have to wait."""
LONGEST_WORD: Final = 80
_REMEMBERED: Final = 100_000
# Written without spaces between words: Thai, Lao, Myanmar, Khmer, kana, CJK ideographs, Hangul.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and points that belong to words although they are no letters: Hebrew, Arabic, the scripts of India.
_SIGNS: Final = "\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
_SYMBOLS: Final = "\u2190-\u23ff\u2600-\u27bf\U0001f000-\U0001faff"
_CHUNK: Final = re.compile(f"[\\w{_UNSPACED}{_SIGNS}]+|[{_SYMBOLS}]")
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
_RUN: Final = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^_A-Za-z0-9]+")
_ACCENT: Final = re.compile("[\u0300-\u036f]")
_SPACE: Final = re.compile(r"\s")
_LETTERS: Final = re.compile(r"[a-z]{3,}")
_STOP_WORDS: Final = """
a about also am an and are as at be been being but by can could did do does for from had has have he her his how i if
in into is it its just me my no not of on or our ours she should so such than that the their them then there these they
this those to too us very was we were what when where which who whom why will with would you your
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())


class Analyzer:
    """Turns texts into terms. Remembers words it has met, so each thread needs one of its own."""

    def __init__(self) -> None:
        # Without a memory of its own: it would keep the same words twice.
        self._stemmer = Stemmer.Stemmer("english", 0)
        self._known: dict[str, tuple[int, ...]] = {}

    def terms(self, text: str) -> Terms:
        """Return the text's terms in order."""
        # Piece by piece: a list of all numbers would take milliseconds to become an array, without a pause.
        parts = [np.array(self._of_piece(piece), dtype=np.uint32) for piece in pieces(text)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint32)

    def _of_piece(self, piece: str) -> list[int]:
        found: list[int] = []
        known = self._known
        for chunk in _CHUNK.findall(_fold(piece)):
            terms = known.get(chunk)
            if terms is None:
                terms = tuple(_term(word) for word in self._words(chunk))
                if len(known) >= _REMEMBERED:
                    known.clear()
                if len(chunk) <= LONGEST_WORD:
                    known[chunk] = terms
            found += terms
        return found

    def _words(self, chunk: str) -> Iterator[str]:
        folded = chunk if chunk.isascii() else "".join(map(_case_folded, chunk))
        if folded != chunk:
            # Texts that an earlier release stored have the word as it was, so queries ask for it, too.
            yield chunk.lower()
        for run in _RUN.findall(folded):
            if _IS_UNSPACED.match(run):  # each character and each pair of neighbours
                yield from run
                yield from map("".join, pairwise(run))
            else:
                yield from self._identifier(run)

    def _identifier(self, run: str) -> Iterator[str]:
        """Yield the parts of `someName` or `some_name`, and the whole without its marks: `somename`."""
        parts = [run] if len(run) > LONGEST_WORD else _PART.findall(run)
        for part in parts:
            yield self._stem(part.lower())
        if len(parts) > 1:
            yield self._stem("".join(parts).lower())

    def _stem(self, word: str) -> str:
        if word in STOP_WORDS or not _LETTERS.fullmatch(word):
            return word
        stem: str = self._stemmer.stemWord(word)
        return stem


def _term(word: str) -> int:
    return zlib.crc32(word.encode())


def pieces(text: str) -> Iterator[str]:
    """Cut a long text at spaces, and let other threads run after each piece."""
    at = 0
    while at < len(text):
        end = at + PIECE
        if space := _SPACE.search(text, end, end + PIECE):
            end = space.start()
        yield text[at:end]
        if end < len(text):
            release_gil()
        at = end


def release_gil() -> None:
    """Release the interpreter lock for a moment, so that the event loop can run."""
    # A sleep of zero hands nothing over: the thread would have the lock back before another has woken up.
    time.sleep(0.000_05)


def _fold(piece: str) -> str:
    """Take off accents and compatibility forms; case stays, it separates the parts of identifiers."""
    if piece.isascii():
        return piece
    return unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFKD", piece)))


def _case_folded(letter: str) -> str:
    """Return the letters that case folding makes of one, if they are others than its small letter: ss of ß."""
    folded = letter.casefold()
    if folded == letter.lower():
        return letter
    return folded.upper() if letter.isupper() else folded


STOP_TERMS: Final = np.array(sorted(map(_term, STOP_WORDS)), dtype=np.uint32)
"""Words that say little by themselves, as terms; ascending."""
