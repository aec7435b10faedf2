"""Calls of tools of real servers: what goes out, what comes back, and what is told of those given up."""

import ast
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.world import HERE, LONG, bare, call, official, tool
from tests.support.asking import ask
from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import Recorder, new_session, open_runtime
from tests.support.waiting import until
from warren.actors.tools.mcp.pool import McpPool
from warren.base.errors import AgentError
from warren.conversation.events import ToolExecutionCompleted, ToolExecutionTimedOut
from warren.conversation.messages import ToolUseBlock
from warren.models.tools import ToolError
from warren.settings.config import Config, Limits
from warren.settings.tool_config import McpServer

# The client's own HTTP library leaves generators behind.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'http(core|x)2:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*async_generator object (PoolByteStream|Response):pytest.PytestUnraisableExceptionWarning"
    ),
]


@attrs.define
class Web:
    """A server over HTTP, that can be killed and started again at the same address."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> McpServer:
        return McpServer("web", url=f"http://127.0.0.1:{self.port}/mcp", headers={"X-Key": "opened"})

    def start(self) -> None:
        command = [sys.executable, str(HERE / "official.py"), str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A server over HTTP, until the test has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = Web(tmp_path, port)
    found.start()
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> McpServer:
    """The same server, as a process and as a web service."""
    if request.param == "stdio":
        return official(tmp_path)
    found: Web = request.getfixturevalue("web")
    return found.server


async def test_a_server_and_its_tools(server: McpServer, tmp_path: Path) -> None:
    """All pages of tools are offered, also new ones; calls bring what the server says; given up, they are cancelled."""
    async with ready(server) as pool:
        offered = {each.spec.name: each for each in pool.tools()}
        assert [*offered] == ["echo", "wait", "show", "data", "fail", "grow", "headers", "long", "ask"]
        assert offered["echo"].spec.description == "to echo"
        assert offered["echo"].spec.input_schema["properties"]["text"]["description"] == "what to say"
        arguments = {"name": "n", "self": 1, "none": None, "deep": {"none": None}}
        assert await call(pool, "echo", **arguments) == repr(arguments)
        assert await call(pool, "data") == '{"ä": [1, null]}'
        assert str(await call(pool, "show")).split("\n") == [
            "two lines:",
            "[image, image/png]",
            "[audio, audio/wav]",
            "its text",
            "[resource file:///b, of unknown type]",
            "[link to the resource file:///c: c]",
        ]
        assert len(str(await call(pool, "long"))) == 150_000
        with pytest.raises(ToolError, match="refused the call: its answer has more than 50000 values"):
            await call(pool, "long", parts=40_000)
        assert str(await call(pool, "long", parts=2_000)).startswith("a, [\na, [")
        assert await call(pool, "headers") == ("none" if server.url is None else "opened")
        with pytest.raises(ToolError, match=r"^there is no such file$"):
            await call(pool, "fail")
        await _cancel_one(pool, tmp_path)
        await call(pool, "grow")
        await until(lambda: "grown" in [each.spec.name for each in pool.tools()])
        assert len(pool.tools()) == 10


async def test_a_server_is_told_of_the_call_that_it_works_on(server: McpServer) -> None:
    """The session, the turn, the model's id and an idempotency key; a call outside of a session tells nothing."""
    async with ready(server) as pool:
        model = says(reply("", ToolUseBlock("c1", "echo", {"meta": True})), reply("done"))
        seen = Recorder()
        async with open_runtime(model, tools=pool.tools()) as service:
            session_id = await new_session(service)
            await service.start_turn(session_id, "go", on_event=seen)
        (completed,) = seen.only(ToolExecutionCompleted)
        told = ast.literal_eval(completed.result)
        assert told["warren/session_id"] == session_id
        assert (told["warren/turn"], told["warren/call_id"]) == (1, "c1")
        assert told["warren/idempotency_key"].startswith(f"{session_id}:1:1:")
        assert "warren" not in str(await call(pool, "echo", meta=True))


