"""Deleted sessions are forgotten, and so are texts that somebody has removed, for good; archived sessions are not."""

from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.compacting import Model, chatty, settings, talk
from tests.support.memories import MemoryFaults, memory_in, recalling_model, remembered
from tests.support.models import Emit
from tests.support.runtime import memory_of, new_session, open_runtime
from warren.actors.calls.service import Service
from warren.actors.resources.memory import indexable
from warren.base.errors import (
    AgentError,
    PermissionDeniedError,
    PersistenceDisabledError,
    SessionNotFoundError,
    StoreError,
)
from warren.base.principals import OWN_SCOPES, Principal
from warren.conversation.memory import MemoryEntry
from warren.conversation.messages import UserMessage
from warren.models.model import ModelReply, ModelRequest

pytestmark = pytest.mark.virtual_time


async def talkative(service: Service) -> str:
    """Return a session that has left something in the memory."""
    session_id = await new_session(service)
    await talk(service, session_id, 6)
    assert await service.search_memory("question", session_id=session_id)
    return session_id


async def found(service: Service, session_id: str) -> bool:
    """Tell whether anything of a session is found, in its own scope or in the project's."""
    own = await service.search_memory("question", session_id=session_id, limit=20)
    everywhere = await service.search_memory("question", scope="project", limit=20)
    return bool(own) or session_id in {hit.session_id for hit in everywhere}


@pytest.mark.parametrize("live", [True, False])
async def test_a_deleted_session_is_forgotten(tmp_path: Path, live: bool) -> None:  # noqa: FBT001
    """Nothing of it is found any more, also not by the next process; another session's memories stay."""
    folder = tmp_path / "memory"
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        gone, stays = await talkative(service), await talkative(service)
        if live:
            await service.delete(gone)
            assert not await found(service, gone)
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        if not live:
            await service.delete(gone)
        assert not await found(service, gone)
        assert await found(service, stays)
    assert {session_id for session_id, _ in remembered(folder)} == {stays}


async def test_an_archived_session_is_remembered(tmp_path: Path) -> None:
    """The texts of an archived session are found as before."""
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(None)) as service:
        session_id = await talkative(service)
        await service.archive(session_id)
        assert await found(service, session_id)


async def test_deleting_twice_forgets_what_was_left(tmp_path: Path) -> None:
    """If the memory refused the first time nothing claims that it forgot; the second delete forgets."""
    faults = MemoryFaults(refuse_forget=StoreError("locked", cause="locked"))
    async with open_runtime(
        recalling_model(), store=tmp_path, config=settings(), memory=memory_in(None, faults)
    ) as service:
        session_id = await talkative(service)
        with pytest.raises(StoreError, match="locked"):
            await service.delete(session_id)
        assert await found(service, session_id)
        faults.refuse_forget = None
        await service.delete(session_id)
        assert not await found(service, session_id)
        await service.delete(session_id)
        with pytest.raises(SessionNotFoundError):
            await service.start_turn(session_id, "are you there?")


async def test_a_process_that_ended_between_store_and_memory(tmp_path: Path) -> None:
    """A session that was deleted without a memory is forgotten by the next runtime that has it."""
    folder = tmp_path / "memory"
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        session_id = await talkative(service)
    async with open_runtime(recalling_model(), store=tmp_path) as service:
        await service.delete(session_id)
    async with open_runtime(recalling_model(), store=tmp_path, memory=memory_in(folder)) as service:
        assert not await found(service, session_id)


async def test_a_damaged_session_is_forgotten(tmp_path: Path) -> None:
    """A session that cannot be loaded any more can be deleted, and its memories go with it."""
    folder = tmp_path / "memory"
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        session_id = await talkative(service)
    damage(tmp_path, session_id)
    async with open_runtime(recalling_model(), store=tmp_path, memory=memory_in(folder)) as service:
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go on")
        await service.delete(session_id)
        assert not await found(service, session_id)


def damage(folder: Path, session_id: str) -> None:
    """Put something into the session's row that is no JSON."""
    (file,) = folder.glob("*.sqlite3")
    db = apsw.Connection(str(file))
    db.execute("UPDATE sessions SET details = 'no JSON' WHERE session_id = ?", (session_id,))
    assert db.changes() == 1
    db.close()


async def test_nothing_is_taken_in_after_the_delete(tmp_path: Path) -> None:
    """Messages that come to the memory after their session was deleted are refused and not stored."""
    folder = tmp_path / "memory"
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        session_id = await talkative(service)
        memory = memory_of(service)
        await service.delete(session_id)
        with pytest.raises(SessionNotFoundError):
            await memory.remember(session_id, 100, [UserMessage("a late question")])
        assert not await found(service, session_id)
    assert not remembered(folder)


