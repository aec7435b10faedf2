"""The commands as a user runs them: real processes, a real store."""

import re
import signal
import subprocess
from decimal import Decimal
from typing import Any

import pytest

from tests.transport.cli.process import FOOTER, SLOW, WITHOUT, Cli, one_line, without_extra
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor

DISABLED = "Session persistence is disabled (build without 'session-store').\n"


def test_run_prints_the_answer(cli: Cli) -> None:
    """`run` writes the plain answer to stdout, the line about the session to stderr, and keeps the session."""
    ended = cli.run("run", "hello there")
    assert (ended.code, ended.out) == (0, "hello there\n")
    assert re.fullmatch(FOOTER + "\n", ended.err)
    assert (cli.folder / ".rkat" / "sessions.sqlite3").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("args", [["run"], ["run", "-"]])
def test_run_reads_a_pipe(cli: Cli, args: list[str]) -> None:
    """Without a prompt, or with -, the prompt is what the pipe brings."""
    assert cli.run(*args, stdin="from a pipe: é\n".encode()).out == "from a pipe: é\n"


def test_run_streams_when_asked(cli: Cli) -> None:
    """With --stream a pipe gets text before the turn has ended."""
    running = cli.start("run", "x", "--stream", "-m", cli.script(SLOW))
    assert running.read_until("half ") == "half "


def test_a_refused_prompt_does_not_spoil_the_session(cli: Cli) -> None:
    """A prompt that the provider refuses is marked in the history, and the next process goes on without it."""
    refusal = {"message": "too rude", "cause": "bad_request"}
    assert cli.run("run", "rude", "-m", cli.script({"error": refusal})).code == 1
    assert cli.run("resume", "last", "polite", "-m", "echo").out == "polite\n"
    shown = cli.run("sessions", "show", "last").out
    assert "\nuser (left out of the model's context):\nrude\n\nuser:\npolite\n" in shown


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_failed_turn_shows_the_text_that_came(cli: Cli, stream: str) -> None:
    """The text before a failure goes to stdout, with the end of its line; why it failed to stderr."""
    model = cli.script({"text": "half of it", "error": {"message": "no more"}})
    for command in (["run", "x"], ["resume", "last", "y"]):
        ended = cli.run(*command, stream, "-m", model)
        assert (ended.code, ended.out) == (1, "half of it\n")
        assert ended.err.startswith("Error: no more")


def test_resume_goes_on(cli: Cli) -> None:
    """A session is continued as `last`, by the end of its id and by its id; its transcript has every turn."""
    session = cli.run("run", "one", "--output", "json").data["session_id"]
    other = cli.run("run", "two", "--output", "json").data["session_id"]
    assert cli.run("resume", "last", "three", "--output", "json").data["session_id"] == other
    assert cli.run("resume", session[-8:], stdin=b"four").out == "four\n"
    assert cli.run("resume", session, "five", "--output", "json").data["session_id"] == session
    shown = cli.run("sessions", "show", session, "--output", "json").data
    said = [entry["message"]["content"] for entry in shown["messages"] if entry["message"]["role"] == "user"]
    assert said == ["one", "four", "five"]
    assert shown["state"]["message_count"] == 6


def test_run_with_options(cli: Cli) -> None:
    """System prompt and labels are the session's from its first turn."""
    cli.run("run", "x", "--system", "be brief", "--label", "team=a", "--label", "n=1")
    shown = cli.run("sessions", "show", "last")
    assert "labels:      n=1 team=a\n" in shown.out
    assert "\nsystem:\nbe brief\n\nuser:\nx\n\nassistant:\nx\n" in shown.out


def test_run_with_a_key(cli: Cli) -> None:
    """The same command again shows the first answer and makes no second session; another prompt is refused."""
    first = cli.run("run", "hello", "--key", "job 7", "--output", "json").data
    assert cli.run("run", "hello", "--key", "job 7", "--output", "json").data == first
    assert cli.run("run", "hello", "--key", "job 7").out == "hello\n"
    assert "prompt" in one_line(cli.run("run", "bye", "--key", "job 7"), 2)
    assert len(cli.run("sessions", "list").out.splitlines()) == 1