async def _cancel_one(pool: McpPool, folder: Path) -> None:
    """A call that is given up is cancelled at the server, and another on the same connection goes on."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: call(pool, "wait", key="one"))
            await until((folder / "one.began").exists)
            scope.cancel()
    await until((folder / "one.cancelled").exists)
    assert await call(pool, "echo", n=1) == "{'n': 1}"


async def test_a_web_service_that_dies_and_comes_back(web: Web, tmp_path: Path) -> None:
    """Its call in flight ends with an error, so do those while it is away, and later ones succeed in a new session."""
    async with ready(web.server) as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lose, pool)
            await until((tmp_path / "k.began").exists)
            web.kill()
        with pytest.raises(ToolError, match="'web'"):
            await call(pool, "echo")
        await until(lambda: pool.health()[0].state == "failed")
        web.start()
        await until(lambda: pool.health()[0].state == "ready")
        assert await call(pool, "echo", n=1) == "{'n': 1}"


async def _lose(pool: McpPool) -> None:
    with pytest.raises(ToolError, match="'web'"):
        await call(pool, "wait", key="k")


async def test_a_server_without_the_handshake(tmp_path: Path) -> None:
    """One that speaks only the newest revision of the protocol is understood too."""
    async with ready(bare(tmp_path, "a", "modern")) as pool:
        assert await call(pool, "square", n=3) == "9"


@pytest.mark.parametrize(
    ("flag", "answer"), [("half", "9 ?"), ("several", "9"), ("text", None), ("unsaid", None)], ids=str
)
async def test_an_answer_that_is_not_quite_one_ends_its_call(tmp_path: Path, flag: str, answer: str | None) -> None:
    """It is understood if it can be, and is an error if not; the connection goes on."""
    async with ready(bare(tmp_path, "a", flag)) as pool:
        with trio.fail_after(LONG):
            if answer is None:
                with pytest.raises(ToolError, match="no valid message"):
                    await call(pool, "square", n=3)
            else:
                assert await call(pool, "square", n=3) == answer
        assert pool.health()[0].restarts == 0


def uses(name: str, **args: Any) -> FunctionModel:
    """Return a model that calls one tool, then says so."""
    return says(reply("", ToolUseBlock("c1", name, args)), reply("done"))


async def test_an_interrupt_or_a_time_limit_cancels_the_calls_of_a_turn(tmp_path: Path) -> None:
    """The server hears of either, while the turn ends or goes on as ever."""
    async with ready(official(tmp_path)) as pool:
        async with open_runtime(uses("wait", key="k1"), tools=pool.tools()) as service, trio.open_nursery() as nursery:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await until((tmp_path / "k1.began").exists)
            await service.interrupt(session_id)
            assert (await turn.failure(AgentError)).cause == "cancelled"
        await until((tmp_path / "k1.cancelled").exists)
        recorder, config = Recorder(), Config(limits=Limits(tool_timeout=0.5))
        async with open_runtime(uses("wait", key="k2"), tools=pool.tools(), config=config) as service:
            assert (await service.create_session("go", on_event=recorder)).text == "done"
        assert [event.timeout_ms for event in recorder.only(ToolExecutionTimedOut)] == [500]
        await until((tmp_path / "k2.cancelled").exists)


@pytest.mark.parametrize("bad", ["\ud800", float("nan"), 1 << 70, {"deep": None}], ids=["half", "nan", "big", "deep"])
async def test_arguments_that_no_message_can_hold(tmp_path: Path, bad: Any) -> None:
    """They are refused, or sent, and the connection that others use stays as it was."""
    if isinstance(bad, dict):
        for _ in range(2000):
            bad = {"deep": bad}
    async with ready(bare(tmp_path, "a")) as pool:
        if isinstance(bad, int):
            assert await call(pool, "square", n=bad) == str(bad**2)
        else:
            with pytest.raises(ToolError, match="cannot be sent to the MCP server 'a'"):
                await call(pool, "square", n=bad)
        assert await call(pool, "square", n=3) == "9"
        assert pool.health()[0].restarts == 0


async def test_clashing_tools_reach_their_own_servers(tmp_path: Path) -> None:
    """Two servers with the same tools have both offered, and each gets its own calls."""
    async with ready(bare(tmp_path, "a", call_timeout=7.0), bare(tmp_path, "b", "noisy")) as pool:
        assert {each.spec.name for each in pool.tools()} == {
            f"{s}_{t}" for s in "ab" for t in ("square", "hang", "die")
        }
        with pytest.raises(ToolError, match="'a'"):
            await call(pool, "a_die")
        assert await call(pool, "b_square", n=4) == "16"
        assert tool(pool, "a_square").category == "mcp"
        assert [tool(pool, name).timeout for name in ("a_square", "b_square")] == [7.0, None]
