"""A runtime whose database server goes away: turns wait or fail, and go on by themselves when it is back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.promises.processes import soon
from tests.support.postgres import database
from tests.support.postgres_proxy import Wire, wire_to
from warren.config import Config, PostgresConfig
from warren.errors import WarrenError
from warren.messages import UserMessage
from warren.service import RuntimeService
from warren.transport.embed import open_supervisor


@asynccontextmanager
async def opened(patience: float) -> AsyncIterator[tuple[RuntimeService, Wire]]:
    """Open a runtime whose store is at the other end of a wire."""
    with database() as url:
        async with wire_to(url) as wire:
            config = Config(store=PostgresConfig(wire.url, timeout=patience, lease=60.0))
            async with open_supervisor(config, environ={}) as service:
                yield service, wire
                wire.closed = False


async def prompts(service: RuntimeService, session_id: str) -> list[str]:
    """Return the prompts that are stored, in order."""
    page = await service.history(session_id)
    return [each.message.content for each in page.messages if isinstance(each.message, UserMessage)]


async def test_a_short_absence_is_not_noticed() -> None:
    """Turns that end meanwhile wait, and are stored once."""
    async with opened(30.0) as (service, wire):
        ids = [(await service.create_session("0")).session_id for _ in range(3)]
        for number in range(1, 5):
            wire.closed = True
            wire.cut()
            async with trio.open_nursery() as nursery:
                for session_id in ids:
                    nursery.start_soon(service.start_turn, session_id, str(number))
                await trio.sleep(0.2)
                wire.closed = False
        for session_id in ids:
            assert await prompts(service, session_id) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("swallowed", [False, True])
async def test_a_long_absence_fails_turns_and_ends_nothing(swallowed: bool) -> None:  # noqa: FBT001 - see above
    """Each turn gets an error that may be retried; when the server is back, sessions go on without a restart."""
    async with opened(0.3) as (service, wire):
        session_id = (await service.create_session("0")).session_id
        for number in range(1, 8):
            if swallowed:  # the commit arrives, and its answer is lost
                wire.fail_way, wire.carried, wire.fail_at = "down", 0, 1
            else:
                wire.closed = True
                wire.cut()
            with pytest.raises(WarrenError) as failed:
                await service.start_turn(session_id, str(number))
            assert failed.value.retryable or failed.value.cause == "outcome_unknown", failed.value.body()
            wire.closed, wire.fail_at = False, None
            await soon(lambda: service.start_turn(session_id, f"{number} again"))  # noqa: B023 - it is called at once
        said = await prompts(service, session_id)
        assert len(set(said)) == len(said), "a turn is there twice"
        assert [each for each in said if "again" in each] == [f"{number} again" for number in range(1, 8)]
        if not swallowed:
            assert len(said) == 8, "a turn that failed is there"
        assert service.health().status == "ok"
