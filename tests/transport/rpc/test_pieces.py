"""The pieces in which a turn leaves: each is a system call here and a wake of the client there."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.transport.gateway.serving import runtime
from tests.transport.rpc.endpoints import Line
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.transport.rpc.dialect import Native
from warren.transport.rpc.endpoint import Endpoint, EndpointBounds
from warren.transport.rpc.methods import Host
from warren.transport.rpc.session_client import serve_client

WHOLE = ("run_started", "turn_started", "text_delta", "text_complete", "turn_completed", "run_completed", "reply")
STREAMED = (("run_started", "turn_started"), ("text_delta",), WHOLE[3:])


@attrs.define(eq=False)
class _Pieces(Line):
    """A channel that keeps what is sent in one piece together."""

    replied: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, frames: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(tuple(map(_kind, map(json.loads, frames))))
        if self.sent[-1][-1] == "reply":
            self.replied.set()


def _kind(message: Any) -> str:
    return str(message["params"]["event"]["type"]) if isinstance(message, dict) and "method" in message else "reply"


async def passes(count: int) -> None:
    """Let the event loop pass so often."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("steps", "expected"), [(0, (WHOLE,)), (10, STREAMED)])
async def test_a_turn_leaves_in_one_piece_unless_it_streams(
    tmp_path: Path,
    stored: bool,  # noqa: FBT001
    steps: int,
    expected: Sequence[Sequence[str]],
) -> None:
    """Events that come just before the turn is stored leave with the reply; earlier ones leave at once."""

    async def answer(_request: ModelRequest, emit: Emit) -> ModelReply:
        await passes(steps or 1)
        emit(TextPiece("a"))
        await passes(steps)
        return reply("a")

    line = _Pieces()
    async with runtime(tmp_path if stored else None, fixed=FunctionModel(answer)) as service:
        session_id = (await service.create_session(None, model="fixed")).session_id
        endpoint = Endpoint(line, EndpointBounds(max_in_flight=8))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_client, endpoint, Host(service), Native(), 8)
            line.call(1, "turn/start", session_id=session_id, prompt="go")
            await line.replied.wait()
            line.hang_up()
    assert tuple(line.sent) == tuple(expected)


async def test_the_events_of_a_turn_in_a_batch_do_not_wait_for_its_other_replies(tmp_path: Path) -> None:
    """The replies of a batch leave together, behind the last of them; events leave with their turn."""
    waiting = trio.Event()

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        if "wait" in str(request.messages[-1]):
            await waiting.wait()
        return reply("a")

    line = _Pieces()
    async with runtime(tmp_path, fixed=FunctionModel(answer)) as service:
        ids = [(await service.create_session(None, model="fixed")).session_id for _ in range(2)]
        endpoint = Endpoint(line, EndpointBounds(max_in_flight=8, max_batch=8))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_client, endpoint, Host(service), Native(), 8)
            turns = [
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "method": "turn/start",
                    "params": {"session_id": each, "prompt": prompt},
                }
                for number, (each, prompt) in enumerate(zip(ids, ("go", "wait"), strict=True))
            ]
            line.say(json.dumps(turns).encode())
            with trio.fail_after(5):
                while "run_completed" not in _kinds(line):
                    await passes(1)
            assert "reply" not in _kinds(line)
            waiting.set()
            await line.replied.wait()
            line.hang_up()
    assert _kinds(line)[-1] == "reply"


def _kinds(line: _Pieces) -> list[str]:
    return [kind for piece in line.sent for kind in piece]
