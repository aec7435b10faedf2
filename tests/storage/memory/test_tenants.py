"""The texts of several tenants in one memory: each finds its own, as if there were no others."""

import random
from zlib import crc32

import numpy as np
import pytest

from tests.storage.memory.samples import Place, SubjectEmbedder, contents, entries, entry, opened
from warren.conversation.memory import MemoryHit, Tail
from warren.storage.memory_store import MemoryStore

MINE = ["the blue door is locked", "a key hangs by the door", "bread needs flour", "the oven is hot"]
THEIRS = ["the door of the other house", "door door door", "a secret door behind the oven"] * 7
QUERIES = ("door", "the blue door", "oven", "flour and bread", "secret", "house of the key")


async def answers(memory: MemoryStore, tenant: str) -> list[list[MemoryHit]]:
    """Return the hits of all queries, in the tenant and in one of its sessions."""
    return [
        await memory.search(query, tenant=tenant, session_id=session, limit=20)
        for query in QUERIES
        for session in (None, f"of {tenant}", "of nobody")
    ]


async def fill(memory: MemoryStore, tenant: str, texts: list[str]) -> None:
    """Remember texts of a tenant, after others that are replaced or removed again."""
    session = f"of {tenant}"
    await memory.index(entries(["door of an older text", *texts[1:]], session=session), tenant=tenant)
    await memory.index([entry("door to be removed", session=session, position=99)], Tail(session, 90), tenant=tenant)
    (mark,) = [each for each in await memory.unsettled() if each.session_id == session]
    await memory.settle(mark, len(texts))
    await memory.index(entries(texts, session=session), tenant=tenant)


@pytest.mark.parametrize(("tenant", "other"), [("acme", "default"), ("default", "acme"), ("acme", "other")])
async def test_answers_are_those_of_a_memory_of_ones_own(place: Place, tenant: str, other: str) -> None:
    """Texts and scores are the same: words of other tenants count for nothing."""
    async with opened() as alone:
        await fill(alone, tenant, MINE)
        wanted = await answers(alone, tenant)
    assert any(wanted)
    async with opened(place) as memory:
        await fill(memory, other, THEIRS)
        assert not any(await answers(memory, tenant))
        await fill(memory, tenant, MINE)
        assert await answers(memory, tenant) == wanted
        assert not await memory.search("door", tenant=tenant, session_id=f"of {other}")
        await memory.forget(f"of {other}")
        assert await answers(memory, tenant) == wanted
    async with opened(place) as again:
        assert await answers(again, tenant) == wanted


def texts_of(seed: int, count: int, rare: int) -> list[str]:
    """Return texts of words of which some are in most of them; which ones depends on `rare`."""
    source = random.Random(seed)  # noqa: S311 - texts
    words = [
        f"{word}{end}" for word in ("door", "key", "oven", "bread", "house", "cat") for end in ("", "way", "smith")
    ]
    words = words[rare:] + words[:rare]
    weights = [1 / (at + 1) for at in range(len(words))]
    return [" ".join(source.choices(words, weights, k=source.randint(2, 30))) for _ in range(count)]


class WordEmbedder(SubjectEmbedder):
    """A model that tells any two texts apart: where several are as near, a database takes any of them."""

    def vector(self, text: str) -> list[float]:
        """Return a text's vector."""
        found = np.zeros(self.dimensions)
        for word in text.split():
            found += np.random.default_rng(crc32(word.encode())).normal(size=self.dimensions)
        return [float(each) for each in found]


async def check_more_answers_than_candidates(memory: MemoryStore, tenant: str, others: int) -> None:
    """Check that the hits of a tenant with many texts stay the same when another tenant has some, and then more."""
    queries = ("door", "doorway key", "cat", "oven bread house", "key keysmith keyway door doorway", "housesmith")

    async def found() -> list[list[MemoryHit]]:
        places = [(query, session) for query in queries for session in (None, "mine")]
        return [await memory.search(query, tenant=tenant, session_id=session, limit=20) for query, session in places]

    await memory.index(entries(texts_of(1, 1_100, 0), session="mine"), tenant=tenant)
    await memory.index(entries(texts_of(3, others, 9), session="a few"), tenant="other")
    wanted = await found()
    assert all(len(hits) == 20 for hits in wanted)
    await memory.index(entries(texts_of(2, 1_500, 9), session="theirs"), tenant="other")
    assert await found() == wanted


@pytest.mark.parametrize("tenant", ["acme", "default"])
async def test_words_of_others_do_not_decide_which_texts_are_weighed(place: Place, tenant: str) -> None:
    """More texts have words of the query than there are candidates."""
    async with opened(place) as memory:
        await check_more_answers_than_candidates(memory, tenant, others=0)


@pytest.mark.parametrize("tenant", ["acme", "default"])
async def test_vectors_of_others_do_not_decide_which_texts_are_weighed(vector_place: Place, tenant: str) -> None:
    """More texts are near the query than there are candidates."""
    async with opened(vector_place, WordEmbedder(dimensions=8)) as memory:
        await check_more_answers_than_candidates(memory, tenant, others=1)


async def test_vectors_of_other_tenants_lead_to_no_answer(vector_place: Place) -> None:
    """The nearest vectors are those of others, and the own ones are found behind them."""
    async with opened(vector_place, SubjectEmbedder()) as memory:
        await memory.index(entries(["cat dog"] * 150, session="theirs"), tenant="other")
        await memory.index(entries(["kitten and pet", "engine"], session="mine"), tenant="acme")
        assert contents(await memory.search("cat", tenant="acme"))[:1] == ["kitten and pet"]
        assert set(contents(await memory.search("cat", tenant="other"))) == {"cat dog"}
        assert await memory.search("cat") == []
