"""`warren rpc` as a process: real pipes, real signals, a real store."""

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.transport.cli.process import SLOW, Cli, one_line
from tests.transport.clients import seqs, text
from tests.transport.stdio.client import Far, events, far, line

WORDS = " ".join(str(number) for number in range(20_000))


def begun(client: Far, model: str) -> str:
    """Start a turn that does not end by itself; return its session once it speaks."""
    client.send("session/create", prompt="x", model=model)
    return str(client.until("text_delta")["session_id"])


def shut_down(client: Far) -> Any:
    """Read the last words about a turn that the end of the server ended; return the error's body."""
    error = client.reply(1)["error"]["data"]
    assert (error["code"], error["details"]["cause"]) == ("AGENT_ERROR", "shutting_down")
    return error


def test_a_turn_that_outlives_its_input_is_answered(cli: Cli) -> None:
    """After the end of stdin a turn has the drain time; then it is parked, and its caller told."""
    (cli.folder / "quick.toml").write_text('[limits]\ndrain = "100ms"\n')
    client = far(cli, "--store", "kept", env={"WARREN_CONFIG": "quick.toml"})
    begun(client, cli.script(SLOW))
    process = client.running.process
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    shut_down(client)
    assert process.wait(20) == 0


def test_a_session_over_pipes(cli: Cli) -> None:
    """A turn, its events, its reply; nothing else is on stdout, nothing at all on stderr, and the end is clean."""
    client = far(cli, "--model", "echo")
    assert "turn/start" in client.call("initialize")["methods"]
    answer = client.call("session/create", prompt="hello there")
    assert answer["text"] == "hello there"
    assert events(client.seen)[-1]["event"]["type"] == "run_completed"
    ended = client.end()
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_a_file_over_pipes(cli: Cli) -> None:
    """It is sent in pieces ahead of the prompt that names it; a hash that was not sent is refused by its place."""
    client, photo = far(cli, "--model", "echo"), b"\x89PNG\r\n\x1a\n" + bytes(3000)
    about = {"size": len(photo), "name": "a.png"}
    first = client.call("file/put", data=b64encode(photo[:2000]).decode(), offset=0, **about)
    last = client.call("file/put", data=b64encode(photo[2000:]).decode(), offset=2000, **about)
    assert (first["received"], last["received"]) == (2000, len(photo))
    named = {"sha256": last["attachment"]["sha256"], "name": "a.png"}
    answer = client.call("session/create", prompt="look", attachments=[named])
    assert answer["text"] == f"look\n[image a.png: {len(photo)} bytes]"
    found = client.call("session/attachment", session_id=answer["session_id"], sha256=named["sha256"])
    assert b64decode(found["data"]) == photo
    again = {"session_id": answer["session_id"], "prompt": "look", "attachments": [named, {"sha256": "0" * 64}]}
    assert client.error("turn/start", **again)["data"]["details"]["path"] == "$.attachments[1].sha256"
    assert client.end().code == 0


def test_a_pipe_that_ends_at_once_is_answered(cli: Cli) -> None:
    """A request that a shell pipes in is answered, the last line first or not, before the process ends."""
    ended = cli.run("rpc", "--model", "echo", stdin=line("session/create", 1, prompt="hi") + line("health", 2))
    replies = {message["id"]: message for message in map(json.loads, ended.out.splitlines()) if "id" in message}
    assert replies[1]["result"]["text"] == "hi"
    assert "status" in replies[2]["result"]
    assert (ended.code, ended.err) == (0, "")


def test_the_provider_of_the_command_line_answers_for_every_model(cli: Cli) -> None:
    """`--provider` holds for a model that a client names, when it creates a session and for one turn."""
    client = far(cli, "--provider", "echo", "--model", "b")
    created = client.call("session/create", prompt="hello", model="my-finetune")
    assert created["text"] == "hello"
    turn = client.call("turn/start", session_id=created["session_id"], prompt="again", model="another")
    assert turn["text"] == "again"
    assert client.end().code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_turn_is_a_clean_stop(cli: Cli, number: signal.Signals) -> None:
    """The turn is parked, its caller is told, the exit code is 0, and the next process goes on with the turn."""
    model = cli.script(SLOW)
    client = far(cli, "--store", "kept")
    session_id = begun(client, model)
    began = time.monotonic()
    client.running.signal(number)
    last = shut_down(client)
    assert last["session_id"] == session_id
    ended = client.running.end()
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert time.monotonic() - began < 25  # the model would take a minute
    again = far(cli, "--store", "kept")
    history = again.call("session/history", session_id=session_id)["messages"]
    assert [each["message"]["role"] for each in history] == ["user"]
    again.call("turn/interrupt", session_id=session_id)
    answer = again.call("turn/start", session_id=session_id, prompt="go on", model="echo")
    assert (answer["session_id"], answer["text"]) == (session_id, "go on")
    assert again.end().code == 0


