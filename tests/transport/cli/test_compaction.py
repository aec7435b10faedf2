"""Compaction as a user meets it: real processes, a real store."""

import json
import re
import signal

import pytest

from tests.transport.cli.compacting import LONG, OFTEN, shown
from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.serving import connected, serve
from warren.transport.cli.turns.taking import COMPACTING, FIRST_WORDS

DISABLED = "Session compaction is disabled (build without 'session-compaction').\n"


def talk(cli: Cli, turns: int, *args: str) -> str:
    """Hold a conversation of long prompts; return its id."""
    session: str = cli.run("run", f"0 {LONG}", "--output", "json", *args).data["session_id"]
    for number in range(1, turns):
        assert cli.run("resume", session, f"{number} {LONG}", *args).code == 0
    return session


def test_a_long_session_is_compacted_by_itself(cli: Cli) -> None:
    """From the threshold on a turn goes on from a summary, says so on stderr, and the conversation stays whole."""
    model = cli.script({"text": "short"})
    session = talk(cli, 3, "-m", model)
    assert shown(cli, session)["state"]["compactions"] == 0
    ended = cli.run("resume", session, "go on", "-m", model, *OFTEN)
    assert ended.out == "short\n"
    assert "compacting the context, 7 messages\ncompacted: 7 messages became 4\n" in ended.err
    data = shown(cli, session)
    assert data["state"]["compactions"] == 1
    assert data["state"]["message_count"] == 8 == len(data["messages"])
    assert [(entry["messages_before"], entry["messages_after"]) for entry in data["compactions"]] == [(7, 4)]


OWN = """
from warren.compaction import CompactionConfig, DefaultCompactor


class Brief(DefaultCompactor):
    def compaction_prompt(self):
        return "Say it in one word."

    def max_summary_tokens(self):
        return 7


brief = Brief(CompactionConfig(200, 1, min_turns_between_compactions=1))
broken = object()
"""


def test_a_strategy_of_ones_own(cli: Cli) -> None:
    """By the file, a variable or a flag: a class or an object of a module, also of one in the working folder."""
    (cli.folder / "mine.py").write_text(OWN)
    session = talk(cli, 3, "-m", cli.script({"text": "short"}))
    (cli.folder / ".rkat" / "config.toml").write_text('[compaction]\ncompactor = "mine:Brief"\n')
    model = cli.script({"text": "short"})
    ways: list[tuple[list[str], dict[str, str]]] = [
        ([], {}),
        ([], {"WARREN_COMPACTOR": "mine:brief"}),
        (["--compactor", "mine:brief"], {"WARREN_COMPACTOR": "no.such:thing"}),
    ]
    for args, environ in ways:
        cli.run("resume", session, f"go on {LONG}", "-m", model, "--no-compaction")
        ended = cli.run("resume", session, "and on", "-m", "echo", *OFTEN, *args, env=environ)
        assert "compacted: " in ended.err, ended
    summaries = [entry["summary"] for entry in shown(cli, session)["compactions"]]
    assert summaries == ["Say it in one word."] * 3  # the echo model answers with what it was asked


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mine", "is not of the form MODULE:NAME"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("mine:nothing", "has no attribute 'nothing'"),
        ("mine:broken", "has no should_compact"),
    ],
)
def test_a_strategy_that_cannot_be_had(cli: Cli, name: str, problem: str) -> None:
    """One line names the setting and what is wrong with it, before anything is asked."""
    (cli.folder / "mine.py").write_text(OWN)
    line = one_line(cli.run("run", "x", "--compactor", name), 2)
    assert line.startswith(f"Error: compactor: {name!r} ")
    assert problem in line


def test_no_compaction_compacts_nothing(cli: Cli) -> None:
    """Turned off, a session grows past any threshold, and nobody is told anything."""
    session = talk(cli, 2, "--no-compaction")
    ended = cli.run("resume", session, "go on", "--no-compaction", env=dict.fromkeys(variables(), "1"))
    assert (ended.code, ended.out, ended.err.count("\n")) == (0, "go on\n", 1)
    assert shown(cli, session)["compactions"] == []


def variables() -> list[str]:
    """Name the variables that would make a compaction due."""
    return ["WARREN_COMPACT_THRESHOLD", "WARREN_COMPACT_EVERY", "WARREN_COMPACT_KEEP"]


