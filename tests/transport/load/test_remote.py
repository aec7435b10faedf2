"""A gateway as a target: connections that are cut, and events that should not come."""

import json
from pathlib import Path
from typing import Any, Final

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from tests.support.waiting import until
from tests.transport.clients import HOST, gateway
from tests.transport.gateway.serving import runtime
from warren.client import connect
from warren.transport.load.address import address_of
from warren.transport.load.plan import LoadPlan, Mix
from warren.transport.load.remote import remote_target
from warren.transport.load.run import run_load
from warren.transport.load.target import Seen

PLAN: Final = LoadPlan(sessions=1, turns=1)
NORMAL: Final = 1000
ABNORMAL: Final = 1006
MINE: Final = "session-1"
RESULTS: Final = {
    "initialize": {
        "server_info": {"name": "warren", "version": "1"},
        "protocol": "2.0",
        "methods": [],
        "capabilities": {"session_store": False, "session_compaction": False, "memory_store": False},
    },
    "session/create": {
        "text": "",
        "session_id": MINE,
        "usage": {"input_tokens": 0, "output_tokens": 0},
        "turns": 0,
        "tool_calls": 0,
    },
    "session/subscribe": {"subscribed": True, "after_seq": 0},
}


def event(session_id: str, seq: int) -> dict[str, Any]:
    """Return the message of an event."""
    params = {
        "session_id": session_id,
        "seq": seq,
        "timestamp": "2026-01-01T00:00:00Z",
        "event": {"type": "run_started", "session_id": session_id, "prompt": "hi"},
    }
    return {"jsonrpc": "2.0", "method": "session/event", "params": params}


async def answering(request: WebSocketRequest) -> int:
    """Tell whoever subscribes of its session, and of another one; return the code of the connection's end."""
    socket = await request.accept()
    try:
        while True:
            asked = json.loads(await socket.get_message())
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": RESULTS[asked["method"]]}
            await socket.send_message(json.dumps(answer))
            if asked["method"] == "session/subscribe":
                for session_id in (MINE, "session-2"):
                    await socket.send_message(json.dumps(event(session_id, 1)))
    except ConnectionClosed as exc:
        return int(exc.reason.code) if exc.reason is not None else ABNORMAL


async def leaking(request: WebSocketRequest) -> None:
    """Do so until the client leaves."""
    await answering(request)


async def test_an_event_of_another_session_is_seen() -> None:
    """The client has no use for it, and the check does: it is the session of somebody else."""
    seen = list[Seen]()
    async with trio.open_nursery() as tasks:
        server = await tasks.start(serve_websocket, leaking, HOST, 0, None)
        async with (
            remote_target(PLAN, address_of(f"{HOST}:{server.port}")) as target,
            target.line(seen.append) as line,
        ):
            assert await line.create(None) == MINE
            await until(lambda: len(seen) == 2)
        tasks.cancel_scope.cancel()
    assert [(each.session_id, each.seq, each.kind) for each in seen] == [
        (MINE, 1, "run_started"),
        ("session-2", 1, "run_started"),
    ]


async def test_a_client_that_leaves_says_nothing() -> None:
    """Its connection is cut, as by a network that fails, and is no proper end for the gateway."""
    ends = list[int]()

    async def watched(request: WebSocketRequest) -> None:
        ends.append(await answering(request))

    async with trio.open_nursery() as tasks:
        server = await tasks.start(serve_websocket, watched, HOST, 0, None)
        async with remote_target(PLAN, address_of(f"{HOST}:{server.port}")) as target:
            async with target.line(lambda _seen: None) as line:
                await line.create(None)
            async with connect(f"{HOST}:{server.port}"):
                pass
            await until(lambda: len(ends) == 2)
        tasks.cancel_scope.cancel()
    assert ends == [ABNORMAL, NORMAL]


async def test_colliding_turns_have_their_events_in_order(tmp_path: Path) -> None:
    """Every turn meets a second one, which is refused, or runs behind it."""
    plan = LoadPlan(sessions=10, turns=10, model="echo", prompt_min=10, prompt_max=20, mix=Mix(busy=1.0))
    async with (
        runtime(tmp_path) as service,
        gateway(service) as port,
        remote_target(plan, address_of(f"{HOST}:{port}")) as target,
    ):
        result = await run_load(plan, target)
    assert (result.violations, result.errors) == ((), {})
    assert result.figures["turns"] == 100