def test_a_killed_process_loses_at_most_the_turn_in_flight(cli: Cli) -> None:
    """After kill -9 the session goes on under its id, with all that was acknowledged."""
    model = cli.script(SLOW)
    client = far(cli, "--store", "kept", "--model", "echo")
    session_id = client.call("session/create", prompt="first")["session_id"]
    client.send("turn/start", session_id=session_id, prompt="lost", model=model)
    client.until("text_delta")
    client.running.process.kill()
    client.running.process.communicate()
    again = far(cli, "--store", "kept", "--model", "echo")
    assert again.call("turn/start", session_id=session_id, prompt="second")["session_id"] == session_id
    said = [entry["message"] for entry in again.call("session/history", session_id=session_id)["messages"]]
    assert [message["content"] for message in said if message["role"] == "user"] == ["first", "second"]
    replayed = events(again.seen)
    again.call("session/subscribe", session_id=session_id, after_seq=0)
    while len(events(again.seen)) < len(replayed) + 3:
        again.next()
    assert events(again.seen)[len(replayed)]["event"] == {
        "type": "run_started",
        "session_id": session_id,
        "prompt": "first",
    }
    assert again.end().code == 0


def test_a_reader_that_comes_late_gets_everything(cli: Cli) -> None:
    """The pipe is full for a while; the turn ends all the same, and every event is there, the reply last."""
    client = far(cli, "--store", "kept", "--model", "echo")
    session_id = client.call("session/create", prompt=None)["session_id"]
    client.raw(line("turn/start", "big", session_id=session_id, prompt=WORDS))
    deadline = time.monotonic() + 20
    while "\t2\t" not in (shown := cli.run("sessions", "list", "--store", "kept").out):
        assert time.monotonic() < deadline, shown
    reply = client.reply("big")
    received = events(client.seen, session_id)
    assert text(received) == reply["result"]["text"] == WORDS
    assert seqs(received) == list(range(received[0]["seq"], received[-1]["seq"] + 1))
    assert client.end().code == 0


def test_a_closed_stdout_stops_no_turn(cli: Cli) -> None:
    """Nobody reads any more; the turns that are asked for are stored, and the end is clean and quiet."""
    reading, writing = os.pipe()
    running = cli.start("rpc", "--store", "kept", "--model", "echo", stdout=writing)
    os.close(writing)
    os.close(reading)
    ended = running.end(b"".join(line("session/create", number, prompt=f"unheard {number}") for number in range(3)))
    assert (ended.code, ended.err) == (0, "")
    listed = cli.run("sessions", "list", "--store", "kept", "--output", "json").data["sessions"]
    assert [row["message_count"] for row in listed] == [2, 2, 2]


PRINTS = """
import os, sys, trio
from warren.transport.rpc.stdio_server import open_stdio

async def main():
    async with open_stdio() as (incoming, outgoing):
        print("from print", flush=True)
        os.system("echo from a child; cat")
        await outgoing.send_all(await incoming.receive_some())

trio.run(main)
"""


def test_nothing_but_protocol_gets_to_stdout(tmp_path: Path) -> None:
    """The output of a library or a child process lands on stderr, and a child cannot eat the input."""
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], input=b"protocol\n", capture_output=True, cwd=tmp_path, timeout=30, check=True
    )
    assert done.stdout == b"protocol\n"
    assert done.stderr == b"from print\nfrom a child\n"


def test_files_in_place_of_pipes(cli: Cli) -> None:
    """Requests can come from a file, and replies go to one."""
    (cli.folder / "in").write_bytes(line("session/create", 1, prompt="hi"))
    with (cli.folder / "in").open("rb") as source, (cli.folder / "out").open("wb") as sink:
        running = cli.start("rpc", "--ephemeral", "--model", "echo", stdin=source, stdout=sink)
        assert running.end().code == 0
    last = (cli.folder / "out").read_text().splitlines()[-1]
    assert json.loads(last)["result"]["text"] == "hi"


@pytest.mark.parametrize(("option", "value"), [("--contract", "9.9"), ("--realm", "../x")])
def test_bad_arguments_are_told_of(cli: Cli, option: str, value: str) -> None:
    """A wrong option is exit code 2 and says which, without a word on stdout."""
    ended = cli.run("rpc", option, value)
    assert (ended.code, ended.out) == (2, "")
    assert value in ended.err
    assert "Traceback" not in ended.err


def test_a_store_that_cannot_be_used_is_one_line(cli: Cli) -> None:
    """A folder that is a file ends the command with a line on stderr, before any protocol."""
    (cli.folder / "taken").write_text("")
    ended = cli.run("rpc", "--store", "taken")
    assert one_line(ended, ended.code)
    assert ended.code != 0


def test_realms_are_stores_of_their_own(cli: Cli) -> None:
    """A session of one realm is there again under its name, and not elsewhere."""
    root = ("--state-root", "root")
    client = far(cli, "--model", "echo", "--realm", "a", *root)
    session_id = client.call("session/create", prompt="x")["session_id"]
    again, other = far(cli, "--realm", "a", *root), far(cli, "--realm", "b", *root)
    assert [row["session_id"] for row in again.call("session/list")["sessions"]] == [session_id]
    assert other.call("session/list") == {"sessions": []}
    assert [each.end().code for each in (client, again, other)] == [0, 0, 0]


def test_an_isolated_store_leaves_nothing_behind(cli: Cli) -> None:
    """Without a root an isolated store is removed at the end; with one it is a new folder there each time."""
    alone = far(cli, "--isolated", env={"TMPDIR": str(cli.folder)})
    assert alone.call("capabilities/get")["session_store"] is True
    assert alone.end().code == 0
    assert not os.listdir(cli.folder)  # noqa: PTH208 - it counts what is there
    kept: dict[str, Any] = far(cli, "--isolated", "--state-root", "root").call("capabilities/get")
    assert kept["session_store"] is True
    assert len(list((cli.folder / "root" / "realms").iterdir())) == 1