def test_titles(cli: Cli) -> None:
    """A title is given with the first prompt, later, or to a fork; lists and the session itself show it."""
    cli.run("run", "first words", "--title", "Mine")
    assert cli.run("sessions", "list").out.splitlines()[0].split("\t")[-1] == "Mine"
    assert cli.run("sessions", "label", "last", "--title", "Other").code == 0
    assert "title:       Other\n" in cli.run("sessions", "show", "last").out
    assert cli.run("sessions", "fork", "last", "--title", "Fork").code == 0
    assert sorted(line.split("\t")[-1] for line in cli.run("sessions", "list").out.splitlines()) == ["Fork", "Other"]
    assert one_line(cli.run("sessions", "label", "last", "--title", " "), 2).startswith(
        "Error: title: must not be empty"
    )


def test_the_environment_sets_options(cli: Cli) -> None:
    """WARREN_STORE, WARREN_MODEL and WARREN_OUTPUT do what the options do."""
    model = cli.script({"text": "scripted answer"})
    environ = {"WARREN_STORE": "kept here", "WARREN_MODEL": model, "WARREN_OUTPUT": "json"}
    assert cli.run("run", "x", env=environ).data["text"] == "scripted answer"
    assert (cli.folder / "kept here").is_dir()
    assert not (cli.folder / ".rkat").exists()
    assert len(cli.run("sessions", "list", env=environ).data["sessions"]) == 1


def test_another_model_takes_over(cli: Cli) -> None:
    """A flag, a variable and a file name the models that take over, and the user sees which one does."""
    model = cli.script({"error": {"message": "no seats", "retryable": True, "retry_after": 3600}})
    ended = cli.run("run", "x", "-m", model, "--fallback", "echo", "--fallback", "nope-1")
    assert one_line(ended, 2).startswith("Error: fallback[1]: no provider is known for 'nope-1'")
    ended = cli.run("run", "x", "-m", model, env={"WARREN_FALLBACK": f"{model} echo"})
    assert (ended.code, ended.out) == (0, "x\n")
    assert f"{model}: no seats; echo answers" in ended.err
    (cli.folder / "warren.toml").write_text(f'model = "{model}"\nfallback = ["echo"]\n', encoding="utf-8")
    ended = cli.run("run", "x", "--config", "warren.toml")
    assert ended.out == "x\n"
    assert f"{model}: no seats; echo answers" in ended.err


def test_tools_of_the_provider(cli: Cli) -> None:
    """A file, a variable and a flag name them; a protocol without them refuses them by name, and {} turns them off."""
    (cli.folder / "warren.toml").write_text("[hosted_tools.web_search]\nmax_uses = 3\n", encoding="utf-8")
    local = ("--base-url", "http://127.0.0.1:9/v1", "-p", "local", "-m", "llama")
    refused = "Error: hosted_tools.web_search: the protocol of OpenAI's chat completions has no tools of its own"
    assert one_line(cli.run("run", "x", *local, "--config", "warren.toml"), 2).startswith(refused)
    named = {"WARREN_HOSTED_TOOLS": '{"web_search": {}}'}
    assert one_line(cli.run("run", "x", *local, env=named), 2).startswith(refused)
    flag = ("--hosted-tools", '{"web_search": {}}')
    assert one_line(cli.run("run", "x", *local, *flag), 2).startswith(refused)
    off = cli.run("run", "x", "-m", "echo", "--config", "warren.toml", "--hosted-tools", "{}", "--verbose")
    assert (off.code, off.out) == (0, "x\n")


def test_ephemeral_keeps_nothing(cli: Cli) -> None:
    """With --ephemeral there is no folder, and the line under the answer says so."""
    ended = cli.run("run", "x", "--ephemeral")
    assert ended.out == "x\n"
    assert ended.err.endswith(" · not stored\n")
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["resume", "last", "x"],
        ["chat", "--resume", "last"],
        ["sessions", "list"],
        ["sessions", "show", "last"],
        ["sessions", "delete", "last"],
        ["sessions", "archive", "last"],
    ],
)
def test_what_needs_a_store_says_so(cli: Cli, args: list[str]) -> None:
    """Without persistence these commands fail at once, with the canonical line and exit code 1."""
    assert one_line(cli.run(*args, "--ephemeral"), 1) == DISABLED
    assert list(cli.folder.iterdir()) == []


def test_disabled_persistence_in_json(cli: Cli) -> None:
    """A program gets the code, and the same words."""
    ended = cli.run("sessions", "list", "--ephemeral", "--output", "json")
    assert ended.error == {
        "code": "SESSION_PERSISTENCE_DISABLED",
        "message": DISABLED.strip(),
        "retryable": False,
    }


