"""Hits of searches: scopes, scores, and texts of every kind."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.memory.samples import Place, contents, entries, entry, numbered, opened, word
from warren.base.errors import InvalidParamsError
from warren.conversation.memory import MAX_HITS, Tail
from warren.storage.memory.weighing import SMALL_SESSION
from warren.storage.memory_store import MemoryStore

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


async def each_is_found_by_itself(memory: MemoryStore) -> None:
    """Each text is the best answer to itself, with score 1, in both scopes."""
    await memory.index(entries(list(ODD_TEXTS.values())))
    for kind, session_id in itertools.product(ODD_TEXTS, (None, "a")):
        best, *_ = await memory.search(ODD_TEXTS[kind], session_id=session_id)
        assert best.content == ODD_TEXTS[kind], kind
        assert best.score == pytest.approx(1.0, abs=1e-5), kind


async def test_every_kind_of_text_is_found_by_itself(place: Place) -> None:
    """Whatever a text consists of, it is found by its words."""
    async with opened(place) as memory:
        await each_is_found_by_itself(memory)


async def test_every_kind_of_text_is_found_in_the_plain_bag_of_words() -> None:
    """The same without stems and without weights by rarity."""
    async with opened(name="bag-of-words") as memory:
        await each_is_found_by_itself(memory)


PARTS = [
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
]


async def test_parts_of_texts_are_found(place: Place) -> None:
    """Words are found without spaces around them, without accents, inside identifiers however they are written."""
    async with opened(place) as memory:
        await memory.index(entries(list(ODD_TEXTS.values())))
        for query, kind in PARTS:
            assert contents(await memory.search(query))[:1] == [ODD_TEXTS[kind]], query


async def test_nothing_in_common_is_no_hit(place: Place) -> None:
    """A query without words, or with none that a text has, finds nothing; a stop word beside others is not enough."""
    async with opened(place) as memory:
        await memory.index(entries(["The quick brown fox", "the lazy dog of the house"]))
        assert len(await memory.search("the")) == 2
        for query in ("", "   ", "\0", "!?", "zyzzyva quux", "*", '"', "the"):
            assert await memory.search(query) == [] or query == "the", query
            assert await memory.search(f"the {query} zyzzyva") == [], query


async def test_scores_fall_and_stay_within_bounds(place: Place) -> None:
    """Hits come best first; a score is above 0.5 and at most 1."""
    async with opened(place) as memory:
        await memory.index(
            entries(["kiwi", "kiwi mango", "kiwi mango papaya", "mango and much else besides", "nothing of it"])
        )
        hits = await memory.search("kiwi mango papaya")
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert all(0.5 < hit.score <= 1 for hit in hits)
        assert hits[0].content == "kiwi mango papaya"
        assert (hits[0].score, len(hits)) == (1.0, 4)


async def test_scope(place: Place) -> None:
    """With a session only its own entries are found, without one those of all."""
    async with opened(place) as memory:
        await memory.index(numbered(3, session="a") + numbered(3, session="b"))
        assert {hit.session_id for hit in await memory.search("common")} == {"a", "b"}
        assert {hit.session_id for hit in await memory.search("common", session_id="b")} == {"b"}
        assert await memory.search("common", session_id="unknown") == []


async def a_needle_is_found(memory: MemoryStore) -> None:
    """A session past the size up to which it is looked through whole is answered from its own entries too."""
    count = SMALL_SESSION + 1
    await memory.index(numbered(count, session="large"))
    await memory.index(numbered(count, session="other"))
    (hit,) = await memory.search(word(700), session_id="large")
    assert (hit.session_id, hit.turn) == ("large", 700)
    assert {hit.session_id for hit in await memory.search("common", session_id="large")} == {"large"}


async def test_a_needle_in_a_large_session(place: Place) -> None:
    """A large session is searched by its own words alone."""
    async with opened(place) as memory:
        await a_needle_is_found(memory)


async def test_a_needle_in_a_large_session_of_plain_words() -> None:
    """The same in the plain bag of words."""
    async with opened(name="bag-of-words") as memory:
        await a_needle_is_found(memory)


async def test_a_word_that_is_new_is_found_at_once(place: Place) -> None:
    """A text is found by a word that was searched for in vain before the text came, however few texts are new."""
    async with opened(place) as memory:
        await memory.index(numbered(40))
        assert not await memory.search("zebra")
        await memory.index([entry("a zebra", session="b")])
        assert contents(await memory.search("zebra")) == ["a zebra"]


async def test_limits(place: Place) -> None:
    """As many hits as asked for, never more than the most there are; below 1 is bad input."""
    async with opened(place) as memory:
        await memory.index(numbered(40))
        for limit, got in ((1, 1), (5, 5), (MAX_HITS, MAX_HITS), (1_000, MAX_HITS)):
            assert len(await memory.search("common", limit=limit)) == got
        assert len(await memory.search("common")) == 5
        with pytest.raises(InvalidParamsError, match=r"\$\.limit: must be above 0"):
            await memory.search("common", limit=0)


async def test_huge_texts(place: Place) -> None:
    """A text of a megabyte is stored whole, found by a word at its end, and does as a query."""
    huge = " ".join(f"word{number % 5_000}" for number in range(110_000)) + " needle"
    async with opened(place) as memory:
        await memory.index([entry(huge), entry("漢字" * 200_000, position=1), entry("z" * 1_000_000, position=2)])
        (hit,) = await memory.search("needle")
        assert hit.content == huge
        assert contents(await memory.search(huge, limit=1)) == [huge]
        assert await memory.search("字漢") != []


async def test_the_better_of_two_words_wins(place: Place) -> None:
    """A rare word counts more than a frequent one, and words side by side more than the same apart."""
    async with opened(place) as memory:
        await memory.index(numbered(20))
        await memory.index(
            entries(["common walrus", "red tall slow car", "slow red tall car", "tall car red slow"], session="b")
        )
        assert contents(await memory.search("common walrus"))[0] == "common walrus"
        assert contents(await memory.search("slow red car"))[0] == "slow red tall car"


@given(texts=st.lists(st.text(max_size=60), min_size=1, max_size=5), query=st.text(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_text_and_no_query_is_too_odd(place: Place, texts: list[str], query: str) -> None:
    """Whatever is stored or asked, a search ends well, and what it returns was stored."""
    async with opened(place) as memory:
        await memory.index(entries(texts), Tail("a", 0))
        for session_id in (None, "a"):
            hits = await memory.search(query, session_id=session_id)
            assert set(contents(hits)) <= set(texts)


@given(words=st.lists(st.from_regex(r"[a-zA-Z_]{1,12}", fullmatch=True), min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_shares_a_word_is_found(place: Place, words: list[str]) -> None:
    """A text is found by each of its words, if that is more than underscores."""
    async with opened(place) as memory:
        await memory.index([entry(" ".join(words))])
        for word in words:
            expected = [" ".join(words)] if word.strip("_") else []
            telling = await memory.search(word)
            assert contents(telling) == expected


FOLDED = [
    ("strasse", "Die Straße ist lang"),
    ("Straße", "DIE STRASSE IST LANG"),
    ("STRASSE", "die GROẞE STRAẞE"),
    ("grosse", "die GROẞE STRAẞE"),
    ("cafe", "im CAFÉ am Platz"),
    ("οδοσ", "η οδός μας"),
    ("ΟΔΟΣ", "η οδός μας"),
]


async def test_a_word_is_found_by_any_spelling_of_its_case(place: Place) -> None:
    """Case and accents make no difference in either store: `strasse` finds `Straße`, and the other way round."""
    for asked, text in FOLDED:
        async with opened(place) as memory:
            await memory.index(entries([text, "something else", "and another thing"]))
            assert [hit.content for hit in await memory.search(asked)][:1] == [text], asked


async def test_the_bag_of_words_folds_case() -> None:
    """It has no accents and stems to take off, but the same case folding."""
    for asked, text in (("strasse", "Straße"), ("STRASSE", "die straße"), ("Straße", "strasse")):
        async with opened(name="bag-of-words") as memory:
            await memory.index(entries(["something else", text]))
            assert (await memory.search(asked))[0].content == text
