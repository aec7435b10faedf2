"""Waits for inputs of sessions, for conditions, and the bound for waits in real time."""

import time
from collections.abc import Callable
from typing import Final

import trio

from tests.support.crashing import actor_of
from warren.actors.calls.service import Service
from warren.calls.facade import SessionService

AT_ONCE: Final = 20.0
"""Seconds that an effect may take on a busy machine that has none to wait for. The product's own limits are longer."""


async def until(holds: Callable[[], object]) -> None:
    """Return once a condition holds that has no event: another process, a thread or a file brings it about."""
    while not holds():  # noqa: ASYNC110 - see above
        await trio.sleep(0.005)


def wait_until(holds: Callable[[], object], limit: float = 30.0) -> None:
    """Do the same outside of trio, and fail if the condition does not hold within so many seconds."""
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, f"it did not come about within {limit:g} s"
        time.sleep(0.005)


async def inbox_has(service: SessionService, session_id: str, count: int) -> None:
    """Return once so many inputs wait, and the session's actor knows of them: the store has them a moment earlier."""
    assert isinstance(service, Service)
    while not (len(await service.inputs(session_id)) == count == _known(service, session_id)):  # noqa: ASYNC110 - an inbox has no event
        await trio.sleep(0.001)


async def turn_awaited(service: SessionService, session_id: str) -> None:
    """Return once somebody waits for the end of a session's turn."""
    assert isinstance(service, Service)
    await until(lambda: (actor := actor_of(service, session_id)) is not None and actor.conversation.inbox.awaiting)


def _known(service: Service, session_id: str) -> int:
    found = service.session_statistics(session_id)
    return 0 if found is None else found.waiting_inputs
