"""Two releases on one store: a node of another release that says more than this one knows, and less."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import wsproto
from wsproto.events import AcceptConnection, Event, Request, TextMessage

from tests.transport.clients import HOST
from tests.transport.cluster.nodes import node, shared_store
from warren.base.errors import InvalidParamsError
from warren.base.nodes import Node
from warren.calls.facade import Capabilities
from warren.conversation.events import Envelope, RunStarted, TextDelta, UnknownEvent
from warren.storage.queries import LivingNodes
from warren.transport.access.auth import NODE_PROOF
from warren.transport.client.service import RemoteService
from warren.transport.cluster.peers import Peers
from warren.transport.cluster.token import NodeTokens
from warren.transport.rpc import jsonrpc

SESSION: Final = "01a20959-0000-7000-8000-000000000000"
SECRET: Final = b"s" * 32
LEASE: Final = 12.0
TIME: Final = "2026-01-01T00:00:00Z"
STATE: Final = {
    "session_id": SESSION,
    "created_at": TIME,
    "updated_at": TIME,
    "message_count": 2,
    "is_active": False,
    "last_assistant_text": "hi",
    "lifecycle": "live",
    "labels": {},
    "model": "echo",
    "mood": {"of": "a later release"},
}
RESULTS: Final[dict[str, Any]] = {
    "session/read": {"state": STATE, "billing": {"total_tokens": 3, "usage": {}, "euros": 1}, "mood": None},
    "session/subscribe": {"subscribed": True, "after_seq": 0, "newest": 3},
    "turn/start": {"session_id": SESSION, "text": "hi", "mood": "good"},
}
EVENTS: Final = [
    {"type": "run_started", "session_id": SESSION, "prompt": "hi", "mood": 1},
    {"type": "mood_changed", "to": "good"},
    {"type": "text_delta", "delta": "hi", "mood": [1]},
]


def frames(method: str, number: int) -> list[bytes]:
    """Return what the node of a later release answers: more fields, an event of another type, and no optional field."""
    events = [
        jsonrpc.notification(
            "session/event",
            {"session_id": SESSION, "seq": seq, "timestamp": TIME, "event": event, "mood": "good"},
        )
        for seq, event in enumerate(EVENTS, 1)
    ]
    answer = jsonrpc.result(number, RESULTS[method])
    return {"turn/start": [*events, answer], "session/subscribe": [answer, *events]}.get(method, [answer])


@asynccontextmanager
async def later_release() -> AsyncIterator[RemoteService]:
    """Yield the client of a node of a later release."""
    tokens = NodeTokens(SECRET, 2, "later", versions=(1, 7))

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
            async for data in stream:
                server.receive_data(bytes(data))
                for event in server.events():
                    for answer in answers(event):
                        await stream.send_all(server.send(answer))

    def answers(event: Event) -> list[Event]:
        if isinstance(event, Request):
            token = dict(event.extra_headers)[b"authorization"].decode().removeprefix("Bearer ")
            return [AcceptConnection(extra_headers=[(NODE_PROOF.encode(), tokens.proof(token).encode())])]
        if isinstance(event, TextMessage):
            asked = json.loads(event.data)
            return [TextMessage(each.decode()) for each in frames(asked["method"], asked["id"])]
        return []

    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        found = Node(2, "later", f"ws://{HOST}:{port}", "9.9", datetime.now(UTC))
        capabilities = Capabilities(session_store=True, session_compaction=False, memory_store=False)
        yield Peers(NodeTokens(SECRET, 1, "here"), capabilities, tasks, LEASE).service(found)
        tasks.cancel_scope.cancel()


def known(envelopes: list[Envelope]) -> list[Any]:
    """Return the events, as far as this release knows them."""
    return [each.event for each in envelopes]


async def test_what_a_later_release_says_in_addition_is_ignored() -> None:
    """Answers have their known fields, and events of an unknown type are passed on as they are."""
    heard = list[Envelope]()
    async with later_release() as remote:
        assert (await remote.read(SESSION)).state.title is None
        result = await remote.start_turn(SESSION, "hi", on_event=heard.append)
        assert (result.text, result.first_seq) == ("hi", None)
        async with remote.subscribe(SESSION, after_seq=0) as reader:
            followed = [await anext(reader) for _ in EVENTS]
    assert followed == heard
    started, moved, delta = known(heard)
    assert isinstance(started, RunStarted)
    assert moved == UnknownEvent("mood_changed", {"to": "good"})
    assert delta == TextDelta("hi")


async def test_an_option_of_a_later_release_is_refused_and_not_dropped(tmp_path: Path) -> None:
    """A turn that is to have it does not run without it: the session's node names the option."""
    with shared_store("files", tmp_path) as store:
        async with node(store, "anna") as anna, node(store, "berta") as berta:
            session_id = (await anna.service.create_session("one")).session_id
            (there,) = [each for each in await (await berta.service.store()).read(LivingNodes()) if each.name == "anna"]
            links = berta.service.remote(there).links
            with pytest.raises(InvalidParamsError) as refused:
                await links.ask("turn/start", {"session_id": session_id, "prompt": "x", "mood": 1}, repeatable=False)
            assert "mood" in refused.value.message
            assert (await anna.service.read(session_id)).state.message_count == 2