def test_the_environment_and_the_file_compact(cli: Cli) -> None:
    """A file, and a variable over it, set when a session is compacted."""
    session = talk(cli, 3)
    path = cli.folder / ".rkat" / "config.toml"
    path.write_text('model = "nonsense"\n[compaction]\nauto_compact_threshold = 200\nrecent_turn_budget = 1\n')
    high = {"WARREN_COMPACT_THRESHOLD": "1000000", "WARREN_MODEL": "echo"}
    assert "compacted" not in cli.run("resume", session, "four", env=high).err
    assert "compacted: " in cli.run("resume", session, "five", "-m", "echo").err
    path.write_text("[compaction]\nenabled = false\n")
    assert one_line(cli.run("compact", session), 1) == DISABLED


def test_a_bad_file_ends_a_command(cli: Cli) -> None:
    """The bad field is named on one line and, for programs, as the path of INVALID_PARAMS."""
    (cli.folder / "mine.toml").write_text("[compaction]\nwindow = 'big'\n")
    line = one_line(cli.run("run", "x", "--config", "mine.toml"), 2)
    assert line == "Error: config.compaction.window: must be an integer (mine.toml:2) [INVALID_PARAMS]\n"
    error = cli.run("sessions", "list", "--output", "json", env={"WARREN_CONFIG": "mine.toml"}).error
    assert error["details"] == {"path": "$.config.compaction.window"}
    assert not (cli.folder / ".rkat").exists()


def test_a_folder_with_a_file_alone_has_no_store(cli: Cli) -> None:
    """Looking makes no store beside the configuration file."""
    (cli.folder / ".rkat").mkdir()
    (cli.folder / ".rkat" / "config.toml").write_text('model = "echo"\n')
    assert cli.run("sessions", "list").err == "no sessions\n"
    assert "there is no store at .rkat" in one_line(cli.run("resume", "last", "x"), 1)
    assert [path.name for path in (cli.folder / ".rkat").iterdir()] == ["config.toml"]
    assert cli.run("run", "x").out == "x\n"


def test_compact_by_hand(cli: Cli) -> None:
    """`compact` says what became of the context; the summary minds the instructions, and is shown when asked for."""
    session = talk(cli, 3)
    ended = cli.run("compact", "last", "--compact-keep", "1", "--instructions", "mind the cats")
    assert (ended.code, ended.out) == (0, f"compacted {session}: 6 messages became 3\n")
    assert ended.err == COMPACTING + "\n"
    plain, verbose = (cli.run("sessions", "show", session, *more).out for more in ([], ["--verbose", "--limit", "1"]))
    assert "compactions: 1\n" in plain
    assert "mind the cats" not in plain
    assert re.search(r"\ncompacted · [\d:\- ]+ · 6 messages became 3:\n.*\bmind the cats\n", verbose, re.DOTALL)
    assert plain.count("\nuser:\n") == 3
    assert cli.run("resume", session, "four").out == "four\n"