async def test_a_delete_amid_a_compaction(tmp_path: Path) -> None:
    """A text on its way into the memory when the session is deleted is forgotten as well."""
    folder, faults = tmp_path / "memory", MemoryFaults(gate=trio.Event())
    async with (
        open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder, faults)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(service.delete, session_id)
        await turn.failure(AgentError)
        assert faults.gate is not None
        faults.gate.set()
    assert faults.fresh[0] > 0
    assert not remembered(folder)


async def test_without_a_store_nothing_is_deleted() -> None:
    """Delete says that nothing is stored, and the memory keeps what it has."""
    async with open_runtime(recalling_model(), config=settings(), memory=memory_in(None)) as service:
        session_id = await talkative(service)
        with pytest.raises(PersistenceDisabledError):
            await service.delete(session_id)
        assert await found(service, session_id)


async def test_forgotten_texts_stay_forgotten(tmp_path: Path) -> None:
    """They are found by no search and no model, and count no more; later messages are remembered. The audit says who.

    The next process, whose compaction takes the same messages in once more, does not bring them back.
    """
    folder = tmp_path / "memory"
    ann = Principal("default", "ann", frozenset({"session:admin", "memory:read"}))
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        session_id, other = await talkative(service), await talkative(service)
        memory = memory_of(service)
        before = await memory.texts("default")
        (first, *_) = await service.search_memory("question 0", session_id=session_id, limit=1)
        assert await service.as_(ann).forget_memory(session_id, text_id=first.text_id) == 1
        assert first not in await service.search_memory("question 0", session_id=session_id, limit=20)
        rest = await service.as_(ann).forget_memory(session_id)
        assert await memory.texts("default") == before - 1 - rest
        assert not await found(service, session_id)
        assert await found(service, other)
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(folder)) as service:
        page = await service.history(session_id, limit=1 + rest)
        with pytest.raises(StoreError, match="further"):
            await memory_of(service).remember(session_id, 0, [entry.message for entry in page.messages])
        entries = [
            MemoryEntry(session_id, each.position, 1, indexable(each.message), each.created_at)
            for each in page.messages
        ]
        assert await memory_of(service).add(entries) == 0
        await memory_of(service).rebuild()
        assert not await found(service, session_id)
        await talk(service, session_id, 6)
        assert await found(service, session_id)
        noted = [entry for entry in (await service.audit()).entries if entry.action == "forget"]
        assert [(entry.who, entry.session_id, dict(entry.details)) for entry in noted] == [
            ("ann", session_id, {"text_id": first.text_id}),
            ("ann", session_id, {}),
        ]


async def test_a_steered_prompt_is_of_the_turn_that_it_entered(tmp_path: Path) -> None:
    """The texts of a turn are found and forgotten by its number, whatever was steered into those before it."""

    async def slow(request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.sleep(10)
        return await chatty(request, emit)

    folder = tmp_path / "memory"
    async with (
        open_runtime(Model(slow), store=tmp_path, config=settings(), memory=memory_in(folder)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "an apple")
        await trio.sleep(1)
        ask(nursery, service.start_turn, session_id, "a banana", mode="steer")
        await trio.sleep(60)
        await service.start_turn(session_id, "a cherry")
        await talk(service, session_id, 6)
        turns = {}
        for fruit in ("apple", "banana", "cherry"):
            (hit, *_) = await service.search_memory(fruit, session_id=session_id, limit=1)
            turns[fruit] = hit.turn
        assert turns == {"apple": 1, "banana": 1, "cherry": 2}
        await service.forget_memory(session_id, turn=2)
        assert "cherry" not in repr(await service.search_memory("cherry", session_id=session_id, limit=20))
        assert "banana" in repr(await service.search_memory("banana", session_id=session_id, limit=1))


async def test_only_who_may_delete_may_forget(tmp_path: Path) -> None:
    """A writer is refused and noted; a session of another tenant is not found, and keeps its texts."""
    writer = Principal("default", "bob", OWN_SCOPES - {"session:admin"})
    async with open_runtime(recalling_model(), store=tmp_path, config=settings(), memory=memory_in(None)) as service:
        session_id = await talkative(service)
        with pytest.raises(PermissionDeniedError, match="session:admin"):
            await service.as_(writer).forget_memory(session_id)
        with pytest.raises(SessionNotFoundError):
            await service.as_(Principal("acme", "ann")).forget_memory(session_id)
        assert await found(service, session_id)
        assert await service.forget_memory(await new_session(service)) == 0
        noted = [entry for entry in (await service.audit()).entries if entry.action == "forget"]
        assert [(entry.who, entry.outcome) for entry in noted] == [("bob", "refused"), ("local", "done")]
