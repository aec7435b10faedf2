"""The texts of several tenants in one memory: each finds its own, as if there were no others."""

import pytest

from tests.storage.memory.samples import Place, SubjectEmbedder, contents, entries, entry, opened
from warren.memory import MemoryHit, Tail
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


async def test_vectors_of_other_tenants_lead_to_no_answer(vector_place: Place) -> None:
    """The nearest vectors are those of others, and the own ones are found behind them."""
    async with opened(vector_place, SubjectEmbedder()) as memory:
        await memory.index(entries(["cat dog"] * 150, session="theirs"), tenant="other")
        await memory.index(entries(["kitten and pet", "engine"], session="mine"), tenant="acme")
        assert contents(await memory.search("cat", tenant="acme"))[:1] == ["kitten and pet"]
        assert set(contents(await memory.search("cat", tenant="other"))) == {"cat dog"}
        assert await memory.search("cat") == []
