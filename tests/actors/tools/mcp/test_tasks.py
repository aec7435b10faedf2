"""Calls that a server carries out as tasks: created, polled, answered, cancelled, and lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.task_service import TaskService, said
from tests.actors.tools.mcp.world import call, tool
from tests.support.asking import ask
from tests.support.models import FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, transcript
from tests.support.waiting import until
from warren.actors.calls.service import Service
from warren.actors.tools.mcp import connection
from warren.actors.tools.mcp.pool import McpPool
from warren.actors.turn import running
from warren.base.errors import AgentError
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Handed, ToolError, Unfinished
from warren.settings.config import Config
from warren.settings.tool_config import McpServer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'http(core|x)2:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*async_generator object (PoolByteStream|Response):pytest.PytestUnraisableExceptionWarning"
    ),
]


@asynccontextmanager
async def connected(service: TaskService, **settings: Any) -> AsyncIterator[McpPool]:
    """Connect to a service; it must have seen no fault at the end."""
    async with service.served() as url, ready(McpServer("web", url=url, ping_interval=None, **settings)) as pool:
        yield pool
    assert service.faults == []


async def begun(pool: McpPool, name: str) -> Handed:
    """Call a tool that runs as a task, and return the way to its result."""
    handed = await call(pool, name)
    assert isinstance(handed, Handed)
    return handed


async def result_of(pool: McpPool, name: str, handed: Handed) -> object:
    """Wait for the result of a task."""
    remote = tool(pool, name).remote
    assert remote is not None
    return await running.result_of(remote, handed.handle, 0.0)


async def test_a_tool_that_must_runs_as_a_task() -> None:
    """The server is asked to keep it, looked at no more often than it wants, and its result is that of the call."""
    service = TaskService()
    async with connected(service, task_timeout=90.0) as pool, trio.open_nursery() as nursery:
        assert tool(pool, "build").timeout == 90.0
        assert tool(pool, "quick").timeout is None
        handed = await begun(pool, "build")
        assert handed.told is None
        result = ask(nursery, result_of, pool, "build", handed)
        await until(lambda: service.only.looks > 2)
        service.complete()
        assert await result.value() == "built"
    assert service.calls == [("build", "task")]
    assert service.only.ttl == 90_000


@pytest.mark.parametrize(
    ("name", "settings", "how"),
    [
        ("draft", {}, "task"),
        ("draft", {"tasks": False}, "call"),
        ("build", {"tasks": False}, "task"),
        ("quick", {}, "call"),
        ("plain", {}, "call"),
    ],
)
async def test_the_tool_and_the_settings_decide(name: str, settings: dict[str, Any], how: str) -> None:
    """A tool that may run as a task does unless the settings say no; one that must does, and no other one."""
    service = TaskService()
    async with connected(service, **settings) as pool:
        outcome = await call(pool, name)
    assert service.calls == [(name, how)]
    assert isinstance(outcome, Handed) == (how == "task")


async def test_a_server_without_the_capability_gets_plain_calls() -> None:
    """Whatever its tools say."""
    service = TaskService(capabilities={"tools": {}})
    async with connected(service) as pool:
        assert await call(pool, "draft") == "draft done"
    assert service.calls == [("draft", "call")]


async def test_the_model_is_told_at_once() -> None:
    """The answer that the server has for it comes with the way to the result."""
    service = TaskService()
    async with connected(service) as pool:
        handed = await begun(pool, "ponder")
    assert handed.told == "I ponder."


@pytest.mark.parametrize(
    ("status", "result", "error"),
    [
        ("completed", said("no such file") | {"isError": True}, "no such file"),
        ("failed", said("broken") | {"isError": True}, "broken"),
        ("failed", {"code": -32603, "message": "out of memory"}, "its task is failed: out of memory"),
        ("cancelled", {"code": -32603, "message": "by request"}, "its task is cancelled: by request"),
    ],
)
async def test_errors_are_those_of_the_call(status: str, result: dict[str, Any], error: str) -> None:
    """An error result, and an error of the protocol."""
    service = TaskService()
    async with connected(service) as pool:
        handed = await begun(pool, "build")
        service.only.end(status, result)
        with pytest.raises(ToolError, match=error):
            await result_of(pool, "build", handed)


async def test_files_are_those_of_the_call() -> None:
    """The result has them as that of a plain call would."""
    service, image = TaskService(), {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    async with connected(service) as pool:
        handed = await begun(pool, "build")
        service.complete(content=[{"type": "text", "text": "a chart"}, image])
        output: Any = await result_of(pool, "build", handed)
    assert output.text == "a chart"
    assert [each.media_type for each in output.files] == ["image/png"]


async def test_a_task_outlives_the_connection() -> None:
    """While the server is away the wait goes on; its next session has the task still."""
    service = TaskService()
    async with connected(service, connect_timeout=2.0) as pool, trio.open_nursery() as nursery:
        handed = await begun(pool, "build")
        result = ask(nursery, result_of, pool, "build", handed)
        await until(lambda: service.only.looks)
        service.away = True
        await trio.sleep(0.3)
        service.only.looked = -1.0
        service.away = False
        service.complete()
        assert await result.value() == "built"
    assert service.calls == [("build", "task")]


async def test_a_lost_task_is_an_error() -> None:
    """A server that does not know it any more will never have its result."""
    service = TaskService()
    async with connected(service) as pool:
        handed = await begun(pool, "build")
        service.tasks.clear()
        with pytest.raises(ToolError, match="does not know the task of the call any more"):
            await result_of(pool, "build", handed)


async def test_a_task_can_be_cancelled() -> None:
    """It is not waited for."""
    service = TaskService()
    async with connected(service) as pool:
        handed, remote = await begun(pool, "build"), tool(pool, "build").remote
        assert remote is not None
        remote.cancel(handed.handle)
        await until(lambda: service.only.status == "cancelled")


async def test_a_server_that_asks_for_no_interval_is_left_in_peace() -> None:
    """It is looked at every two seconds."""
    service = TaskService(poll=None)
    async with connected(service) as pool, trio.open_nursery() as nursery:
        handed = await begun(pool, "build")
        assert handed.handle["poll"] == 2.0
        result = ask(nursery, result_of, pool, "build", handed)
        await until(lambda: service.only.looks)
        await trio.sleep(0.3)
        assert service.only.looks == 1
        service.complete()
        assert await result.value() == "built"


def calling(name: str) -> FunctionModel:
    """Return a model that calls a tool for the prompt "go", and has nothing to say to others."""

    async def answer(request: ModelRequest, _emit: Any) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        calls = isinstance(last, UserMessage) and last.content == "go"
        return reply("", ToolUseBlock("call-1", name, {})) if calls else reply("done")

    return FunctionModel(answer)


async def told(service: Service, session_id: str) -> list[str]:
    """Return the results of tools, and the texts with which turns have begun."""
    found = list[str]()
    for message in await transcript(service, session_id):
        if isinstance(message, ToolResultsMessage):
            found += [each.content for each in message.results]
        elif isinstance(message, UserMessage):
            found.append(message.content)
    return found


@pytest.mark.parametrize("name", ["build", "ponder"])
async def test_the_next_process_finds_the_task_again(tmp_path: Path, name: str) -> None:
    """The tool is called once, whether the model waits for the result or was told something at once."""
    service, model = TaskService(), calling(name)
    async with connected(service) as pool, trio.open_nursery() as nursery:
        async with open_runtime(model, store=tmp_path, tools=pool.tools()) as runtime:
            session_id = await new_session(runtime)
            turn = ask(nursery, runtime.start_turn, session_id, "go")
            await until(lambda: service.tasks and service.only.looks > 1)
            await until(lambda: turn.ended.is_set() or name == "build")
        await turn.ended.wait()
        await trio.sleep(0.1)
        async with open_runtime(model, store=tmp_path, tools=pool.tools()) as runtime:
            looks = service.only.looks
            await until(lambda: service.only.looks > looks)
            service.complete()
            while not (texts := await told(runtime, session_id))[-1].endswith("built"):  # noqa: ASYNC110 - a store
                await trio.sleep(0.02)
    assert service.calls == [(name, "task")]
    assert service.keys[0].startswith(f"{session_id}:1:1:")
    if name == "build":
        assert texts == ["go", "built"]
    else:
        assert texts[1].startswith("I ponder.\nit runs in the background")
        assert len(texts) == 3


async def test_an_interrupt_cancels_the_task() -> None:
    """The server is told that nobody wants its result."""
    service = TaskService()
    async with (
        connected(service) as pool,
        open_runtime(calling("build"), tools=pool.tools()) as runtime,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(runtime)
        turn = ask(nursery, runtime.start_turn, session_id, "go")
        await until(lambda: service.tasks and service.only.looks)
        await runtime.interrupt(session_id)
        await turn.failure(AgentError)
        await until(lambda: service.only.status == "cancelled")


@pytest.mark.parametrize("name", ["choose", "blurt"])
async def test_a_question_of_a_task_is_asked(tmp_path: Path, name: str) -> None:
    """The task waits for input, and its question goes to the approver of its session, also one before any look."""
    service, asked = TaskService(), set[str]()
    config = Config(gates=Gates(mcp="ask"))
    async with (
        connected(service) as pool,
        open_runtime(calling(name), store=tmp_path, tools=pool.tools(), config=config) as runtime,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(runtime)
        turn = ask(nursery, runtime.start_turn, session_id, "go")
        while len(asked) < 2:
            for each in (await runtime.read(session_id)).state.pending_approvals:
                if each.call_id not in asked:
                    asked.add(each.call_id)
                    await runtime.approve_tool(session_id, each.call_id, "allow")
            await trio.sleep(0.02)
        await turn.value()
        assert (await told(runtime, session_id))[1] == "{'action': 'accept', 'content': {'colour': 'red'}}"
    assert asked == {"call-1", "call-1.1"}


async def test_a_look_is_short() -> None:
    """One while the task works, and one while it waits for input and nobody can be asked."""
    service = TaskService(poll=70)
    async with connected(service) as pool:
        handed, remote = await begun(pool, "build"), tool(pool, "build").remote
        assert remote is not None
        began = trio.current_time()
        assert await remote.look(handed.handle) == Unfinished(0.07)
        assert trio.current_time() - began < connection.LISTENS
        service.only.looked, service.only.status = -1.0, "input_required"
        assert await remote.look(handed.handle) == "{'action': 'cancel'}"
        assert trio.current_time() - began < 2 * connection.LISTENS


async def test_a_look_while_the_server_is_away() -> None:
    """It comes back soon, and says to look again: the server may have its tasks still."""
    service = TaskService(poll=70)
    async with connected(service, connect_timeout=1.0) as pool:
        handed, remote = await begun(pool, "build"), tool(pool, "build").remote
        assert remote is not None
        service.away = True
        for _ in range(2):
            assert await remote.look(handed.handle) == Unfinished(0.07)
