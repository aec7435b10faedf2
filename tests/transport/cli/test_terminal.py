"""The commands on a terminal: a pseudo-terminal with the process as its session."""

import json
import re
import termios

import pytest

from tests.transport.cli.fakes import screen_of
from tests.transport.cli.process import FOOTER, SLOW
from tests.transport.cli.terminals import CTRL_C, CTRL_D, Terminal
from warren.transport.cli.turns.taking import FIRST_WORDS, NO_MODEL


def test_an_answer_streams(terminal: Terminal) -> None:
    """Text is on the screen before the turn has ended; the line about the session comes under it."""
    terminal.start("run", "x", "-m", terminal.cli.script({"chunks": ["first ", "second"], "chunk_delay": 0.3}))
    assert terminal.read_until("first").endswith("first")
    assert "second" not in terminal.seen
    code, _ = terminal.end()
    assert code == 0
    assert re.fullmatch(rf"first second\n{FOOTER}\n", screen_of("first" + terminal.seen))


def test_ctrl_c_interrupts(terminal: Terminal) -> None:
    """Ctrl-C keeps what is on the screen, says what it does, and the command ends with an error of one line."""
    terminal.start("run", "x", "-m", terminal.cli.script(SLOW))
    terminal.read_until("half")
    terminal.type(CTRL_C)
    code, screen = terminal.end()
    assert code == 1
    assert re.search(rf"\n{FIRST_WORDS}\nError: .*\[AGENT_ERROR\]\n$", screen)


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_colors(terminal: Terminal, env: dict[str, str]) -> None:
    """An error is red on a terminal, unless NO_COLOR is set."""
    terminal.start("run", "x", "-m", "nonsense", **env)
    assert terminal.end()[0] == 2
    assert ("\x1b[31m" in terminal.seen) is not bool(env)


def test_a_prompt_has_to_come_from_somewhere(terminal: Terminal) -> None:
    """Without a prompt and without a pipe, `run` does not wait in silence."""
    terminal.start("run")
    code, screen = terminal.end()
    assert code == 2
    assert "Error: prompt: is missing" in screen


def test_a_prompt_can_be_typed(terminal: Terminal) -> None:
    """With -, what is typed up to Ctrl-D is the prompt."""
    terminal.start("run", "-")
    terminal.type("typed text\n" + CTRL_D)
    code, screen = terminal.end()
    assert code == 0
    assert screen.count("typed text\n") == 2


@pytest.mark.parametrize(("args", "told"), [([], True), (["-m", "echo"], False), (["--output", "json"], False)])
def test_who_answers(terminal: Terminal, args: list[str], *, told: bool) -> None:
    """A newcomer without any key is told why the answer is an echo."""
    terminal.start("run", "x", *args)
    assert (NO_MODEL in terminal.end()[1]) is told


def test_tables(terminal: Terminal) -> None:
    """On a terminal lists have titles."""
    termios.tcsetwinsize(terminal.theirs, (24, 200))
    terminal.cli.run("run", "x", "--label", "team=a")
    terminal.start("sessions", "list")
    titles, row, *_ = terminal.end()[1].splitlines()
    assert titles.split() == ["session", "updated", "messages", "tokens", "state", "model", "labels", "title"]
    assert row.split()[-2:] == ["team=a", "x"]


def test_tables_on_a_narrow_terminal(terminal: Terminal) -> None:
    """On 80 columns each session is one line with its title, named by the end of its id, which commands take."""
    termios.tcsetwinsize(terminal.theirs, (24, 80))
    prompt = "éü words " * 20
    session_id = json.loads(terminal.cli.run("run", prompt, "--output", "json").out)["session_id"]
    terminal.start("sessions", "list")
    titles, row = terminal.end()[1].splitlines()
    assert titles.split() == ["session", "updated", "model", "title"]
    shown, _, _, model, title = row.split(maxsplit=4)
    assert (shown, model) == (session_id[-12:], "echo")
    assert len(row) == 80
    assert title.endswith("…")
    assert prompt.startswith(title.removesuffix("…"))
    assert terminal.cli.run("sessions", "show", shown).code == 0


