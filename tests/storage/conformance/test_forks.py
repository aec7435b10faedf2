"""Forks in any home."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.storage.conformance.homes import Home, done
from tests.storage.samples import NOW, entry, moved, turn, updated
from warren.base.errors import InvalidParamsError, SessionNotFoundError
from warren.calls.sessions import ForkRequest
from warren.conversation import codec
from warren.conversation.records import Parent
from warren.conversation.transcript import with_data
from warren.storage.operations import Claim, Claimed, Commit, Fork
from warren.storage.queries import ANY_TENANT, SessionRow, StoredEvents, StoredHistory, StoredMessages

LATER = NOW.replace(year=2027)


def fork(at: int | None = None, source: str = "a") -> Fork:
    """Return the fork `f` of a session."""
    return Fork("f", LATER, ForkRequest(source, at=at, labels={"team": "blue"}))


async def test_a_fork_has_the_beginning_of_its_original(home: Home, tmp_path: Path) -> None:
    """Messages and moves of the head before the cut are there, events are not, and the original is as it was."""
    async with home(tmp_path) as store:
        await store.write([turn("a", labels={"app": "x"}), moved(turn("a", 1), entry(2, 2)), turn("a", 2)])
        record = await done(store, fork(4))
        assert await store.read(SessionRow("f", ANY_TENANT)) == record
        assert (record.parent, record.message_count, record.turns, record.last_seq) == (Parent("a", 4), 4, 0, 0)
        assert record.labels == {"app": "x", "team": "blue"}
        assert (await store.read(StoredMessages("f")))[0] == (await store.read(StoredMessages("a", limit=4)))[0]
        assert (await store.read(StoredHistory("f", "default"))).compactions == [entry(2, 2)]
        assert (await store.read(StoredEvents("f"))).rows == []
        assert (
            await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 2).record
            or (await store.read(StoredMessages("a")))[1] == 6
        )


async def test_a_fork_has_the_data_of_its_newest_answer(home: Home, tmp_path: Path) -> None:
    """Its record and its messages have the data of the answers that it took over, and not that of later ones."""

    def answered(number: int, data: Any) -> Commit:
        commit = updated(turn("a", number), last_structured_output=data)
        prompt, answer = commit.messages
        body = codec.encode_message(with_data(codec.decode_message(answer.body), data))
        return attrs.evolve(commit, messages=(prompt, attrs.evolve(answer, body=body)))

    async with home(tmp_path) as store:
        await store.write([answered(0, {"name": "Ann\0"}), answered(1, [1, None, "é"])])
        record = await store.read(SessionRow("a", ANY_TENANT))
        assert record is not None
        assert record.last_structured_output == [1, None, "é"]
        early = await done(store, fork(2))
        assert early.last_structured_output == {"name": "Ann\0"}
        assert await store.read(SessionRow("f", ANY_TENANT)) == early
        assert (await store.read(StoredMessages("f")))[0] == (await store.read(StoredMessages("a", limit=2)))[0]
        late = await done(store, attrs.evolve(fork(), session_id="g"))
        assert late.last_structured_output == [1, None, "é"]


async def test_both_go_on_by_themselves(home: Home, tmp_path: Path) -> None:
    """A turn of the fork is not the original's; its first lease is free."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("a", 1)])
        record = await done(store, fork(2))
        claimed = await done(store, Claim("f"))
        assert isinstance(claimed, Claimed)
        commit = turn("f", 1)
        changed = record.changed(message_count=4, turns=1, last_seq=6)
        await done(store, Commit(changed, commit.messages, commit.events, lease=claimed.lease))
        assert (await store.read(StoredMessages("f")))[1] == 4
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 1).record


async def test_a_fork_that_cannot_be_is_refused(home: Home, tmp_path: Path) -> None:
    """Past the end and of a session that is not here; nothing is made."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        with pytest.raises(InvalidParamsError):
            await done(store, fork(3))
        with pytest.raises(SessionNotFoundError):
            await done(store, fork(source="x"))
        assert await store.read(SessionRow("f", ANY_TENANT)) is None