def test_list(cli: Cli) -> None:
    """Sessions are lines of fields between tabs, the last used first, archived ones hidden, labels chosen."""
    first = cli.run("run", "one", "--label", "team=a", "--output", "json").data["session_id"]
    second = cli.run("run", "two", "--output", "json").data["session_id"]
    rows = [line.split("\t") for line in cli.run("sessions", "list").out.splitlines()]
    assert [row[0] for row in rows] == [second, first]
    assert rows[1][2:] == ["2", "2", "stored", "echo", "", "team=a", "one"]
    assert cli.run("sessions", "list", "--label", "team=a").out.startswith(first)
    assert cli.run("sessions", "list", "--offset", "1", "--limit", "1").out.startswith(first)
    assert cli.run("sessions", "archive", "last").out == f"archived {second}\n"
    assert [row["session_id"] for row in cli.run("sessions", "list", "--output", "json").data["sessions"]] == [first]
    assert second in cli.run("sessions", "list", "--all").out


def test_an_archived_session_cannot_be_continued(cli: Cli) -> None:
    """It stays readable and is not startable."""
    session = cli.run("run", "x", "--output", "json").data["session_id"]
    assert cli.run("sessions", "archive", session, "--output", "json").data == {"session_id": session, "archived": True}
    assert "[SESSION_NOT_FOUND]" in one_line(cli.run("resume", session, "more"), 1)
    assert "state:       archived\n" in cli.run("sessions", "show", session).out


def test_delete(cli: Cli) -> None:
    """A deleted session is gone; without a terminal nothing is asked."""
    session = cli.run("run", "x", "--output", "json").data["session_id"]
    assert cli.run("sessions", "delete", "last").out == f"deleted {session}\n"
    assert "[SESSION_NOT_FOUND]" in one_line(cli.run("sessions", "show", session), 1)
    assert cli.run("sessions", "list").out == ""


def test_looking_makes_no_store(cli: Cli) -> None:
    """If there is no store, listing shows nothing, all else finds nothing, and none is made."""
    ended = cli.run("sessions", "list")
    assert (ended.code, ended.out, ended.err) == (0, "", "no sessions\n")
    assert cli.run("sessions", "list", "--output", "json").data == {"sessions": []}
    for args in (["resume", "last", "x"], ["sessions", "show", "last"], ["sessions", "delete", "last"]):
        assert "there is no store at .rkat" in one_line(cli.run(*args), 1)
    assert list(cli.folder.iterdir()) == []


async def test_an_ambiguous_name_lists_the_candidates(cli: Cli) -> None:
    """An end that several ids share is refused with those ids, and exit code 2."""
    async with open_supervisor(Config(store=StoreConfig(cli.folder / ".rkat"))) as service:
        sessions = {(await service.create_session(None)).session_id for _ in range(17)}
    ends = [session[-1] for session in sessions]
    shared = next(end for end in ends if ends.count(end) > 1)
    line = one_line(cli.run("sessions", "show", shared), 2)
    assert all(session in line for session in sessions if session.endswith(shared))


ERROR = {"error": {"message": "the model is down"}}
CALLS_A_TOOL = {"tool_calls": [{"name": "nothing"}]}


