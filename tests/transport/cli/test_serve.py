"""`warren serve` as a process, with clients over real sockets."""

import contextlib
import signal
import socket
import sqlite3
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected

from tests.transport.cli.process import SLOW, WITHOUT, Cli, one_line
from tests.transport.cli.serving import Client, connected, serve
from tests.transport.rest.clients import Event, Events, client, create, events, problem, seqs


async def everything(client: Client) -> list[Any]:
    """Return what a client still gets until its connection ends."""
    received = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            received.append(await client.receive())
    return received


def named(message: Any) -> str | int:
    """Return a reply's id, an event's type, or the name of another notification."""
    if "id" in message:
        return int(message["id"])
    return str(message["params"]["event"]["type"] if message["method"] == "session/event" else message["method"])


def last_said(cli: Cli) -> str:
    """Return what the last session's transcript shows."""
    return cli.run("sessions", "show", "last").out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_serves_until_a_signal(cli: Cli, number: signal.Signals) -> None:
    """It says where it listens, answers clients, shares its store with other commands, and ends with 0."""
    running, url = serve(cli, "-m", "echo")
    async with connected(url) as client:
        result = await client.call("session/create", prompt="hello")
        assert result["text"] == "hello"
        assert result["session_id"] in cli.run("sessions", "list").out
    running.signal(number)
    ended = running.end()
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert cli.run("resume", "last", "again").out == "again\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_running_turn_is_parked_and_its_caller_told(cli: Cli, number: signal.Signals) -> None:
    """Its caller gets the error and the close, in this order; a second client gets the close. No end is told."""
    running, url = serve(cli, "-m", cli.script(SLOW))
    async with connected(url) as client, connected(url) as other:
        session = (await client.call("session/create", prompt=None))["session_id"]
        await other.call("session/subscribe", session_id=session)
        turn = await client.send("turn/start", session_id=session, prompt="go")
        await client.event("text_delta")
        await other.event("text_delta")
        running.signal(number)
        received = await everything(client)
        assert [named(message) for message in received] == [turn]
        assert received[-1]["error"]["data"]["code"] == "AGENT_ERROR"
        assert received[-1]["error"]["data"]["details"]["cause"] == "shutting_down"
        assert await everything(other) == []
        assert [each.socket.closed.code for each in (client, other) if each.socket.closed] == [1012, 1012]
        assert (await trio.to_thread.run_sync(running.end)).code == 0
    assert last_said(cli).endswith("\nuser:\ngo\n")


async def test_a_running_turn_may_finish(cli: Cli) -> None:
    """After SIGTERM a turn has its time: its caller gets the answer, new ones are refused, the server ends with 0."""
    script = cli.script({"chunks": ["a ", "whole ", "answer"], "chunk_delay": 0.3})
    running, url = serve(cli, "-m", script, "--drain", "20s")
    async with connected(url) as client, connected(url) as other:
        session = (await client.call("session/create", prompt=None))["session_id"]
        turn = await client.send("turn/start", session_id=session, prompt="go")
        await client.event("text_delta")
        running.signal(signal.SIGTERM)
        while (await other.call("health"))["status"] != "degraded":
            pass
        refused = await other.refused("session/create", prompt="me too")
        assert refused["data"]["details"]["cause"] == "shutting_down"
        while (message := await client.receive()).get("id") != turn:
            pass
        assert message["result"]["text"] == "a whole answer"
        assert (await trio.to_thread.run_sync(running.end)).code == 0
    assert "\nassistant:\na whole answer\n" in last_said(cli)


async def test_a_killed_server_loses_the_turn_in_flight_alone(cli: Cli) -> None:
    """After SIGKILL in mid-turn, the command line goes on with the session from its last finished turn."""
    running, url = serve(cli, "-m", cli.script({"text": "done"}, SLOW))
    async with connected(url) as client:
        session = (await client.call("session/create", prompt="one"))["session_id"]
        client.events.clear()
        await client.send("turn/start", session_id=session, prompt="two")
        await client.event("text_delta")
        running.process.kill()
        running.end()
    assert cli.run("resume", session[-12:], "three", "-m", "echo").out == "three\n"
    said = last_said(cli)
    assert "\nuser:\none\n\nassistant:\ndone\n\nuser:\nthree\n" in said


