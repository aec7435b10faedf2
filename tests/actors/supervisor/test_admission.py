"""The admission of turns: each is admitted or refused at once."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.models import GatedModel, says
from tests.support.runtime import new_session, open_runtime, transcript
from warren.base.errors import (
    AgentError,
    CapacityExceededError,
    InvalidParamsError,
    PersistenceDisabledError,
    SessionBusyError,
    SessionNotFoundError,
)
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
UNKNOWN = "00000000-0000-7000-8000-000000000000"


async def test_a_second_turn_is_refused_at_once(store: Path | None) -> None:
    """Busy is never queued, also while the turn ends; after it the session is free."""
    model = GatedModel()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "a")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SessionBusyError) as caught:
            await service.start_turn(session_id, "b")
        assert caught.value.retryable
        model.gate.set()
        await first.value()
        await service.start_turn(session_id, "c")
        assert len(await transcript(service, session_id)) == 4


async def test_capacity_counts_running_turns_only(store: Path | None) -> None:
    """Idle sessions take no room; past the limit turns are refused, and the room of an ended one is free again."""
    model = GatedModel()
    config = Config(limits=Limits(max_sessions=2))
    async with open_runtime(model, store=store, config=config) as service, trio.open_nursery() as nursery:
        ids = [await new_session(service) for _ in range(5)]
        turns = [ask(nursery, service.start_turn, session_id, "a") for session_id in ids[:2]]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CapacityExceededError):
            await service.start_turn(ids[2], "a")
        with pytest.raises(CapacityExceededError):
            await service.create_session("a")
        with pytest.raises(SessionBusyError):
            await service.start_turn(ids[0], "a")
        assert len((await service.list()).sessions) == 5
        await service.interrupt(ids[0])
        await turns[0].failure(AgentError)
        model.gate.set()
        assert (await service.start_turn(ids[2], "a")).text == "done"


async def test_a_turn_that_cannot_be_planned_leaves_the_session_free(store: Path | None) -> None:
    """An unknown model of one turn is bad input: nothing ran, nothing counts as running."""
    async with open_runtime(says(["hi"]), store=store) as service:
        session_id = await new_session(service)
        with pytest.raises(InvalidParamsError) as caught:
            await service.start_turn(session_id, "hello", provider="nobody")
        assert caught.value.session_id == session_id
        assert service.health().running_turns == 0
        assert (await service.start_turn(session_id, "hello")).text == "hi"


@pytest.mark.parametrize("name", ["start_turn", "interrupt", "read", "history", "archive", "resume", "delete"])
async def test_unknown_ids(store: Path | None, name: str) -> None:
    """An id that nothing is known of is SESSION_NOT_FOUND, or needs a store to be looked for in."""
    async with open_runtime(says(), store=store) as service:
        arguments = (UNKNOWN, "hello") if name == "start_turn" else (UNKNOWN,)
        needs_store = store is None and name in ("resume", "delete")
        with pytest.raises(PersistenceDisabledError if needs_store else SessionNotFoundError):
            await getattr(service, name)(*arguments)
        assert (service.health().running_turns, service.health().live_sessions) == (0, 0)


async def test_subscribing_to_an_unknown_id(store: Path | None) -> None:
    """It is refused on entering."""
    async with open_runtime(says(), store=store) as service:
        with pytest.raises(SessionNotFoundError):
            async with service.subscribe(UNKNOWN):
                pass