@pytest.mark.parametrize(
    ("args", "step", "code", "name"),
    [
        (["run", "x", "-m", "scripted:script.json"], ERROR, 1, "PROVIDER_ERROR"),
        (["run", "x", "-m", "scripted:script.json", "--max-steps", "1"], CALLS_A_TOOL, 2, "BUDGET_EXHAUSTED"),
        (["run", "x", "-m", "scripted:script.json", "--max-duration", "50ms"], SLOW, 2, "BUDGET_EXHAUSTED"),
        (["run", "x", "-m", "scripted:absent.json"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", "-m", "nonsense"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", "-p", "nonsense"], ERROR, 2, "INVALID_PARAMS"),
        (["run", ""], ERROR, 2, "INVALID_PARAMS"),
        (["run", "-"], ERROR, 2, "INVALID_PARAMS"),
        (["run", b"caf\xe9"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", b"--label=caf\xe9=x"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", b"--store=caf\xe9"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", b"--caf\xe9"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", "y"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", "--max-tokens", "0"], ERROR, 2, "INVALID_PARAMS"),
        (["run", "x", "--ephemeral", "--store", "s"], ERROR, 2, "INVALID_PARAMS"),
        (["resume"], ERROR, 2, "INVALID_PARAMS"),
        (["resume", "0198a000-0000-7000-8000-000000000000", "x", "--store", "."], ERROR, 1, "SESSION_NOT_FOUND"),
    ],
)
def test_exit_codes(cli: Cli, args: list[str | bytes], step: dict[str, Any], code: int, name: str) -> None:
    """Every failure has its code from the table, as text and as JSON, and never a traceback."""
    cli.script(step)
    text, json_ = cli.run(*args), cli.run(*args, "--output", "json")
    assert (text.code, json_.code, json_.error["code"]) == (code, code, name)
    assert "Error: " in text.err
    assert "Traceback" not in text.err + json_.err
    assert (text.out, json_.out) == ("half \n" if step is SLOW else "", "")


def test_a_failed_first_turn_is_a_session(cli: Cli) -> None:
    """The error names the session, which can be continued."""
    model = cli.script({"error": {"message": "down", "times": 1}}, {"text": "up again"})
    session = cli.run("run", "x", "-m", model, "--output", "json").error["session_id"]
    assert cli.run("resume", session, "y", "-m", "echo").out == "y\n"


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_is_quick(cli: Cli, args: list[str]) -> None:
    """The list of the commands loads neither the store nor the network nor the event loop."""
    ended = cli.run(*args, python=("-X", "importtime", "-m", "warren"))
    loaded = {line.rpartition("|")[2].strip() for line in ended.err.splitlines()}
    assert "click" in loaded
    assert loaded.isdisjoint({"apsw", "httpx", "trio", "trio_websocket", "rich", "usearch"})
    assert ended.code == 0


def test_an_ordinary_command_leaves_the_network_alone(cli: Cli) -> None:
    """A turn with the built-in model loads no HTTP client, and in a pipe no rich."""
    ended = cli.run("run", "x", python=("-X", "importtime", "-m", "warren"))
    loaded = {line.rpartition("|")[2].strip() for line in ended.err.splitlines()}
    assert "apsw" in loaded
    assert loaded.isdisjoint({"httpx", "trio_websocket", "rich", "usearch"})


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_extra(cli: Cli, package: str) -> None:
    """The command says how to install what it needs."""
    line = one_line(cli.run("run", "x", python=("-c", WITHOUT, package)), 1)
    assert "pip install 'warren[cli]'" in line


@pytest.mark.parametrize("args", [["run"], ["resume", "last"]])
def test_a_pipe_beside_a_prompt_is_part_of_it(cli: Cli, args: list[str]) -> None:
    """The text of a pipe follows the prompt, below a blank line; an empty pipe adds nothing."""
    cli.run("run", "first")
    assert cli.run(*args, "Review this:", stdin=b"one\ntwo\n").out == "Review this:\n\none\ntwo\n"
    assert cli.run(*args, "Review this:", stdin=b"\n").out == "Review this:\n"
    assert "not valid UTF-8" in one_line(cli.run(*args, "Review this:", stdin=b"\xff"), 2)


def test_a_pipe_that_stays_open_is_told_of(cli: Cli) -> None:
    """A command that waits for the rest of its prompt says so."""
    running = cli.start("run", "Review this:", stdin=subprocess.PIPE)
    assert "waiting for the end of stdin" in running.read_until("\n", error=True)
    assert running.end(b"late").out == "Review this:\n\nlate\n"


@pytest.mark.parametrize("args", [(), ("-",)])
def test_a_pipe_that_is_the_prompt_is_told_of(cli: Cli, args: tuple[str, ...]) -> None:
    """A command whose prompt is a pipe says that it waits for its end, also when a part of it is there."""
    running = cli.start("run", *args, stdin=subprocess.PIPE)
    assert running.process.stdin is not None
    running.process.stdin.write(b"half ")
    running.process.stdin.flush()
    assert "waiting for the end of stdin, which is the prompt" in running.read_until("\n", error=True)
    assert running.end(b"late").out == "half late\n"


@pytest.mark.parametrize(
    ("step", "out", "told"),
    [
        ({"text": "half an", "stop_reason": "max_tokens"}, "half an\n", "the answer was cut"),
        ({"text": "half an", "stop_reason": "content_filter"}, "half an\n", "a filter"),
        ({"text": "", "stop_reason": "stop_sequence"}, "", "the answer is empty"),
    ],
)
def test_an_answer_that_is_not_whole(cli: Cli, step: dict[str, Any], out: str, told: str) -> None:
    """The command shows what there is, says what is missing, and ends with an exit code of its own."""
    model = cli.script(step)
    for ended in (cli.run("run", "-m", model, "hi"), cli.run("chat", "-m", model, stdin=b"hi\n")):
        assert (ended.code, ended.out) == (3, out), ended
        assert told in ended.err
    shown = cli.run("run", "-m", model, "--output", "json", "hi")
    assert (shown.code, shown.err) == (3, "")
    assert shown.data["stop_reason"] == step["stop_reason"]


def test_an_empty_answer_is_an_error(cli: Cli) -> None:
    """It is asked for once more, and then the line on stderr says what is wrong."""
    ended = cli.run("run", "-m", cli.script({"text": ""}), "hi")
    assert (ended.code, ended.out) == (1, "")
    assert "the model's answer is empty" in ended.err


def test_a_byte_order_mark_is_skipped(cli: Cli) -> None:
    """A mark that an editor or a shell has put before a file or a pipe is no part of it."""
    mark = b"\xef\xbb\xbf"
    (cli.folder / "settings.toml").write_bytes(mark + b'model = "scripted:s.json"\n')
    (cli.folder / "s.json").write_bytes(mark + b'{"steps": [{"text": "dug"}]}')
    (cli.folder / "servers.json").write_bytes(mark + b'{"mcpServers": {}}')
    schema = b'{"type": "object", "properties": {"text": {"type": "string"}}}'
    (cli.folder / "schema.json").write_bytes(mark + schema)
    given = ("--mcp-config", "servers.json", "--config", "settings.toml")
    assert cli.run("run", *given, "hi").out == "dug\n"
    assert cli.run("run", "-m", "echo", "-", stdin=mark + b"hello").out == "hello\n"
    assert cli.run("chat", "-m", "echo", stdin=mark + b"hello\nagain\n").out == "hello\nagain\n"
    assert "schema.json" not in cli.run("run", "-m", "echo", "--output-schema", "schema.json", "hi").err


def test_last_after_a_failed_run(cli: Cli) -> None:
    """`resume last` says that the last session failed and names the one before it, which goes on."""
    whole = cli.run("run", "The key hangs by the door.", "--output", "json").data["session_id"]
    down = cli.script({"error": {"message": "down"}})
    failed = cli.run("run", "x", "-m", down, "--output", "json").error["session_id"]
    ended = cli.run("resume", "last", "again")
    assert ended.code == 1
    told, error = ended.err.splitlines()
    assert told.startswith(
        f"the last session, {failed}, ended with a turn that failed; to go on with the one before it "
    )
    assert "The key hangs" in told
    assert told.endswith(f": warren resume {whole}")
    assert error.startswith("Error: down")
    assert cli.run("resume", whole, "again").out == "again\n"
    assert cli.run("resume", "last", "and again").err.count("\n") == 1


def test_a_shell_alone_names_what_it_needs(cli: Cli) -> None:
    """In the error and in the help."""
    line = one_line(cli.run("run", "x", "--shell"), 2)
    assert "--root DIR" in line
    assert "--root DIR (needed)" in " ".join(cli.run("run", "--help").out.split())


def test_without_the_extra_of_the_store(cli: Cli) -> None:
    """Turns work and say that nothing is kept; a named store, and all that needs one, is refused."""
    without = ("-c", WITHOUT, "apsw")
    ended = cli.run("run", "x", python=without)
    assert ended.out == "x\n"
    assert ended.err.endswith(" · not stored\n")
    for args in (["run", "x", "--store", "s"], ["sessions", "list"], ["resume", "last", "x"]):
        without_extra(cli.run(*args, python=without), DISABLED, "session-store")


@pytest.mark.parametrize("args", [["rpc"], ["mcp"], ["acp"], ["serve", "--port", "0"]])
def test_what_serves_without_the_extra_of_the_store(cli: Cli, args: list[str]) -> None:
    """It runs in memory and says so on stderr, unless it was told to keep nothing; a named store is refused."""
    for more in ([], ["--ephemeral"]):
        running = cli.start(*args, *more, python=("-c", WITHOUT, "apsw"))
        if args[0] == "serve":
            running.read_until("listening on ")
            running.signal(signal.SIGTERM)
        ended = running.end(b"")
        assert ended.code == 0, ended
        assert ended.err.count("sessions are kept in memory and end with this process") == (not more)
    without_extra(cli.run(*args, "--store", "kept", python=("-c", WITHOUT, "apsw")), DISABLED, "session-store")


def test_verbose_shows_events(cli: Cli) -> None:
    """-v writes one line an event to stderr; stdout has the answer alone."""
    ended = cli.run("run", "hello", "-v")
    assert ended.out == "hello\n"
    names = [line.split()[2] for line in ended.err.splitlines()[:-1]]
    assert names[0] == "run_started"
    assert names[-1] == "run_completed"
    assert "text_delta" in names


def test_models(cli: Cli) -> None:
    """The kinds of models are listed with what is missing, and a key is never shown."""
    environ = {"ANTHROPIC_API_KEY": "sk-secret"}
    ended = cli.run("models", env=environ)
    rows = {row[0]: row[2] for row in (line.split("\t") for line in ended.out.splitlines())}
    assert rows["echo"] == rows["claude-*"] == "yes"
    assert "" not in rows.values()  # those of the catalog, too
    assert any(row.startswith("no: OPENAI_API_KEY") for row in rows.values())
    data = cli.run("models", "--output", "json", env=environ)
    assert data.data["default"].startswith("claude-")
    assert "secret" not in ended.out + ended.err + data.out
    catalog = data.data["catalog"]
    assert (catalog["claude-haiku-4-5"]["input"], catalog["claude-haiku-4-5"]["images"]) == ("1", True)
    listed = next(line.split("\t") for line in ended.out.splitlines() if line.startswith("claude-haiku-4-5\t"))
    assert listed == ["claude-haiku-4-5", "anthropic", "yes", "200000", "64000", "1", "5", "0.1", "1.25", "2"]


PRICED = """
[models.echo]
input = 1_000.5
output = 2000
"""


def test_what_a_turn_costs(cli: Cli) -> None:
    """The prices of the user's own file make the cost of a turn and a session, and a budget in money ends them."""
    (cli.folder / ".rkat").mkdir()
    (cli.folder / ".rkat" / "config.toml").write_text(PRICED, encoding="utf-8")
    ended = cli.run("run", "hello", "--output", "json")
    usage = ended.data["usage"]
    cost = (Decimal("1000.5") * usage["input_tokens"] + 2000 * usage["output_tokens"]) / 1_000_000
    assert Decimal(usage["cost"]) == cost
    assert Decimal(cli.run("sessions", "show", "last", "--output", "json").data["billing"]["usage"]["cost"]) == cost
    assert f"· ${cost:.6f}".rstrip("0") in cli.run("sessions", "show", "last").out
    assert "echo\t\t\t\t\t1000.5\t2000" in cli.run("models").out
    assert cli.run("config", "show").out.count("models.echo") == 1
    spent = cli.run("run", "hello", "--max-cost", "0.000001", "--output", "json")
    assert spent.data["usage"]["cost"] > "0"
    again = cli.run("resume", "last", "go on", "--output", "json")
    assert (again.code, again.error["details"]["budget_type"]) == (2, "cost")
    refused = cli.run("run", "hello", "-m", cli.script({"text": "hi"}), "--max-cost", "1")
    assert (refused.code, "are unknown" in refused.err) == (2, True)


def test_chat_through_a_pipe(cli: Cli) -> None:
    """Each line is a turn of one session; the exit code is that of the first turn that failed."""
    model = cli.script({"text": "first"}, {"error": {"message": "down"}}, {"text": "never"})
    ended = cli.run("chat", "-m", model, stdin=b"one\ntwo\n")
    assert (ended.code, ended.out) == (1, "first\n")
    assert "down" in ended.err
    ended = cli.run("chat", "--resume", "last", "-m", "echo", "--output", "json", stdin=b"three\n/quit\nfour\n")
    assert (ended.code, ended.data["text"]) == (0, "three")
    said = cli.run("sessions", "show", "last").out
    assert [line for line in said.splitlines() if line in ("one", "two", "three", "four")][:2] == ["one", "two"]
    assert "four" not in said