async def test_a_second_signal_ends_it_at_once(cli: Cli) -> None:
    """While the end in order waits for a locked store, another signal ends the process by that signal."""
    running, url = serve(cli, "-m", cli.script(SLOW))
    async with connected(url) as client:
        await client.send("session/create", prompt="go")
        await client.event("text_delta")
        lock = sqlite3.connect(cli.folder / ".rkat" / "sessions.sqlite3")
        lock.execute("BEGIN IMMEDIATE")
        running.signal(signal.SIGTERM)
        await everything(client)  # the gateway said goodbye, the turn is to be stored
        running.signal(signal.SIGTERM)
        assert running.process.wait(2) == -signal.SIGTERM
        lock.close()


def port_of(url: str) -> int:
    """Return the port of a WebSocket's address."""
    port = httpx.URL(url).port
    assert port is not None
    return port


async def ask(http: httpx.AsyncClient, session: str, answers: list[httpx.Response]) -> None:
    """Run a turn; note what came of it, where anything came."""
    with contextlib.suppress(httpx.TransportError):
        answers.append(await http.post(f"/sessions/{session}/messages", json={"prompt": "two"}))


async def test_a_killed_server_goes_on_with_its_sessions(cli: Cli) -> None:
    """After SIGKILL in mid-turn, another server goes on with the session over HTTP, from its last finished turn."""
    running, url = serve(cli, "-m", cli.script({"text": "done"}, SLOW))
    async with client(port_of(url)) as http, trio.open_nursery() as nursery:
        session = await create(http, prompt="one")
        async with events(port_of(url), session) as followed:
            nursery.start_soon(ask, http, session, [])
            await followed.until("text_delta")
            running.process.kill()
            running.end()
    _, url = serve(cli)
    async with client(port_of(url)) as http:
        assert (await http.get(f"/sessions/{session}")).json()["state"]["last_assistant_text"] == "done"
        again = {"prompt": "three", "model": "echo"}
        assert (await http.post(f"/sessions/{session}/messages", json=again)).json()["session_id"] == session
        async with events(port_of(url), session, "?after_seq=0") as followed:
            told = await followed.until("run_completed") + await followed.until("run_completed")
        assert told[-1].data["event"]["result"] == "three"
        assert seqs(told) == sorted(set(seqs(told)))


async def test_a_client_that_saw_a_turn_begin_hears_that_it_was_lost(cli: Cli) -> None:
    """After SIGKILL in mid-turn, who comes back is told once, on both kinds of stream; who saw less is told nothing."""
    running, url = serve(cli, "-m", cli.script({"text": "done"}, SLOW))
    async with connected(url) as socket, client(port_of(url)) as http:
        session = await create(http, prompt="one")
        stored = (await http.get(f"/sessions/{session}/history")).json()["total"]
        last = max(seqs(await _told(port_of(url), session, "run_completed")))
        await socket.call("session/subscribe", session_id=session)
        await socket.send("turn/start", session_id=session, prompt="two")
        await socket.event("text_delta")
        seen = socket.events[-1]["seq"]
        running.process.kill()
        running.end()
    running, url = serve(cli, "-m", "echo")
    for _ in range(2):  # before somebody goes on with the session, and after
        async with connected(url) as socket, client(port_of(url)) as http:
            told = await _told(port_of(url), session, "run_failed", after=seen)
            assert [each.data["event"]["cause"] for each in told] == ["crash"]
            await socket.call("session/subscribe", session_id=session, after_seq=seen)
            await socket.event("run_failed")
            (event,) = socket.events
            assert (event["seq"], event["event"]) == (told[0].id, told[0].data["event"])
            assert seen < event["seq"]
            socket.events.clear()
            await socket.call("session/subscribe", session_id=session, after_seq=event["seq"])
            assert (await socket.call("turn/start", session_id=session, prompt="three", model="echo"))[
                "text"
            ] == "three"
            kinds = [each["event"]["type"] for each in socket.events]
            assert (kinds[0], kinds[-1], "run_failed" in kinds) == ("run_started", "run_completed", False)
            # Who saw nothing of the lost turn misses nothing.
            told = await _told(port_of(url), session, "run_completed", after=last)
            assert told[0].data["event"]["type"] == "run_started"
            total = (await http.get(f"/sessions/{session}/history")).json()["total"]
        stored += 2
        assert total == stored


async def _told(port: int, session: str, kind: str, after: int = 0) -> list[Event]:
    """Return a session's events above a number, up to one of a kind."""
    async with events(port, session, f"?after_seq={after}") as followed:
        return await followed.until(kind)


