"""The model and the tools of turns of ten calls, as servers that outlive whoever calls them, and their log.

They run in the process of the test: a program that is killed can neither lose nor invent a line of the log.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from tests.actors.tools.mcp import services
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, serve, status
from tests.transport.providers.dialects import DONE, call, delta, used
from tests.transport.providers.strict import check_chat
from warren.models.tools import Restart
from warren.settings.config import ModelServer
from warren.settings.tool_config import McpServer

STEPS: Final = (("note",), ("look", "pay", "note"), ("note", "look"), ("pay",), ("look", "look", "note"))
"""The tools that the model asks for, answer by answer: ten calls of each restart class, alone and beside others."""
CALLS: Final = {f"{step}-{at}": each for step, names in enumerate(STEPS) for at, each in enumerate(names)}
"""The names of the tools by the ids of their calls."""
RESTART: Final[dict[str, Restart]] = {"note": "report", "look": "replay", "pay": "ask"}
SECONDS: Final = {"note": 0.01, "look": 0.02, "pay": 0.03}
"""Different times, so that results come apart."""
TOOLS: Final = [services.tool("note"), services.tool("look", readOnlyHint=True), services.tool("pay")]
MODEL: Final = "gpt-kept"
PROCESS: Final = "x-process"
KEY: Final = "SERVERS_KEY"


@attrs.frozen
class Asked:
    """A call of the model: when, by which process, and what for."""

    at: float
    process: int
    step: int
    prompt: str


@attrs.frozen
class Ran:
    """A run of a tool: when, by which process, and as which call it was made."""

    at: float
    process: int
    name: str
    call_id: str
    session_id: str
    key: str


@attrs.define(eq=False)
class Tools(services.Service):
    """An MCP server that notes each call before its work begins."""

    log: list[Asked | Ran] = attrs.field(factory=list, kw_only=True)

    async def run(self, request: Request) -> str:
        """Run a tool for a moment, to its end also if nobody waits for it."""
        params = request.body["params"]
        about, name = params["_meta"], params["name"]
        told = (about[f"warren/{each}"] for each in ("call_id", "session_id", "idempotency_key"))
        self.log.append(Ran(time.monotonic(), int(request.headers[PROCESS]), name, *told))
        await trio.sleep(SECONDS[name])
        return f"{name} ran"


@attrs.define(eq=False)
class Model:
    """A server of OpenAI's chat completions that refuses what the real one refuses.

    It asks for the tools of the next step that the context does not have yet.
    """

    log: list[Asked | Ran]

    async def answer(self, request: Request, stream: trio.SocketStream) -> None:
        """Answer one request, or refuse it with status 400 and what is wrong with it."""
        try:
            assert request.path == "/v1/chat/completions", "the path"
            check_chat(request.body["messages"])
            assert {each["function"]["name"] for each in request.body["tools"]} == set(RESTART), "the tools"
        except AssertionError as exc:
            await stream.send_all(status(400, {"error": {"message": str(exc)}}))
            return
        messages = request.body["messages"]
        begins = max(at for at, each in enumerate(messages) if each["role"] == "user")
        step = sum(each["role"] == "assistant" for each in messages[begins:])
        prompt = messages[begins]["content"]
        self.log.append(Asked(time.monotonic(), int(request.headers["authorization"].split()[1]), step, prompt))
        await stream.send_all(HEAD)
        for item in _said(step, prompt):
            await stream.send_all(chunk(event(item)))
            await trio.sleep(0.002)
        await stream.send_all(END)


def _said(step: int, prompt: str) -> list[Any]:
    if step == len(STEPS):
        return [*(delta(word) for word in ("done", f" {prompt}")), delta("", "stop"), used(1, 1), DONE]
    words = [delta("word ") for _ in range(3)]
    calls = [call(at, "{}", id=f"{step}-{at}", name=name) for at, name in enumerate(STEPS[step])]
    return [*words, *calls, delta(None, "tool_calls"), used(1, 1), DONE]


@attrs.define(eq=False)
class Servers:
    """Both servers.

    Attributes:
        log: the calls that they got, in order.
        model: the address of the model.
        tools: the address of the tools.
    """

    log: list[Asked | Ran] = attrs.field(factory=list)
    model: str = ""
    tools: str = ""

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Servers"]:
        """Serve for a body."""
        tools = Tools(lambda _: services.empty(404), tools=TOOLS, log=self.log)
        async with serve(Model(self.log).answer) as self.model, tools.served() as self.tools:
            yield self


def model_server(url: str) -> ModelServer:
    """Return the model's server in the settings of a program that calls it."""
    return ModelServer(name="kept", base_url=f"{url}/v1", key_env=KEY)


def environ() -> dict[str, str]:
    """Return the variables of such a program: the key names the process."""
    return {KEY: str(os.getpid())}


def tool_server(url: str) -> McpServer:
    """Return the server of the tools in such settings; one tool has its class by a hint, one by the settings."""
    return McpServer("kept", url=url, headers={PROCESS: str(os.getpid())}, tool_restart={"pay": RESTART["pay"]})
