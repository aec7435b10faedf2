"""Clients that read slowly: real sockets, the real runtime, thousands of events in its store or memory."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from wsproto.events import TextMessage

from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import new_session, open_runtime
from tests.transport.clients import HOST, Frames, connect, gateway, seqs
from warren.models.model import ModelReply, ModelRequest, Piece, ReasoningPiece, TextPiece

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
@pytest.mark.parametrize("after", [0, 12])
async def test_a_subscription_that_is_moved_before_the_client_reads(
    tmp_path: Path, *, stored: bool, after: int
) -> None:
    """It goes on from its new place, and with all later turns, although a turn of the client's own waits to be read."""
    async with (
        open_runtime(says(*[["done"]] * 4), store=tmp_path if stored else None) as service,
        gateway(service) as port,
    ):
        socket = trio.socket.socket()
        socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await socket.connect((HOST, port))
        client = Frames(trio.SocketStream(socket))
        await client.open()
        session_id, large = await new_session(service), await new_session(service)
        await service.start_turn(session_id, "one")
        await service.start_turn(large, "x" * 900_000)
        for number, (method, params) in enumerate((
            ("session/subscribe", {"session_id": session_id}),
            ("session/history", {"session_id": large}),
            ("turn/start", {"session_id": session_id, "prompt": "two"}),
            ("session/subscribe", {"session_id": session_id, "after_seq": after}),
        )):  # fmt: skip
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            await client.send(TextMessage(json.dumps(request)))
            await trio.sleep(0.3)
        last = (await service.start_turn(session_id, "three")).last_seq
        heard = list[int]()
        with socket, trio.fail_after(10):
            while last not in heard:
                event = await client.next()
                assert isinstance(event, TextMessage)
                message = json.loads(event.data)
                heard += seqs([message["params"]]) if "method" in message else []
    assert [seq for seq in heard if seq > after][-(last - after) :] == list(range(after + 1, last + 1))


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
