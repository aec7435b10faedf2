"""Sessions as resources, completion of their ids, and log messages, as the official client sees them."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import mcp_types as types
import pytest
import trio
from mcp.shared.exceptions import MCPError
from trio.testing import wait_all_tasks_blocked

from tests.support.models import Puppet, says
from tests.support.runtime import new_session, open_runtime
from tests.transport.mcp.clients import ERAS, connected
from warren.base.errors import ProviderError
from warren.settings.config import Config
from warren.transport.mcp.resources import MAX_WATCHED, PAGE, TEMPLATE

NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"
ECHO = Config(model="echo")
# the client warns that the newest revision has neither subscriptions of this kind nor a log level
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


def uri_of(session_id: str) -> str:
    """Return the resource that is a session."""
    return TEMPLATE.replace("{session_id}", session_id)


def data_of(result: types.ReadResourceResult) -> Any:
    """Return what a resource has in it."""
    (content,) = result.contents
    assert isinstance(content, types.TextResourceContents)
    assert content.mime_type == "application/json"
    return json.loads(content.text)


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_is_listed_and_read(era: str) -> None:
    """A host finds a session among the resources and reads its conversation."""
    async with open_runtime(config=ECHO) as service, connected(service, era) as program:
        session_id = (await service.create_session("hello")).session_id
        (listed,) = (await program.client.list_resources()).resources
        assert listed.uri == uri_of(session_id)
        assert listed.description is not None
        found = data_of(await program.client.read_resource(listed.uri))
        assert found["state"]["session_id"] == session_id
        assert [entry["message"]["role"] for entry in found["messages"]] == ["user", "assistant"]
        (pattern,) = (await program.client.list_resource_templates()).resource_templates
        assert pattern.uri_template == TEMPLATE


async def test_many_sessions_come_in_pages() -> None:
    """The list goes on where its last page ended, and each session is in it once."""
    async with open_runtime(config=ECHO) as service, connected(service) as program:
        expected = {uri_of(await new_session(service)) for _ in range(PAGE + 5)}
        first = await program.client.list_resources()
        second = await program.client.list_resources(cursor=first.next_cursor)
        assert len(first.resources) == PAGE
        assert second.next_cursor is None
        assert {each.uri for each in (*first.resources, *second.resources)} == expected


@pytest.mark.parametrize("uri", [uri_of(NOBODY), "file:///etc/passwd", uri_of(""), uri_of("a/b")])
async def test_a_resource_that_is_not_there(uri: str) -> None:
    """It cannot be read or subscribed to: the protocol's own error, and the connection goes on."""
    async with open_runtime(config=ECHO) as service, connected(service) as program:
        for call in (program.client.read_resource, program.client.subscribe_resource):
            with pytest.raises(MCPError) as caught:
                await call(uri)
            assert caught.value.code == -32002
        assert not (await program.client.list_resources()).resources


async def test_a_bad_cursor_is_named() -> None:
    """A cursor of somebody else's is refused by its path."""
    async with open_runtime(config=ECHO) as service, connected(service) as program:
        with pytest.raises(MCPError, match=r"\$\.params\.cursor") as caught:
            await program.client.list_resources(cursor="-1")
        assert caught.value.code == types.INVALID_PARAMS


async def test_a_subscriber_is_told_of_each_turn() -> None:
    """Whoever runs it: the client hears of a turn's end, until it unsubscribes, and of no other session's."""
    async with open_runtime(config=ECHO) as service, connected(service) as program:
        mine, other = await new_session(service), await new_session(service)
        await program.client.subscribe_resource(uri_of(mine))
        await program.client.subscribe_resource(uri_of(mine))
        await service.start_turn(other, "hello")
        await service.start_turn(mine, "hello")
        await program.until(program.updated)
        await program.client.unsubscribe_resource(uri_of(mine))
        await service.start_turn(mine, "hello again")
        await program.client.list_tools()  # what was sent before has arrived with this answer
        assert program.updated() == [uri_of(mine)]


async def test_an_archived_session_is_told_of() -> None:
    """The end of a session is its last change; its subscription does no harm after that."""
    async with open_runtime(config=ECHO) as service, connected(service) as program:
        session_id = await new_session(service)
        await program.client.subscribe_resource(uri_of(session_id))
        await service.archive(session_id)
        await program.until(program.updated)
        await program.client.unsubscribe_resource(uri_of(session_id))


