"""Watching the list of sessions from elsewhere: over WebSocket and REST, over a lost connection, over nodes."""

from pathlib import Path

import pytest
import trio

from tests.transport.client.cable import linked
from tests.transport.clients import HOST, gateway
from tests.transport.clients import connect as raw
from tests.transport.gateway.serving import runtime
from tests.transport.rest.clients import Events, client
from warren.calls.streams import ChangeReader
from warren.conversation.views import SessionSummary
from warren.transport.client import watching


async def row(reader: ChangeReader, session_id: str, messages: int) -> SessionSummary:
    """Return the next row of a session that has so many messages, and runs no turn."""
    async for changes in reader:
        for each in changes.sessions:
            if each.session_id == session_id and (each.message_count, each.is_active) == (messages, False):
                return each
    raise AssertionError("the watch has ended")


async def test_a_watch_survives_its_connection(tmp_path: Path) -> None:
    """Behind a cut the watch goes on, and says that changes were missed; its connection is given back at the end."""
    async with runtime(tmp_path) as service, linked(service) as (remote, wire), remote.watch() as reader:
        first = (await remote.create_session("one", model="echo")).session_id
        assert (await row(reader, first, 2)).title == "one"
        wire.cut()
        assert (await anext(reader)).missed
        second = (await remote.create_session("two", model="echo")).session_id
        assert (await row(reader, second, 2)).title == "two"


async def test_what_waits_for_a_reader_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stays away while too many sessions change is told to list them."""
    monkeypatch.setattr(watching, "MOST", 0)
    async with runtime(tmp_path) as service, linked(service) as (remote, _wire), remote.watch() as reader:
        await service.create_session(None)
        changes = await anext(reader)
        assert (changes.sessions, changes.missed) == ((), True)


async def test_one_connection_has_one_watch(tmp_path: Path) -> None:
    """The answer comes, then the changes; a second watch has another filter, and `session/unwatch` ends it."""
    async with runtime(tmp_path) as service, gateway(service) as port, raw(port) as socket:
        assert await socket.call("session/watch") == {"watching": True}
        created = (await service.create_session(None)).session_id
        while (message := await socket.next()).get("method") != "session/changed":
            pass
        assert [each["session_id"] for each in message["params"]["sessions"]] == [created]
        assert await socket.call("session/watch", labels={"team": "red"}) == {"watching": True}
        await service.create_session(None)
        red = (await service.create_session(None, labels={"team": "red"})).session_id
        while (message := await socket.next()).get("method") != "session/changed":
            pass
        assert [each["session_id"] for each in message["params"]["sessions"]] == [red]
        assert await socket.call("session/unwatch") == {"unwatched": True}
        assert await socket.call("session/unwatch") == {"unwatched": False}
        error = await socket.error("session/watch", labels="red")
        assert error["data"]["details"]["path"] == "$.labels"


async def test_changes_are_a_stream_of_rest(tmp_path: Path) -> None:
    """`GET /changes` brings them as server-sent events, with the filter of the query; nobody watches when it ends."""
    async with runtime(tmp_path) as service, gateway(service) as port, client(port) as http:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            followed = await Events(stream).open("/changes?labels[team]=red")
            await service.create_session(None)
            red = (await service.create_session(None, labels={"team": "red"})).session_id
            event = await followed.next()
        assert event is not None
        assert (event.kind, [each["session_id"] for each in event.data["sessions"]]) == ("changes", [red])
        refused = await http.get("/changes", params={"include_archived": "maybe"})
        assert (refused.status_code, refused.json()["details"]["path"]) == (422, "$.include_archived")
