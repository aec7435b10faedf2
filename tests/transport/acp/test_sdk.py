"""The official Python SDK as the client of a real `warren acp`."""

import asyncio
import itertools
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process, text_block
from acp.client.connection import ClientSideConnection
from acp.interfaces import Client
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    EnvVariable,
    McpServerStdio,
    RequestPermissionResponse,
    UserMessageChunk,
)

from tests.transport.cli.process import SLOW, Cli, clean_environ

OFFICIAL = Path(__file__).parents[2] / "actors" / "tools" / "mcp" / "official.py"
TOOLS = {"tool_calls": [{"name": "nothing", "args": {"a": 1}}], "reasoning": "hm"}


@attrs.define(eq=False)
class Editor:
    """A client that keeps what it is told.

    Attributes:
        answers: what the user chooses when asked, in order; without any more the user says nothing.
    """

    updates: list[Any] = attrs.field(factory=list)
    answers: list[str] = attrs.field(factory=list)
    asked: asyncio.Event = attrs.field(factory=asyncio.Event)
    heard: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # noqa: ARG002 - the SDK's
        self.updates.append(update)
        self.heard.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        self.asked.set()
        if not self.answers:
            await asyncio.Event().wait()
        (chosen,) = [option for option in options if option.kind == self.answers[0]]
        del self.answers[0]
        assert session_id
        assert tool_call.status == "pending"
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id))

    def statuses(self) -> list[str]:
        """Return how the calls of a turn went."""
        updates = [update for update in self.updates if update.session_update in ("tool_call", "tool_call_update")]
        return [update.status for update in updates]

    def kinds(self) -> list[str]:
        """Return what kinds of updates a turn brought, runs of one kind as one."""
        kinds = [update.session_update for update in self.updates]
        told = [kind for kind in kinds if kind != "available_commands_update"]  # may come late: it is no answer
        return [kind for kind, _ in itertools.groupby(told)]

    def text(self, kind: type[AgentMessageChunk | UserMessageChunk] = AgentMessageChunk) -> str:
        return "".join(
            update.content.text for update in self.updates if isinstance(update, kind) and update.content.type == "text"
        )


@attrs.frozen
class Open:
    """A running agent and its client."""

    agent: ClientSideConnection
    process: Process
    editor: Editor

    async def ask(self, session_id: str, words: str) -> str:
        """Run a prompt; return why it ended."""
        del self.editor.updates[:]
        answer = await asyncio.wait_for(self.agent.prompt(session_id=session_id, prompt=[text_block(words)]), 20)
        return answer.stop_reason

    async def begin(self, session_id: str) -> "asyncio.Task[str]":
        """Begin a prompt that the model answers slowly; return once the first words are there."""
        asking = asyncio.create_task(self.ask(session_id, "second"))
        async with asyncio.timeout(20):
            while self.editor.text() != "half ":
                self.editor.heard.clear()
                await self.editor.heard.wait()
        return asking


@asynccontextmanager
async def started(folder: Path, *options: str) -> AsyncIterator[Open]:
    """Start an agent in a folder and say hello."""
    editor = Editor()
    command = (sys.executable, "-m", "warren", "acp", *options)
    async with spawn_agent_process(cast(Client, editor), *command, cwd=folder, env=clean_environ()) as (agent, process):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        yield Open(agent, process, editor)


async def refused(call: Awaitable[object]) -> tuple[int, str, object]:
    """Return the number, the code and the details of the error that a call ends with."""
    with pytest.raises(RequestError) as caught:
        await call
    body: Any = caught.value.data
    return caught.value.code, body["code"], body.get("details")


def test_a_conversation_with_tools_and_thoughts(cli: Cli) -> None:
    """The SDK understands every update of a turn, and gets all of them before the answer."""
    model = cli.script(TOOLS, {"chunks": ["It ", "works."]})

    async def talk() -> None:
        async with started(cli.folder, "--model", model, "--context-window", "1000") as open_:
            session = await open_.agent.new_session(cwd=str(cli.folder), mcp_servers=[])
            assert session.modes is not None
            assert await open_.ask(session.session_id, "go") == "end_turn"
            assert open_.editor.text() == "It works."
            assert open_.editor.kinds() == [
                "agent_thought_chunk",
                "tool_call",
                "tool_call_update",
                "usage_update",
                "agent_message_chunk",
                "usage_update",
                "session_info_update",
            ]
            await open_.agent.set_session_mode(session_id=session.session_id, mode_id="default")
            listed = await open_.agent.list_sessions(cwd=str(cli.folder))
            assert [(row.session_id, row.title) for row in listed.sessions] == [(session.session_id, "go")]
            await open_.agent.close_session(session_id=session.session_id)

    asyncio.run(talk())


def test_a_cancel_ends_the_prompt(cli: Cli) -> None:
    """It ends in the middle of the answer, is no error, and the next prompt is answered."""
    model = cli.script(SLOW, {"text": "whole"})

    async def talk() -> None:
        async with started(cli.folder, "--model", model) as open_:
            session_id = (await open_.agent.new_session(cwd="/work", mcp_servers=[])).session_id
            asking = await open_.begin(session_id)
            await open_.agent.cancel(session_id=session_id)
            assert await asking == "cancelled"
            assert await open_.ask(session_id, "again") == "end_turn"
            assert open_.editor.text() == "whole"

    asyncio.run(talk())