async def test_the_end_of_the_runtime_changes_no_session() -> None:
    """A subscriber is told of the turn that the end interrupts, and of no session that has none."""
    model = Puppet()
    async with open_runtime(model) as service, connected(service) as program, trio.open_nursery() as nursery:
        idle, busy = await new_session(service), await new_session(service)
        for session_id in (idle, busy):
            await program.client.subscribe_resource(uri_of(session_id))
        nursery.start_soon(partial(program.fail, "warren_resume", session_id=busy, prompt="hello"))
        await model.reached(1)
        await service.stop()
        await program.until(program.updated)
        await wait_all_tasks_blocked()
        await program.client.list_resource_templates()  # what was sent before has arrived with this answer
        assert program.updated() == [uri_of(busy)]


async def test_subscriptions_are_bounded() -> None:
    """A client that subscribes to everything is refused past a number, by the code that all surfaces have."""
    async with open_runtime(config=ECHO) as service, connected(service) as program:
        for _ in range(MAX_WATCHED):
            await program.client.subscribe_resource(uri_of(await new_session(service)))
        with pytest.raises(MCPError) as caught:
            await program.client.subscribe_resource(uri_of(await new_session(service)))
        assert caught.value.error.data["code"] == "CAPACITY_EXCEEDED"


@pytest.mark.parametrize("era", ERAS)
async def test_ids_are_completed(era: str) -> None:
    """A host that asks for what a session's id may be gets those that begin so; for other things there is nothing."""
    async with open_runtime(config=ECHO) as service, connected(service, era) as program:
        ids = {await new_session(service) for _ in range(3)}
        reference = types.ResourceTemplateReference(uri=TEMPLATE)
        found = await program.client.complete(reference, {"name": "session_id", "value": ""})
        assert set(found.completion.values) == ids
        one = min(ids)
        found = await program.client.complete(reference, {"name": "session_id", "value": one[:-1]})
        assert one in found.completion.values
        for ref, name in ((reference, "other"), (types.PromptReference(name="none"), "session_id")):
            assert (await program.client.complete(ref, {"name": name, "value": ""})).completion.values == []


async def test_log_messages_from_a_level_on() -> None:
    """A client hears of a failed turn at once, of others' steps from the level on that it sets, and of none above."""
    failure = ProviderError("the model is gone", cause="bad_request", retryable=False)
    model = says(failure, ["fine"], failure)
    async with open_runtime(model) as service, connected(service) as program:
        session_id = await new_session(service)
        await program.call("warren_resume", session_id=session_id, prompt="hello")
        assert [(each.level, each.data["event"]) for each in program.logged()] == [("error", "RunFailed")]
        assert program.logged()[0].data["session_id"] == session_id
        program.said.clear()
        await program.client.set_logging_level("info")
        await program.call("warren_resume", session_id=session_id, prompt="hello")
        assert [each.data["event"] for each in program.logged()] == ["RunStarted", "RunCompleted"]
        program.said.clear()
        await program.client.set_logging_level("emergency")
        await program.call("warren_resume", session_id=session_id, prompt="hello")
        assert program.logged() == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_long_conversation_is_read_in_part(era: str) -> None:
    """A page that is too large for an answer is refused with what to do; a resource has the newest messages."""
    async with open_runtime(config=ECHO) as service, connected(service, era) as program:
        session_id = (await service.create_session("x" * 600_000)).session_id
        await service.start_turn(session_id, "y" * 600_000)
        refused = await program.fail("warren_history", session_id=session_id)
        assert (refused["code"], refused["details"]["cause"]) == ("CAPACITY_EXCEEDED", "page")
        assert "`limit`" in refused["message"]
        part = await program.ask("warren_history", session_id=session_id, offset=2, limit=2)
        found = data_of(await program.client.read_resource(uri_of(session_id)))
        assert [entry["position"] for entry in found["messages"]] == [1, 2, 3]
        assert found["messages"][1:] == part["messages"]


async def test_a_damaged_session_hides_none(tmp_path: Path) -> None:
    """The list goes on behind a page in which a session cannot be read."""
    async with open_runtime(config=ECHO, store=tmp_path) as service:
        made = [await new_session(service) for _ in range(PAGE + 1)]
    with closing(apsw.Connection(str(tmp_path / "sessions.sqlite3"))) as db:
        db.execute("UPDATE sessions SET model = CAST(x'ff' AS TEXT) WHERE session_id = ?", (made[-1],))
    async with open_runtime(config=ECHO, store=tmp_path) as service, connected(service) as program:
        first = await program.client.list_resources()
        second = await program.client.list_resources(cursor=first.next_cursor)
        found = {each.uri for each in (*first.resources, *second.resources)}
        assert len(found) == PAGE
        assert found == set(map(uri_of, made[:-1]))
