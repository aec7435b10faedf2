"""Clients that read slowly: real sockets, the real runtime, thousands of events in its store or memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.models import FunctionModel, reply
from tests.support.runtime import new_session, open_runtime
from tests.transport.clients import connect, gateway, seqs
from warren.model import ModelReply, ModelRequest, Piece, ReasoningPiece, TextPiece

PIECES = 750
"""Twice as many events of a turn: text and reasoning take turns, so that no two of them can be merged."""


def _talk() -> FunctionModel:
    async def answer(_request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        for number in range(PIECES):
            emit(TextPiece(f"{number} "))
            emit(ReasoningPiece("why? "))
        return reply("done")

    return FunctionModel(answer)


async def test_a_slow_client_that_catches_up_gets_every_stored_event(tmp_path: Path) -> None:
    """A subscription brings thousands of stored events to a client for whom only a few may wait at once."""
    async with open_runtime(_talk(), store=tmp_path) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        async with gateway(service, outbox_events=10) as port, connect(port) as client:
            await client.call("session/subscribe", session_id=session_id, after_seq=0)
            last = await client.until("run_completed")
            assert last["seq"] > 2 * PIECES
            assert seqs(client.events(session_id)) == list(range(1, last["seq"] + 1))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_slow_client_gets_every_event_of_its_own_turn(
    tmp_path: Path, *, stored: bool, subscribed: bool
) -> None:
    """A turn that tells more at once than may wait for its client is told whole, before its result."""
    async with open_runtime(_talk(), store=tmp_path if stored else None) as service:
        session_id = await new_session(service)
        async with gateway(service, outbox_events=10) as port, connect(port) as client:
            if subscribed:
                await client.call("session/subscribe", session_id=session_id)
            for turn in (1, 2):
                await client.call("turn/start", session_id=session_id, prompt="go")
                assert client.events(session_id)[-1]["event"]["type"] == "run_completed"
                last = client.events(session_id)[-1]["seq"]
                assert last > turn * 2 * PIECES
                assert seqs(client.events(session_id)) == list(range(1, last + 1))
