"""Servers that stop in the middle of a turn: it is parked, and goes on in whichever process comes next."""

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import httpx
import pytest
import trio

from tests.support.waiting import until
from tests.transport.cli.process import Cli, Running
from tests.transport.cli.serving import Client, connected, serve
from tests.transport.providers import byte_server
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event
from tests.transport.providers.dialects import DONE, call, delta, used
from tests.transport.providers.strict import check_chat

PROMPT: Final = {"prompt": "go", "mode": "queue", "idempotency_key": "one turn"}
SETTINGS: Final = """
model = "a-model"
provider = "mine"
[providers.mine]
base_url = "{url}/v1"
key_env = "THE_KEY"
[storage]
lease = "1.5s"
[tools]
builtins = true
"""
"""A node hears that it is to drain when it renews its leases."""
ENV: Final = {"THE_KEY": "sk-test"}
WORKERS: Final = pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])


@attrs.define
class Model:
    """A model that calls a tool, says half of its answer, and the rest when it may.

    Attributes:
        asked: how often it was asked for its answer.
        gate: lets it end.
    """

    asked: int = 0
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def answer(self, request: Request, stream: trio.SocketStream) -> None:
        """Answer one request."""
        messages = request.body["messages"]
        check_chat(messages)
        await stream.send_all(HEAD)
        if messages[-1]["role"] == "user":
            said = [call(0, "{}", id="call_0", name="datetime_now"), delta(None, "tool_calls")]
        else:
            self.asked += 1
            await stream.send_all(chunk(event(delta("half "))))
            await self.gate.wait()
            said = [delta("an answer"), delta("", "stop")]
        await stream.send_all(b"".join(chunk(event(each)) for each in (*said, used(1, 1), DONE)) + END)


@asynccontextmanager
async def model_of(cli: Cli) -> AsyncIterator[Model]:
    """Serve a model, and write the settings with which commands in the folder find it."""
    model = Model()
    async with byte_server.serve(model.answer) as url:
        (cli.folder / "settings.toml").write_text(SETTINGS.format(url=url), encoding="utf-8")
        yield model


def served(cli: Cli, *flags: str) -> tuple[Running, str]:
    """Start a server that waits for no turn when it stops."""
    return serve(cli, "--config", "settings.toml", "--drain", "100ms", *flags, env=ENV)


async def begun(client: Client) -> tuple[str, int]:
    """Begin a keyed turn, and return its session and its request once it speaks after the call of its tool."""
    session_id = (await client.call("session/create", prompt=None))["session_id"]
    number = await client.send("turn/start", session_id=session_id, **PROMPT)
    await client.event("text_delta")
    return session_id, number


async def told_to_ask_again(client: Client, number: int) -> None:
    """Check that the caller of a turn is told that it goes on."""
    while (told := await client.receive()).get("id") != number:
        pass
    error = told["error"]["data"]
    assert (error["details"]["cause"], error["retryable"]) == ("shutting_down", True)


async def ended(running: Running) -> None:
    """Check that a server ends in good order."""
    found = await trio.to_thread.run_sync(running.end)
    assert (found.code, found.out) == (0, ""), found


async def answered(url: str, session_id: str) -> None:
    """Check that the key has the answer, and that the turn is there once, with one call of its tool."""
    async with connected(url) as client:
        assert (await client.call("turn/start", session_id=session_id, **PROMPT))["text"] == "half an answer"
        told = (await client.call("session/history", session_id=session_id))["messages"]
    assert [each["message"]["role"] for each in told] == ["user", "assistant", "tool_results", "assistant"]


async def waited(cli: Cli, *words: str) -> None:
    """Wait for the end of the turn in a shell, which prints the whole answer."""
    found = await trio.to_thread.run_sync(partial(cli.run, "wait", *words, env=ENV))
    assert (found.code, found.out) == (0, "half an answer\n"), found


async def have_come(server: str, shells: int) -> None:
    """Wait until so many shells have come to a server."""
    async with httpx.AsyncClient(base_url=server.replace("ws", "http"), trust_env=False) as client:
        while f'warren_connections{{surface="websocket"}} {shells}' not in (await client.get("/metrics")).text:  # noqa: ASYNC110
            await trio.sleep(0.05)
    await trio.sleep(1)  # they have connected, and ask next


