"""The model of the simulated world."""

import random
from pathlib import Path

import pytest
import trio

from tests.simulation.servers import TOOLS, Model, marked
from tests.simulation.world import Node, World
from warren.conversation.messages import UserMessage
from warren.models.model import ModelRequest

pytestmark = pytest.mark.virtual_time


async def test_no_two_answers_have_a_call_of_one_id(tmp_path: Path) -> None:
    """Processes that ask for the same step at the same time get calls of their own, which the checks tell apart."""
    ids = list[str]()
    async with trio.open_nursery() as tasks:
        model = Model(Node(World(random.Random(0), tmp_path, tasks), "anna1"))  # noqa: S311 - the seed tells all
        request = ModelRequest("test", [UserMessage(marked("default", 0, 1, "pay"))], [each.spec for each, _ in TOOLS])

        async def ask() -> None:
            reply = await model.complete(request, lambda _piece: None)
            ids.extend(each.id for each in reply.message.tool_calls)

        async with trio.open_nursery() as askers:
            for _ in range(4):
                askers.start_soon(ask)
    assert len(set(ids)) == len(ids) == 4