async def test_a_signal_ends_streams_and_answers_callers(cli: Cli) -> None:
    """SIGTERM ends a stream whole, tells who waits for a turn, stores the turn, and the server ends with 0."""
    running, url = serve(cli, "-m", cli.script(SLOW))
    answers: list[httpx.Response] = []
    async with client(port_of(url)) as http, trio.open_nursery() as nursery:
        session = await create(http)
        async with await trio.open_tcp_stream("127.0.0.1", port_of(url)) as stream:
            followed = await Events(stream).open(f"/sessions/{session}/events")
            nursery.start_soon(ask, http, session, answers)
            await followed.until("text_delta")
            running.signal(signal.SIGTERM)
            await followed.rest()
        ended = await trio.to_thread.run_sync(running.end)
        assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert problem(answers[0])[:2] == (500, "AGENT_ERROR")
    assert answers[0].json()["details"]["cause"] == "shutting_down"
    assert last_said(cli).endswith("\nuser:\ntwo\n")


async def test_the_defaults_of_its_sessions(cli: Cli) -> None:
    """Model, system prompt and store of the command line are those of sessions that name none."""
    model = cli.script({"text": "as scripted"})
    running, url = serve(cli, "--model", model, "--system", "be brief", "--store", "elsewhere")
    async with connected(url) as client:
        assert (await client.call("session/create", prompt="x"))["text"] == "as scripted"
    running.signal(signal.SIGTERM)
    running.end()
    assert "\nsystem:\nbe brief\n" in cli.run("sessions", "show", "last", "--store", "elsewhere").out


async def test_clients_may_name_no_file_of_the_server(cli: Cli) -> None:
    """A script is a file: of those the settings name they may use each, and of others they learn nothing."""
    (cli.folder / "secret.json").write_text('{"password": "hunter2"}')
    model, other = cli.script({"text": "as scripted"}), cli.script({"text": "another"}, name="other.json")
    (cli.folder / "config.toml").write_text('[models."scripted:other.json"]\n')
    running, url = serve(cli, "--model", model, "--config", "config.toml")
    async with connected(url) as client:
        assert (await client.call("session/create", prompt="x", model=model))["text"] == "as scripted"
        assert (await client.call("session/create", prompt="x", model=other))["text"] == "another"
        session = (await client.call("session/create", prompt=None))["session_id"]
        for file in ("secret.json", "absent.json", "/etc/passwd"):
            for asked in ({"model": f"scripted:{file}"}, {"model": file, "provider": "scripted"}):
                for method, more in (("session/create", {}), ("turn/start", {"session_id": session})):
                    refusal = await client.refused(method, prompt="x", **asked, **more)
                    assert f"no provider is known for 'scripted:{file}'" in refusal["message"]
    running.signal(signal.SIGTERM)
    running.end()


@pytest.mark.parametrize("command", ["serve", "rpc", "acp", "mcp"])
def test_a_server_whose_sessions_could_have_no_model(cli: Cli, command: str) -> None:
    """A model that nobody has is refused as the server begins, not to each client that names none."""
    for setting, value in (("model", "nope-1"), ("fallback[0]", "nope-1"), ("model", "scripted:absent.json")):
        named = f"WARREN_{setting.partition('[')[0].upper()}"
        refused = one_line(cli.run(command, env={named: value}), 2)
        assert refused.startswith(f"Error: {setting}: ")
        assert value.removeprefix("scripted:") in refused
    refused = one_line(cli.run(command, env={"WARREN_MODEL": "x", "WARREN_PROVIDER": "nope"}), 2)
    assert refused.startswith("Error: provider: ")


async def test_an_option_of_the_server_that_no_client_can_use(cli: Cli) -> None:
    """A client that has not given the option is told whose it is."""
    running, url = serve(cli, "--model", "echo", "--hosted-tools", '{"web_search": {}}')
    async with connected(url) as client:
        refused = await client.refused("session/create", prompt="x")
        assert "echo has no tools of its own (the setting of this runtime" in refused["message"]
        refused = await client.refused("session/create", prompt="x", hosted_tools={"web_search": {}})
        assert "of this runtime" not in refused["message"]
    running.signal(signal.SIGTERM)
    running.end()


