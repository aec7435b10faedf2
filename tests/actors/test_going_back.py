"""Sessions of a store that goes back under a runtime: callers are told, keys run again, the memory follows."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.compacting import settings, talk
from tests.support.memories import memory_in, recalling_model, remembered, said_before_head
from tests.support.models import GatedModel
from tests.support.runtime import new_session, open_runtime, storage_of
from warren.base.errors import StoreError, WarrenError
from warren.calls.facade import SessionService
from warren.conversation.views import TurnResult
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import back_up

pytestmark = pytest.mark.virtual_time


def replaced(backup: Path, store: Path) -> None:
    """Put a backup in the place of the file of a store."""
    shutil.copy(backup, store / "new")
    (store / "new").rename(store / "sessions.sqlite3")


async def noticed(service: SessionService, session_id: str) -> None:
    """Return once the runtime has noticed it: a turn was refused."""
    with pytest.raises(StoreError) as refused:
        await service.start_turn(session_id, "lost")
    assert (refused.value.cause, refused.value.retryable) == ("lease_lost", True)
    assert storage_of(service).went_back_at is not None


async def test_a_key_whose_result_is_gone_runs_again(tmp_path: Path) -> None:
    """One whose result is in the backup has that result; an input number that is given again is another input."""
    store, backup = tmp_path / "store", tmp_path / "backup.sqlite3"
    async with open_runtime(store=store) as service:
        session_id = await new_session(service)
        turn = partial(service.start_turn, session_id, mode="queue")
        kept = await turn("one", idempotency_key="one")
        back_up(StoreConfig(store), backup)
        gone = await turn("two", idempotency_key="two")
        replaced(backup, store)
        await noticed(service, session_id)
        other = await turn("three", idempotency_key="three")
        again = await turn("two", idempotency_key="two")
        assert (other.text, again.text, again.last_seq != gone.last_seq) == ("three", gone.text, True)
        assert await turn("one", idempotency_key="one") == kept
        page = await service.history(session_id)
        assert [each.position for each in page.messages] == list(range(page.total))
        assert page.total == 6


async def test_callers_that_wait_are_told(tmp_path: Path) -> None:
    """A running turn, prompts that wait with a key, and an interrupt: each gets an answer that may be retried."""
    store, backup, model = tmp_path / "store", tmp_path / "backup.sqlite3", GatedModel()
    async with open_runtime(model, store=store) as service:
        session_id, other = await new_session(service), await new_session(service)
        back_up(StoreConfig(store), backup)
        answers: list[TurnResult | WarrenError] = []

        async def ask(text: str) -> None:
            try:
                answers.append(await service.start_turn(session_id, text, mode="queue", idempotency_key=text))
            except WarrenError as exc:
                answers.append(exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "runs")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, "waits")
            await trio.testing.wait_all_tasks_blocked()
            replaced(backup, store)
            with pytest.raises(WarrenError):
                await service.archive(other)
            with trio.fail_after(5):
                while len(answers) < 2:  # noqa: ASYNC110 - answers have no event
                    await trio.sleep(0.01)
        causes = [each.cause if isinstance(each, StoreError) else each for each in answers]
        assert causes == ["lease_lost", "lease_lost"]
        assert all(each.retryable for each in answers if isinstance(each, StoreError))
        model.gate.set()
        assert (await service.start_turn(session_id, "waits", mode="queue", idempotency_key="waits")).text


async def test_the_memory_forgets_what_the_store_has_lost(tmp_path: Path) -> None:
    """It has the texts before the head of now, and none of the part that is gone; the next compaction adds its own."""
    store, backup, memory = tmp_path / "store", tmp_path / "backup.sqlite3", tmp_path / "memory"
    async with open_runtime(recalling_model(), store=store, config=settings(), memory=memory_in(memory)) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 12)
        back_up(StoreConfig(store), backup)
        before = remembered(memory)
        await talk(service, session_id, 12)
        assert len(remembered(memory)) > len(before) > 0
        replaced(backup, store)
        await noticed(service, session_id)
        await service.start_turn(session_id, "a new beginning")
        assert remembered(memory) == await said_before_head(service, session_id)


async def test_a_read_drops_what_is_gone(tmp_path: Path) -> None:
    """Nobody writes: the next request that reads the store drops the session as it is in memory first."""
    store, backup = tmp_path / "store", tmp_path / "backup.sqlite3"
    async with open_runtime(store=store) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "kept")
        back_up(StoreConfig(store), backup)
        await service.start_turn(session_id, "gone")
        replaced(backup, store)
        with pytest.raises(StoreError) as refused:
            await service.history(session_id)
        assert (refused.value.cause, refused.value.retryable) == ("lease_lost", True)
        assert (await service.history(session_id)).total == 2
        assert (await service.read(session_id)).state.message_count == 2