def test_a_killed_agent_is_taken_up_again(cli: Cli) -> None:
    """After kill -9 in a turn, another process lists the session, tells its finished turns, and goes on with it."""
    model = cli.script({"text": "one"}, SLOW, {"text": "three"})
    options = ("--model", model, "--store", "kept")

    async def talk() -> str:
        async with started(cli.folder, *options) as open_:
            session_id = (await open_.agent.new_session(cwd="/work", mcp_servers=[])).session_id
            assert await open_.ask(session_id, "first") == "end_turn"
            asking = await open_.begin(session_id)
            open_.process.kill()
            with pytest.raises(ConnectionError):
                await asking
            return session_id

    async def load(session_id: str) -> None:
        async with started(cli.folder, *options) as open_:
            assert [row.session_id for row in (await open_.agent.list_sessions()).sessions] == [session_id]
            await open_.agent.load_session(cwd="/work", session_id=session_id, mcp_servers=[])
            assert (open_.editor.text(UserMessageChunk), open_.editor.text()) == ("first", "one")
            asking = await open_.begin(session_id)
            await open_.agent.cancel(session_id=session_id)
            assert await asking == "cancelled"

    async def resume(session_id: str) -> None:
        async with started(cli.folder, *options) as open_:
            await open_.agent.resume_session(cwd="/work", session_id=session_id)
            assert "agent_message_chunk" not in open_.editor.kinds()
            assert await open_.ask(session_id, "third") == "end_turn"
            assert open_.editor.text() == "three"

    session_id = asyncio.run(talk())
    asyncio.run(load(session_id))
    asyncio.run(resume(session_id))


def test_without_a_store_the_sdk_is_told(cli: Cli) -> None:
    """Loading is not offered and gives the typed error; so do an unknown session and an empty prompt."""

    async def talk() -> None:
        async with started(cli.folder, "--ephemeral") as open_:
            hello = await open_.agent.initialize(protocol_version=PROTOCOL_VERSION)
            assert hello.agent_capabilities is not None
            assert hello.agent_capabilities.load_session is False
            loading = open_.agent.load_session(cwd="/work", session_id="0190", mcp_servers=[])
            assert await refused(loading) == (-32601, "SESSION_PERSISTENCE_DISABLED", None)
            assert await refused(open_.ask("0190", "hello")) == (-32002, "SESSION_NOT_FOUND", None)
            assert await refused(open_.ask("0190", "")) == (-32602, "INVALID_PARAMS", {"path": "$.prompt"})

    asyncio.run(talk())


def test_the_user_is_asked(cli: Cli) -> None:
    """The SDK is asked about each call, and each answer counts; a cancel while it is asked ends the prompt."""
    model = cli.script({"tool_calls": [{"name": "datetime_now", "args": {}}]}, {"text": "done"})

    async def talk() -> None:
        async with started(cli.folder, "--model", model, "--builtins") as open_:
            session_id = (await open_.agent.new_session(cwd="/work", mcp_servers=[])).session_id
            assert await open_.ask(session_id, "before") == "end_turn"
            assert not open_.editor.asked.is_set()
            await open_.agent.set_session_mode(session_id=session_id, mode_id="ask")
            open_.editor.answers[:] = ["reject_once", "allow_once"]
            assert await open_.ask(session_id, "one") == "end_turn"
            assert open_.editor.statuses() == ["pending", "failed"]
            assert await open_.ask(session_id, "two") == "end_turn"
            assert open_.editor.statuses() == ["pending", "in_progress", "completed"]
            open_.editor.asked.clear()
            asking = asyncio.create_task(open_.ask(session_id, "three"))
            await asyncio.wait_for(open_.editor.asked.wait(), 20)
            await open_.agent.cancel(session_id=session_id)
            assert await asking == "cancelled"
            assert open_.editor.statuses() == ["pending", "failed"]
            open_.editor.answers[:] = ["allow_always"]
            for words in ("four", "five"):  # the cancelled prompt had taken the first half of the script
                assert await open_.ask(session_id, words) == "end_turn"
            assert open_.editor.answers == []

    asyncio.run(talk())


def test_the_servers_of_a_session(cli: Cli) -> None:
    """A program that the SDK names is started for the session, its tools are offered there, and it ends with us."""
    model = cli.script({"tool_calls": [{"name": "echo", "args": {"text": "hi"}}]}, {"text": "done"})
    args, env = [str(OFFICIAL), str(cli.folder)], [EnvVariable(name="HOME", value="/")]
    server = McpServerStdio(name="Words & more", command=sys.executable, args=args, env=env)

    async def talk() -> None:
        async with started(cli.folder, "--model", model) as open_:
            session_id = (await open_.agent.new_session(cwd="/work", mcp_servers=[server])).session_id
            statuses: list[str] = []
            while "in_progress" not in statuses:  # a program that starts slowly is offered from a later turn on
                assert await open_.ask(session_id, "go") == "end_turn"
                statuses = open_.editor.statuses()
            assert statuses == ["pending", "in_progress", "completed"]
            other = (await open_.agent.new_session(cwd="/work", mcp_servers=[])).session_id
            assert await open_.ask(other, "go") == "end_turn"
            assert open_.editor.statuses() == ["pending", "failed"]

    asyncio.run(talk())
