"""Texts that somebody had removed are found no more, and do not come back."""

from datetime import UTC, datetime

import pytest

from tests.storage.memory.samples import Place, SubjectEmbedder, contents, entry, opened
from warren.base.errors import SessionNotFoundError
from warren.base.principals import DEFAULT_TENANT
from warren.conversation.memory import CONVERSATION_END, Chosen, ScoreParts, Tail

TALK = [
    entry("my code is oats", position=0, turn=1),
    entry("I will keep the oats", position=1, turn=1),
    entry("a pet eats oats", position=2, turn=2),
    entry("oats grow here", position=3, turn=3),
]


@pytest.mark.parametrize(
    ("chosen", "left"),
    [({"position": 2}, [0, 1, 3]), ({"turn": 1}, [2, 3]), ({"turn": 2, "position": 0}, [0, 1, 2, 3]), ({}, [])],
)
async def test_what_is_forgotten_does_not_come_back(place: Place, chosen: dict[str, int], left: list[int]) -> None:
    """One text, a turn or a session: neither the same input nor a rebuild brings it back, also not after a restart."""
    wanted = Chosen("a", DEFAULT_TENANT, **chosen)
    async with opened(place) as memory:
        await memory.index(TALK)
        await memory.index([entry("oats of another session", session="b")])
        assert await memory.forget_texts(wanted) == len(TALK) - len(left)
        assert await memory.forget_texts(wanted) == 0
    async with opened(place) as memory:
        await memory.rebuild()
        assert await memory.index(TALK) == 0
        assert await memory.index(TALK, Tail("a", 0)) == 0
        found = await memory.search("oats", session_id="a", limit=9)
        assert sorted(int(hit.text_id) for hit in found) == left
        assert len(await memory.search("oats", limit=9)) == len(left) + 1
        assert (await memory.texts(DEFAULT_TENANT), (await memory.stats()).entries) == (len(left) + 1, len(left) + 1)
        assert await memory.last_before("a", 9) == (3, 3)
        assert await memory.index([entry("more oats", position=4, turn=4)]) == 1


async def test_sessions_of_others_are_not_found(place: Place) -> None:
    """A session of another tenant, a deleted one and an unknown one answer alike, and keep what they have."""
    async with opened(place) as memory:
        await memory.index([entry("theirs", session="theirs")], tenant="acme")
        await memory.index([entry("gone", session="gone")])
        await memory.forget("gone")
        for session_id in ("theirs", "gone", "nobody"):
            assert await memory.forget_texts(Chosen(session_id, DEFAULT_TENANT)) is None
        assert contents(await memory.search("theirs", tenant="acme")) == ["theirs"]
        assert await memory.forget_texts(Chosen("theirs", "acme")) == 1
        with pytest.raises(SessionNotFoundError):
            await memory.index([entry("gone", session="gone")])


async def test_a_place_that_was_never_committed_is_free_again(place: Place) -> None:
    """A tail with fewer messages, and the end of its check, free the places of later ones; those of others stay."""
    by_hand = entry("oats by hand", position=CONVERSATION_END + 7, turn=0)
    async with opened(place) as memory:
        await memory.index([*TALK, by_hand])
        assert await memory.forget_texts(Chosen("a", DEFAULT_TENANT)) == 5
        await memory.index(TALK[:2], Tail("a", 1))
        assert await memory.index(TALK) == 2
        assert await memory.forget_texts(Chosen("a", DEFAULT_TENANT, turn=3)) == 1
        (mark,) = await memory.unsettled()
        assert mark.since <= datetime.now(UTC)
        assert await memory.settle(mark, 3) == 0
        assert await memory.index([*TALK, by_hand]) == 1
        assert {hit.text_id for hit in await memory.search("oats", limit=9)} == {"2", "3"}


async def test_the_parts_of_a_score(vector_place: Place) -> None:
    """The score is made of the parts and of nothing else; without a vector the words alone make it."""
    async with opened(vector_place, SubjectEmbedder(), name="subjects") as memory:
        await memory.index([entry("the cat sleeps"), entry("my kitten", position=1), entry("an engine", position=2)])
        by_place = {int(hit.text_id): hit for hit in await memory.search("the cat")}
    assert by_place.keys() >= {0, 1}
    for hit in by_place.values():
        parts = hit.parts
        assert parts.likeness is not None
        relevance = (1 - parts.share) * parts.words + parts.share * parts.likeness
        assert hit.score == pytest.approx((1 + min(1.0, relevance)) / 2, abs=1e-5)
    assert by_place[0].parts.words > by_place[1].parts.words == 0.0
    async with opened() as memory:
        await memory.index([entry("the cat sleeps")])
        (hit,) = await memory.search("the cat")
        assert hit.parts == ScoreParts(hit.parts.words, None, 0.0)
        assert hit.score == pytest.approx((1 + min(1.0, hit.parts.words)) / 2, abs=1e-5)