def test_compact_in_json(cli: Cli) -> None:
    """A program gets one object: the session and the entry of its compaction history."""
    session = talk(cli, 3)
    ended = cli.run("compact", session, "--compact-keep", "1", "--output", "json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.data["session_id"] == session
    entry = {name: value for name, value in ended.data.items() if name != "session_id"}
    assert (entry["head"], entry["messages_before"], entry["messages_after"]) == (4, 6, 3)
    assert shown(cli, session)["compactions"] == [entry]


def test_nothing_to_compact(cli: Cli) -> None:
    """A session too short to be compacted is left alone; programs get the reason."""
    session = cli.run("run", "x", "--output", "json").data["session_id"]
    text, json_ = cli.run("compact", session), cli.run("compact", session, "--output", "json")
    assert (text.code, text.out) == (1, "")
    assert text.err.endswith("[AGENT_ERROR]\n")
    assert (json_.code, json_.error["code"]) == (1, "AGENT_ERROR")
    details = json_.error["details"]
    assert (details["cause"], details["reason"]) == ("compaction_failed", "not_smaller")
    assert shown(cli, session)["state"]["compactions"] == 0


def test_ctrl_c_interrupts_a_compaction(cli: Cli) -> None:
    """SIGINT ends it through the service; the session is as it was and goes on."""
    model = cli.script({"text": "one"}, {"text": "two"}, {"text": "never", "delay": 30})
    session = talk(cli, 2, "-m", model)
    running = cli.start("compact", session)
    running.read_until(COMPACTING, error=True)
    running.signal(signal.SIGINT)
    ended = running.end()
    assert (ended.code, ended.out) == (1, "")
    assert FIRST_WORDS in ended.err
    assert ended.err.endswith("[AGENT_ERROR]\n")
    state = shown(cli, session)["state"]
    assert (state["compactions"], state["lifecycle"], state["message_count"]) == (0, "stored", 4)
    assert cli.run("resume", session, "three", "-m", "echo").out == "three\n"


@pytest.mark.parametrize(
    "args",
    [
        ["run", "x", "--no-compaction", "--compact-threshold", "9"],
        ["chat", "--no-compaction", "--compact-keep", "9"],
        ["resume", "last", "x", "--no-compaction", "--compact-summary-tokens", "9"],
        ["serve", "--port", "0", "--no-compaction", "--compact-every", "9"],
        ["compact", "last", "--no-compaction", "--context-window", "9"],
        ["compact", "last", "--no-compaction"],
    ],
)
def test_what_needs_compaction_says_so(cli: Cli, args: list[str]) -> None:
    """Without the capability these commands fail at once, with the canonical line and exit code 1, and make nothing."""
    assert one_line(cli.run(*args), 1) == DISABLED
    error = cli.run(*args, "--output", "json").error
    assert error == {"code": "SESSION_COMPACTION_DISABLED", "message": DISABLED.strip(), "retryable": False}
    assert list(cli.folder.iterdir()) == []


def test_compact_needs_a_store(cli: Cli) -> None:
    """There is nothing to compact without one."""
    line = "Session persistence is disabled (build without 'session-store').\n"
    assert one_line(cli.run("compact", "last", "--ephemeral"), 1) == line
    assert "there is no store at .rkat" in one_line(cli.run("compact", "last"), 1)


def test_compact_in_a_chat(cli: Cli) -> None:
    """/compact is no turn: stdout has the answers alone, and the chat goes on."""
    lines = [f"0 {LONG}", f"1 {LONG}", f"2 {LONG}", "/compact mind the cats", "go on"]
    ended = cli.run("chat", "--compact-keep", "1", stdin="\n".join(lines).encode())
    assert (ended.code, ended.out.count("\n"), ended.out.splitlines()[-1]) == (0, 4, "go on")
    assert re.search(rf"\n{COMPACTING}\ncompacted [0-9a-f-]+: 6 messages became 3\n", ended.err)
    data = shown(cli, "last")
    assert data["state"]["compactions"] == 1
    assert data["compactions"][0]["summary"].rstrip().endswith("mind the cats")


def test_compact_in_a_chat_without_compaction(cli: Cli) -> None:
    """The chat says that it is off and goes on; no turn has failed."""
    ended = cli.run("chat", "--no-compaction", stdin=b"one\n/compact\ntwo\n")
    assert (ended.code, ended.out) == (0, "one\ntwo\n")
    assert DISABLED in ended.err


def test_compact_in_a_chat_in_json(cli: Cli) -> None:
    """A program that talks through a pipe gets an object for it too."""
    lines = [f"0 {LONG}", f"1 {LONG}", "/compact"]
    ended = cli.run("chat", "--compact-keep", "0", "--output", "json", stdin="\n".join(lines).encode())
    first, _, compacted = map(json.loads, ended.out.splitlines())
    assert (compacted["session_id"], compacted["messages_before"]) == (first["session_id"], 4)


async def test_a_server_compacts(cli: Cli) -> None:
    """Its clients see how, can do it by hand, and share the result with the command line."""
    running, url = serve(cli, "--compact-keep", "1")
    async with connected(url) as client:
        assert (await client.call("capabilities/get"))["session_compaction"] is True
        assert (await client.call("config/get"))["compaction"]["recent_turn_budget"] == 1
        session = (await client.call("session/create", prompt=f"0 {LONG}"))["session_id"]
        for number in (1, 2):
            await client.call("turn/start", session_id=session, prompt=f"{number} {LONG}")
        entry = await client.call("session/compact", session_id=session)
        assert (await client.call("session/history", session_id=session))["compactions"] == [entry]
        assert shown(cli, session)["compactions"] == [entry]
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


async def test_a_server_that_does_not_compact(cli: Cli) -> None:
    """A call that asks for it is refused by its code; all else works."""
    _, url = serve(cli, "--no-compaction")
    async with connected(url) as client:
        assert (await client.call("capabilities/get"))["session_compaction"] is False
        assert "compaction" not in await client.call("config/get")
        session = (await client.call("session/create", prompt="x"))["session_id"]
        for method, params in (
            ("session/compact", {"session_id": session}),
            ("session/create", {"prompt": "x", "compaction": {}}),
        ):
            error = await client.refused(method, **params)
            assert (error["code"], error["data"]["code"]) == (-32004, "SESSION_COMPACTION_DISABLED")
        assert len((await client.call("session/list"))["sessions"]) == 1