def test_show_renders_the_answer(terminal: Terminal) -> None:
    """On a terminal the model's Markdown is rendered, and cannot steer the terminal."""
    model = terminal.cli.script({"text": "**bold** \x1b]0;title\x07 word"})
    terminal.cli.run("run", "x", "-m", model)
    terminal.start("sessions", "show", "last")
    code, screen = terminal.end()
    assert code == 0
    assert re.search(r"\nuser · [-0-9]+ [:0-9]+\nx\n", screen)
    assert "bold \ufffd]0;title\ufffd word" in screen
    assert "**" not in screen
    assert "\x1b]0;" not in terminal.seen


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 130, 1), (CTRL_C, 130, 1), (CTRL_C + "y\n", 130, 1)]
)
def test_delete_asks(terminal: Terminal, answer: str, code: int, left: int) -> None:
    """On a terminal a session is deleted only if the user agrees; a Ctrl-C counts from the moment of the question."""
    terminal.cli.run("run", "x")
    terminal.start("sessions", "delete", "last")
    terminal.read_until("[y/N]: ")
    terminal.type(answer)
    assert terminal.end()[0] == code
    assert len(terminal.cli.run("sessions", "list").out.splitlines()) == left


def test_delete_can_be_told_not_to_ask(terminal: Terminal) -> None:
    """--yes is the user's word."""
    terminal.cli.run("run", "x")
    terminal.start("sessions", "delete", "last", "--yes")
    code, screen = terminal.end()
    assert code == 0
    assert screen.startswith("deleted ")


def test_a_chat(terminal: Terminal) -> None:
    """Lines are answered under a prompt, a line can be edited and called back, and /quit leaves."""
    terminal.start("chat")
    assert "/help" in terminal.read_until("> ")
    terminal.type("hellx\x7fo\n")
    assert "\nhello\n" in screen_of(terminal.read_until("tokens"))
    terminal.read_until("> ")
    terminal.type("\x1b[A\n")  # the arrow up
    assert "\nhello\n" in screen_of(terminal.read_until("tokens"))
    terminal.read_until("> ")
    terminal.type("/quit\n")
    assert terminal.end()[0] == 0


def test_ctrl_c_in_a_chat(terminal: Terminal) -> None:
    """Ctrl-C ends the answer and returns to the prompt; there it leaves, and the terminal is as it was."""
    before = termios.tcgetattr(terminal.theirs)
    terminal.start("chat", "-m", terminal.cli.script(SLOW, {"text": "whole"}))
    terminal.read_until("> ")
    terminal.type("one\n")
    terminal.read_until("half")
    terminal.type(CTRL_C)
    terminal.read_until("[AGENT_ERROR]")
    terminal.read_until("> ")
    terminal.type("two\n")
    terminal.read_until("whole")
    terminal.read_until("> ")
    terminal.type("not sent" + CTRL_C)
    code, screen = terminal.end()
    assert code == 130  # of the Ctrl-C at the prompt: the interrupted answer is no failure
    assert "Traceback" not in screen
    assert termios.tcgetattr(terminal.theirs) == before
    said = terminal.cli.run("sessions", "show", "last").out
    assert "\nassistant (cancelled):\nhalf \n\nuser:\ntwo\n" in said
    assert "not sent" not in said


@pytest.mark.parametrize(("key", "exit_code"), [(CTRL_D, 0), (CTRL_C, 130)])
def test_leaving_a_chat(terminal: Terminal, key: str, exit_code: int) -> None:
    """Ctrl-D and Ctrl-C at the prompt leave on a line of their own; the exit code tells which it was."""
    terminal.start("chat")
    terminal.read_until("> ")
    terminal.type(key)
    code, screen = terminal.end()
    assert code == exit_code
    assert screen.endswith("\n")
