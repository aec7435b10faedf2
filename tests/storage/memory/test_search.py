"""What comes out: scopes, scores, and texts of every kind."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.memory.samples import contents, entries, entry, numbered, opened, word
from warren.errors import InvalidParamsError
from warren.memory import MAX_HITS
from warren.storage.memory import search

ODD_TEXTS = {
    "operators": 'AND OR NEAR(x) * " ^ - : {}',
    "nul": "before\0after",
    "emoji": "we had a 🎉 yesterday",
    "japanese": "昨日は図書館で本を読みました",
    "thai": "เมื่อวานฉันไปห้องสมุด",
    "korean": "어제 도서관에서 책을 읽었습니다",
    "hindi": "नमस्ते दुनिया",
    "arabic": "ذهبت إلى المكتبة",
    "accents": "Ärger über die Größe",
    "code": "def fetchUserProfile(user_id): return db.get_by_id(user_id)",
    "stop words": "to be or not to be",
    "long word": "x" * 3_000,
    "punctuation and digits": "v3.11.4-rc1 == 0x7fff",
}


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(["bm25", "bag-of-words"], ODD_TEXTS)))
async def test_every_kind_of_text_is_found_by_itself(kind: str, name: str) -> None:
    """A text is the best answer to itself, with score 1, in both scopes."""
    async with opened(name=name) as memory:
        await memory.index(entries(list(ODD_TEXTS.values())))
        for session_id in (None, "a"):
            best, *_ = await memory.search(ODD_TEXTS[kind], session_id=session_id)
            assert best.content == ODD_TEXTS[kind]
            assert best.score == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("図書館", "japanese"),
        ("本", "japanese"),
        ("ห้องสมุด", "thai"),
        ("도서관", "korean"),
        ("दुनिया", "hindi"),
        ("🎉", "emoji"),
        ("arger uber", "accents"),
        ("fetch user profile", "code"),
        ("FETCH_USER_PROFILE", "code"),
        ("getById", "code"),
        ("after", "nul"),
        ("near", "operators"),
    ],
)
async def test_parts_of_texts_are_found(query: str, kind: str) -> None:
    """Words are found without spaces around them, without accents, inside identifiers however they are written."""
    async with opened() as memory:
        await memory.index(entries(list(ODD_TEXTS.values())))
        assert contents(await memory.search(query))[:1] == [ODD_TEXTS[kind]]


@pytest.mark.parametrize("query", ["", "   ", "\0", "!?", "zyzzyva quux", "*", '"', "the"])
async def test_nothing_in_common_is_no_hit(query: str) -> None:
    """A query without words, or with none that a text has, finds nothing; a stop word beside others is not enough."""
    async with opened() as memory:
        await memory.index(entries(["The quick brown fox", "the lazy dog of the house"]))
        assert contents(await memory.search(query)) == ([] if query != "the" else contents(await memory.search("the")))
        assert await memory.search(f"the {query} zyzzyva") == []


async def test_scores_fall_and_stay_within_bounds() -> None:
    """Hits come best first; a score is above 0.5 and at most 1."""
    async with opened() as memory:
        await memory.index(
            entries(["kiwi", "kiwi mango", "kiwi mango papaya", "mango and much else besides", "nothing of it"])
        )
        hits = await memory.search("kiwi mango papaya")
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert all(0.5 < hit.score <= 1 for hit in hits)
        assert hits[0].content == "kiwi mango papaya"
        assert (hits[0].score, len(hits)) == (1.0, 4)


async def test_scope() -> None:
    """With a session only its own entries are found, without one those of all."""
    async with opened() as memory:
        await memory.index(numbered(3, session="a") + numbered(3, session="b"))
        assert {hit.session_id for hit in await memory.search("common")} == {"a", "b"}
        assert {hit.session_id for hit in await memory.search("common", session_id="b")} == {"b"}
        assert await memory.search("common", session_id="unknown") == []


@pytest.mark.parametrize("name", ["bm25", "bag-of-words"])
async def test_a_needle_in_a_large_session(name: str) -> None:
    """A session past the size up to which it is looked through whole is answered from its own entries too."""
    count = search.SMALL_SESSION + 1
    async with opened(name=name) as memory:
        await memory.index(numbered(count, session="large"))
        await memory.index(numbered(count, session="other"))
        (hit,) = await memory.search(word(700), session_id="large")
        assert (hit.session_id, hit.turn) == ("large", 700)
        assert {hit.session_id for hit in await memory.search("common", session_id="large")} == {"large"}


async def test_limits() -> None:
    """As many hits as asked for, never more than the most there are; below 1 is bad input."""
    async with opened() as memory:
        await memory.index(numbered(40))
        for limit, got in ((1, 1), (5, 5), (MAX_HITS, MAX_HITS), (1_000, MAX_HITS)):
            assert len(await memory.search("common", limit=limit)) == got
        assert len(await memory.search("common")) == 5
        with pytest.raises(InvalidParamsError, match=r"\$\.limit: must be above 0"):
            await memory.search("common", limit=0)


async def test_huge_texts() -> None:
    """A text of a megabyte is stored whole, found by a word at its end, and does as a query."""
    huge = " ".join(f"word{number % 5_000}" for number in range(110_000)) + " needle"
    async with opened() as memory:
        await memory.index([entry(huge), entry("漢字" * 200_000, position=1), entry("z" * 1_000_000, position=2)])
        (hit,) = await memory.search("needle")
        assert hit.content == huge
        assert contents(await memory.search(huge, limit=1)) == [huge]
        assert await memory.search("字漢") != []


async def test_the_better_of_two_words_wins() -> None:
    """A rare word counts more than a frequent one, and words side by side more than the same apart."""
    async with opened() as memory:
        await memory.index(numbered(20))
        await memory.index(
            entries(["common walrus", "red tall slow car", "slow red tall car", "tall car red slow"], session="b")
        )
        assert contents(await memory.search("common walrus"))[0] == "common walrus"
        assert contents(await memory.search("slow red car"))[0] == "slow red tall car"


@given(texts=st.lists(st.text(max_size=60), min_size=1, max_size=5), query=st.text(max_size=60))
async def test_no_text_and_no_query_is_too_odd(texts: list[str], query: str) -> None:
    """Whatever is stored or asked, a search ends well, and what it returns was stored."""
    async with opened() as memory:
        await memory.index(entries(texts))
        for session_id in (None, "a"):
            hits = await memory.search(query, session_id=session_id)
            assert set(contents(hits)) <= set(texts)


@given(words=st.lists(st.from_regex(r"[a-zA-Z_]{1,12}", fullmatch=True), min_size=1, max_size=8))
async def test_what_shares_a_word_is_found(words: list[str]) -> None:
    """A text is found by each of its words, if that is more than underscores."""
    async with opened() as memory:
        await memory.index([entry(" ".join(words))])
        for word in words:
            expected = [" ".join(words)] if word.strip("_") else []
            telling = await memory.search(word)
            assert contents(telling) == expected
