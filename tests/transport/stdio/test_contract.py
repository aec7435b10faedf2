"""`warren rpc --contract` as a process: which options it takes, which store it uses, and how it refuses a client."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.transport.cli.process import SLOW, Cli
from tests.transport.stdio.client import Far, far, line
from warren.base.errors import InvalidParamsError
from warren.transport.cli.pipe import rpc
from warren.transport.rpc.stdio_server import StdioConfig

IGNORED = [
    *("--tcp", "127.0.0.1:9", "--allow-remote", "--live-ws", "127.0.0.1:0", "--live-webrtc"),
    *("--live-tool-timeout-ms", "5", "--live-ws-scheme", "wss", "--realtime-ws", "127.0.0.1:0"),
    *("--instance", "i", "--realm-backend", "sqlite", "--context-root", "c", "--user-config-root", "u"),
]


def deferred(client: Far, prompt: str) -> str:
    """Create a session whose first turn is to come; return its id."""
    return str(client.call("session/create", prompt=prompt, initial_turn="deferred")["session_id"])


def said(client: Far, session_id: str) -> list[Any]:
    """Return what users have said."""
    messages = client.call("session/history", session_id=session_id)["messages"]
    return [each["content"] for each in messages if each["role"] == "user"]


@pytest.mark.parametrize("option", [["--contract"], ["--contract=0.9"]])
def test_the_options_of_rkat_rpc_are_taken(cli: Cli, option: list[str]) -> None:
    """Those that mean nothing here change nothing; stderr names the ones that ask for another way in."""
    client = far(cli, *option, *IGNORED)
    assert client.call("initialize")["contract_version"] == "0.9.6"
    ended = client.end()
    assert ended.code == 0
    note = "Note: --tcp, --live-ws, --realtime-ws, --live-webrtc: not available here; only stdin and stdout are served."
    assert ended.err == note + "\n"


def test_the_prompt_of_a_deferred_session_outlives_the_process(cli: Cli) -> None:
    """It comes before the prompt of the first turn, once, also in another process and after a kill."""
    client = far(cli, "--contract", "0.8")
    session_id = deferred(client, "I am Ann.")
    client.running.process.kill()
    client.running.process.wait()
    again = far(cli, "--contract", "0.8")
    assert again.call("turn/start", session_id=session_id, prompt="Who am I?")["text"] == "I am Ann.\n\nWho am I?"
    assert again.call("turn/start", session_id=session_id, prompt="And now?")["text"] == "And now?"
    assert said(again, session_id) == ["I am Ann.\n\nWho am I?", "And now?"]
    assert again.end().code == 0


def test_the_prompt_of_a_deferred_session_outlives_turns_that_never_began(cli: Cli) -> None:
    """A first turn that is refused leaves it for the next one; a blank prompt is not kept."""
    client = far(cli, "--contract", "0.8", "--isolated")
    session_id = deferred(client, "first")
    error = client.error("turn/start", session_id=session_id, prompt="x", model="nobody-knows")
    assert error["data"]["details"]["path"] == "$.model"
    assert client.call("turn/start", session_id=session_id, prompt="second")["text"] == "first\n\nsecond"
    blank = deferred(client, "")
    assert client.call("turn/start", session_id=blank, prompt="only")["text"] == "only"
    client.end()


def test_an_archived_session_of_an_isolated_store_can_be_read(cli: Cli) -> None:
    """An isolated process keeps its sessions until it ends, and leaves nothing behind."""
    client = far(cli, "--contract", "0.8", "--isolated", env={"TMPDIR": str(cli.folder)})
    session_id = client.call("session/create", prompt="hello")["session_id"]
    client.call("session/archive", session_id=session_id)
    assert client.call("session/read", session_id=session_id)["message_count"] == 2
    assert said(client, session_id) == ["hello"]
    assert client.call("session/list")["sessions"] == []
    assert client.end().code == 0
    assert list(cli.folder.iterdir()) == []


def test_the_provider_of_a_session_is_the_one_it_was_created_with(cli: Cli) -> None:
    """A model whose name tells nothing of its provider is shown with the provider that was named for it."""
    client = far(cli, "--contract", "0.8", "--ephemeral", env={"OPENAI_API_KEY": "k"})
    made = client.call("session/create", prompt="x", initial_turn="deferred", model="my-finetune", provider="openai")
    assert client.call("session/read", session_id=made["session_id"])["provider"] == "openai"
    scripted = client.call("session/create", prompt="x", initial_turn="deferred", model=cli.script(SLOW))
    assert client.call("session/read", session_id=scripted["session_id"])["provider"] == "scripted"
    client.end()


REFUSED = [
    (["--contract", "0.3"], 2, "the supported ones are 0.4 to 0.9"),
    (["--contract", "0.6", "--realmm", "x"], 2, "--realmm"),
]


@pytest.mark.parametrize(("args", "code", "told"), REFUSED)
def test_a_client_that_is_refused_reads_why(cli: Cli, args: list[str], code: int, told: str) -> None:
    """Its first request is answered with the error that stderr and the exit code tell, too."""
    ended = cli.run("rpc", *args, stdin=line("initialize", 7))
    assert (ended.code, told in ended.err) == (code, True)
    answer = json.loads(ended.out)
    assert (answer["id"], answer["error"]["data"]["code"]) == (7, "INVALID_PARAMS")
    assert told in answer["error"]["message"]


def test_a_client_of_a_store_that_cannot_be_opened_reads_why(cli: Cli) -> None:
    """A runtime that does not start tells its client."""
    (cli.folder / "taken").write_text("no folder", encoding="utf-8")
    ended = cli.run("rpc", "--contract", "0.6", "--store", "taken", stdin=line("initialize", "a"))
    assert ended.code != 0
    answer = json.loads(ended.out)
    assert answer["id"] == "a"
    assert "taken" in answer["error"]["message"]


@pytest.mark.parametrize(
    "before",
    [
        line("initialized"),
        b"nonsense\n\n",
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n',
        b"[" + line("initialized").strip() + b"]\n",
        (rpc.MOST_LINES - 1) * line("initialized"),
    ],
)
def test_the_first_request_may_come_behind_other_lines(cli: Cli, before: bytes) -> None:
    """Notifications and lines that are no request do not take the answer from it; the next request gets none."""
    ended = cli.run("rpc", "--contract", "0.3", stdin=before + line("initialize", 7) + line("initialize", 8))
    assert (ended.code, ended.data["id"]) == (2, 7)


def test_a_large_first_request_is_answered(cli: Cli) -> None:
    """It may be as long as any line."""
    ended = cli.run("rpc", "--contract", "0.3", stdin=line("session/create", 7, prompt="x" * 1_000_000))
    assert (ended.code, ended.data["id"]) == (2, 7)


def test_each_request_of_a_batch_is_told(cli: Cli) -> None:
    """The answer is a batch, too, also if no pipe holds it at once."""
    lines = [line("initialized"), *(line("initialize", number) for number in range(rpc.MOST_REQUESTS - 1))]
    batch = b"[" + b",".join(each.strip() for each in lines) + b"]\n"
    ended = cli.start("rpc", "--contract", "0.3", stdin=subprocess.PIPE).end(batch)
    assert (ended.code, len(ended.out) > 2**16) == (2, True)
    assert [each["id"] for each in ended.data] == list(range(rpc.MOST_REQUESTS - 1))
    assert all("0.4 to 0.9" in each["error"]["message"] for each in ended.data)
    assert StdioConfig().max_in_flight == rpc.MOST_REQUESTS
    assert StdioConfig().max_message_bytes == rpc.MOST_BYTES


def test_a_client_that_reads_nothing_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets of the answer what its pipe holds, and the command ends with its error."""

    def fail() -> None:
        raise InvalidParamsError("x" * 2**17, path="$.model")

    (given, requests), (answers, taken) = os.pipe(), os.pipe()
    monkeypatch.setattr(rpc, "STDIN", given)
    monkeypatch.setattr(rpc, "STDOUT", taken)
    monkeypatch.setattr(rpc, "MOST_TIME", 0.3)
    os.write(requests, line("initialize", 7))
    with pytest.raises(InvalidParamsError):
        rpc.AnsweringCommand("rpc", callback=fail).main([], standalone_mode=False)
    assert 0 < len(os.read(answers, 2**18)) <= 2**17
    for each in (given, requests, answers, taken):
        os.close(each)


def test_nobody_is_told_where_nobody_asked(cli: Cli) -> None:
    """An empty stdin, a notification and no JSON get no answer."""
    for stdin in (b"", line("initialized"), b"nonsense\n"):
        ended = cli.run("rpc", "--contract", "0.3", stdin=stdin)
        assert (ended.code, ended.out) == (2, "")