async def waited_at(url: str, cli: Cli, model: Model, session_id: str) -> None:
    """The same at a server; the turn ends after the shell has come."""
    server = url.removesuffix("/ws")

    async def lets_it_end() -> None:
        await have_come(server, 1)
        model.gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lets_it_end)
        await waited(cli, session_id, "--server", server)


async def left_by_a_server(cli: Cli, workers: Sequence[str]) -> str:
    """Begin a turn at a server that stops meanwhile; return the session."""
    running, url = served(cli, *workers)
    async with connected(url) as client:
        session_id, number = await begun(client)
        running.signal(signal.SIGTERM)
        await told_to_ask_again(client, number)
    await ended(running)
    return session_id


@WORKERS
async def test_a_shell_goes_on_with_the_turn_of_a_server_that_has_stopped(cli: Cli, workers: Sequence[str]) -> None:
    """`warren wait` does so by itself, and a later server has the answer of its key."""
    async with model_of(cli) as model:
        session_id = await left_by_a_server(cli, workers)
        assert "turn parked" in cli.run("sessions", "show", session_id).out
        model.gate.set()
        await waited(cli, session_id, "--config", "settings.toml")
        running, url = served(cli, *workers)
        await answered(url, session_id)
        running.signal(signal.SIGTERM)
        await ended(running)
    assert model.asked == 2


@WORKERS
async def test_the_next_server_goes_on_with_the_turn(cli: Cli, workers: Sequence[str]) -> None:
    """Nobody has to ask: the model hears of it before a client comes, who waits for the turn without its key."""
    async with model_of(cli) as model:
        session_id = await left_by_a_server(cli, workers)
        running, url = served(cli, *workers)
        await until(lambda: model.asked == 2)
        async with connected(url) as client:
            number = await client.send("turn/wait", session_id=session_id)
            assert (await client.call("session/read", session_id=session_id))["state"]["turn"]["state"] == "running"
            model.gate.set()
            while (told := await client.receive()).get("id") != number:
                pass
            assert told["result"]["text"] == "half an answer"
        await answered(url, session_id)
        running.signal(signal.SIGTERM)
        await ended(running)
    assert model.asked == 2


async def test_a_command_goes_on_with_the_server_that_comes_next(cli: Cli) -> None:
    """Its server is stopped in the turn, and started again at the same place: nothing fails."""
    async with model_of(cli) as model:
        running, url = served(cli, "--drain", "2s")
        server, port = url.removesuffix("/ws"), url.removesuffix("/ws").rpartition(":")[2]
        command = cli.start("run", "go", "--server", server, env=ENV)
        await until(lambda: model.asked == 1)
        waiting = cli.start("wait", "last", "--server", server, env=ENV)
        running.signal(signal.SIGTERM)
        await ended(running)
        running, _ = served(cli, "--port", port, "--drain", "2s")
        await until(lambda: model.asked == 2)
        await have_come(server, 2)  # one that comes after the end of the turn is told that none runs
        model.gate.set()
        for each in (command, waiting):
            found = await trio.to_thread.run_sync(each.end)
            assert (found.code, found.out) == (0, "half an answer\n"), found
        running.signal(signal.SIGTERM)
        await ended(running)
    assert model.asked == 2


async def test_a_node_that_drains_leaves_its_turn_to_the_other(cli: Cli) -> None:
    """The turn outlasts the time of the drain, and goes on at the other node, where a shell waits for it."""
    async with model_of(cli) as model:
        (first, url), (second, other) = (served(cli, "--node-name", name) for name in ("first", "second"))
        async with connected(url) as client:
            session_id, number = await begun(client)
            assert cli.run("nodes", "drain", "first").code == 0
            await told_to_ask_again(client, number)
        await ended(first)
        await until(lambda: model.asked == 2)
        await waited_at(other, cli, model, session_id)
        await answered(other, session_id)
        second.signal(signal.SIGTERM)
        await ended(second)
    assert model.asked == 2
