"""The seam of a turn: its wrappers surround a call in their order, and a refusal keeps the call from being made."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest
import trio

from warren.actors.turn.seam import surrounded
from warren.errors import AgentError

pytestmark = pytest.mark.virtual_time
R = TypeVar("R")


class Around:
    """A wrapper that notes when it begins and ends."""

    def __init__(self, notes: list[str], name: str) -> None:
        self.notes = notes
        self.name = name

    async def __call__(self, proceed: Callable[[], Awaitable[R]]) -> R:
        self.notes.append(f"{self.name} begins")
        try:
            return await proceed()
        finally:
            self.notes.append(f"{self.name} ends")


async def call(notes: list[str]) -> int:
    """Note that the call was made."""
    await trio.lowlevel.checkpoint()
    notes.append("called")
    return 7


async def test_wrappers_surround_in_their_order() -> None:
    """The first wrapper is the outermost; without any the call is made alone."""
    notes: list[str] = []
    wrappers = Around(notes, "one"), Around(notes, "two")
    assert await surrounded(wrappers, partial(call, notes)) == 7
    assert notes == ["one begins", "two begins", "called", "two ends", "one ends"]
    notes.clear()
    assert await surrounded((), partial(call, notes)) == 7
    assert notes == ["called"]


async def test_a_wrapper_that_raises_keeps_the_call_from_being_made() -> None:
    """The wrappers around it end, and those within it do not begin."""
    notes: list[str] = []

    async def refuse(_proceed: Callable[[], Awaitable[R]]) -> R:
        await trio.lowlevel.checkpoint()
        raise AgentError("not today", cause="cancelled")

    with pytest.raises(AgentError, match="not today"):
        await surrounded((Around(notes, "one"), refuse, Around(notes, "two")), partial(call, notes))
    assert notes == ["one begins", "one ends"]