async def test_an_ephemeral_server(cli: Cli) -> None:
    """With --ephemeral there is no store."""
    running, url = serve(cli, "--ephemeral")
    async with connected(url) as client:
        assert (await client.call("session/create", prompt="x"))["text"] == "x"
        assert (await client.call("capabilities/get"))["session_store"] is False
    running.signal(signal.SIGTERM)
    assert running.end().code == 0
    assert list(cli.folder.iterdir()) == []


async def test_a_token_and_an_origin(cli: Cli) -> None:
    """Clients have to know the token; a web page has to be on the list."""
    (cli.folder / "token").write_text("secret\n")
    _, url = serve(cli, "--token-file", "token", "--origin", "https://example.org")
    for headers in ({}, {"Authorization": "Bearer secret", "Origin": "https://example.net"}):
        with pytest.RaisesGroup(ConnectionRejected):
            async with connected(url, **headers):
                pass
    async with connected(url, Authorization="Bearer secret", Origin="https://example.org") as client:
        assert (await client.call("health"))["status"] != "failed"


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--host", "0.0.0.0"], 2, "token"),  # noqa: S104 - it has to be refused
        (["--token-file", "absent"], 2, "absent"),
        (["--token-file", "empty"], 2, "empty"),
        (["--origin", "nonsense"], 2, "origins"),
        (["--host", "no.such.host.invalid"], 2, "token"),
        (["--host", ""], 2, "host"),
    ],
)
def test_what_may_not_be_served(cli: Cli, args: list[str], code: int, text: str) -> None:
    """Bad settings are one line that names them, before a store is made."""
    (cli.folder / "empty").write_text("\n")
    line = one_line(cli.run("serve", "--port", "0", *args), code)
    assert text in line
    assert not (cli.folder / ".rkat").exists()


@pytest.mark.parametrize(
    ("args", "env", "told"),
    [
        ([], {}, "no API key is set: the built-in echo model answers"),
        ([], {"ANTHROPIC_API_KEY": "k"}, "answers sessions that name no model"),
        (["-m", "echo"], {}, ""),
    ],
)
def test_it_says_who_answers(cli: Cli, args: list[str], env: dict[str, str], told: str) -> None:
    """If no model is named, stderr has the one that answers, below the address on stdout."""
    running = cli.start("serve", "--port", "0", *args, env=env)
    running.read_until("listening on ")
    if told:
        assert told in running.read_until("\n", error=True)
    running.signal(signal.SIGTERM)
    assert running.end().err == ""


def test_a_port_in_use(cli: Cli) -> None:
    """An address that somebody else has is a line that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = one_line(cli.run("serve", "--port", str(port)), 1)
    assert line == f"Error: cannot listen on http://127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("missing", ["trio_websocket", "starlette"])
def test_without_the_extra_of_the_gateway(cli: Cli, missing: str) -> None:
    """The command says how to install what it needs."""
    line = one_line(cli.run("serve", python=("-c", WITHOUT, missing)), 1)
    assert "pip install 'warren[gateway]'" in line


async def test_the_command_line_beside_a_gateway(cli: Cli) -> None:
    """A session that is idle in the gateway goes on in the shell at once, and then in the gateway again."""
    running, url = serve(cli, "-m", "echo")
    async with connected(url) as client:
        session_id = (await client.call("session/create", prompt="one"))["session_id"]
        await client.call("session/subscribe", session_id=session_id)
        resumed = await trio.to_thread.run_sync(cli.run, "resume", "last", "two")
        assert resumed.out == "two\n"
        await client.event("run_completed")
        assert (await client.call("turn/start", session_id=session_id, prompt="three"))["text"] == "three"
        page = await client.call("session/history", session_id=session_id)
        assert len(page["messages"]) == 6
    running.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(running.end)).code == 0


@pytest.mark.parametrize("by", ["file", "flag"])
async def test_sessions_of_clients_have_limits(cli: Cli, by: str) -> None:
    """A session that is created without a budget has that of the gateway's settings; another one keeps its own."""
    (cli.folder / "limits.toml").write_text("max_steps = 2\n")
    _, url = serve(cli, *(("--config", "limits.toml") if by == "file" else ("--max-steps", "2")))
    async with connected(url) as client:
        for given, steps in (({}, 2), ({"budget": {"max_steps": 3}}, 3)):
            session_id = (await client.call("session/create", prompt=None, **given))["session_id"]
            for _ in range(steps):
                await client.call("turn/start", session_id=session_id, prompt="go on")
            error = await client.refused("turn/start", session_id=session_id, prompt="go on")
            assert error["data"]["code"] == "BUDGET_EXHAUSTED"
