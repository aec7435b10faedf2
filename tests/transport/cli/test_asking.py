"""Tool calls that wait for the user's word, in front of a user and where there is none."""

import io
import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_service import FakeService, sessions_of
from tests.transport.cli.fakes import ID, FakeTerminal, envelope
from tests.transport.cli.process import Cli
from tests.transport.cli.terminals import CTRL_C, CTRL_D, Terminal
from warren.conversation.categories import Decision
from warren.conversation.events import ToolApprovalRequested, ToolApprovalResolved
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.turns.asking import MAY_HAVE_RUN, NOBODY, ONCE, QUESTION, ApprovalQueue, Asker
from warren.transport.cli.turns.taking import FIRST_WORDS

WHO_KNOWS = {"tool_calls": [{"name": "datetime_now", "args": {}}]}
ASKED = ("--builtins", "--ask", "builtins")


def request(call: str = "c1", name: str = "dig") -> ToolApprovalRequested:
    """Return the news of a call that waits."""
    return ToolApprovalRequested(call, name, {"where": "here"}, "mcp", 1000)


@contextmanager
def typed(*lines: str) -> Iterator[tuple[Asker, int, io.StringIO]]:
    """Give someone who asks, where the user types, and what they see; the lines are typed already."""
    reader, writer = os.pipe()
    os.write(writer, "".join(lines).encode())
    screen = FakeTerminal()
    try:
        yield Asker(Streams(io.StringIO(), screen), terminal=True, descriptor=reader), writer, screen
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("answer", "allow"),
    [("y\n", True), ("YES \n", True), ("a\n", True), ("always\n", True), ("n\n", False), ("no\n", False)],
)
async def test_an_answer(answer: str, *, allow: bool) -> None:
    """The user sees which tool it is and with what, and answers in a word or a letter."""
    with typed(answer) as (asker, _, screen):
        assert await asker.decide(request()) == Decision(allow, remember=answer.startswith("a"))
        assert screen.getvalue() == f'the model wants to use dig (mcp): {{"where":"here"}}\n{QUESTION}'


async def test_what_is_no_answer_is_asked_again() -> None:
    """Neither an empty line nor another word allows anything."""
    with typed() as (asker, writer, screen):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.decide, request())
            for number, line in enumerate(("\n", "yep\n", "\xff\n", "n\n"), start=1):
                await wait_all_tasks_blocked()
                assert screen.getvalue().count(QUESTION) == number
                os.write(writer, line.encode("latin-1"))


async def test_the_question_of_a_hook() -> None:
    """The user sees it before they answer, without what would move the cursor."""
    with typed("y\n") as (asker, _, screen):
        assert await asker.decide(attrs.evolve(request(), question="Is it \x1b[2Jlost?")) == Decision(allow=True)
        assert screen.getvalue().endswith(f"lost?\n{QUESTION}")
        assert "\x1b[2J" not in screen.getvalue()


async def test_always_is_no_answer_about_a_call_that_may_have_run() -> None:
    """The user is told that it may have run, and answers about it alone."""
    with typed() as (asker, writer, screen):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.decide, attrs.evolve(request("c2"), may_have_run=True))
            await wait_all_tasks_blocked()
            assert screen.getvalue().endswith(f"{MAY_HAVE_RUN}\n{ONCE}")
            os.write(writer, b"a\n")
            await wait_all_tasks_blocked()
            assert screen.getvalue().count(ONCE) == 2
            os.write(writer, b"n\n")


async def test_a_question_that_is_given_up_takes_no_line() -> None:
    """A line that is typed after it is there for the next reader."""
    with typed() as (asker, writer, screen):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.decide, request())
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert screen.getvalue().endswith(f"{QUESTION}\n")
        os.write(writer, b"the next line\n")
        assert os.read(asker.descriptor, 100) == b"the next line\n"


def test_what_was_typed_before_the_question_is_no_answer() -> None:
    """On a terminal a line that was typed ahead allows nothing."""

    async def ask() -> bool:
        allowed = None
        async with trio.open_nursery() as nursery:

            async def decide() -> None:
                nonlocal allowed
                allowed = (await asker.decide(request())).allow

            nursery.start_soon(decide)
            await wait_all_tasks_blocked()
            os.write(ours, b"n\n")
        assert allowed is not None
        return allowed

    ours, theirs = pty.openpty()
    asker = Asker(Streams(io.StringIO(), FakeTerminal()), terminal=True, descriptor=theirs)
    os.write(ours, b"y\n")
    assert trio.run(ask) is False
    os.close(ours)
    os.close(theirs)


async def test_a_call_that_waits_no_longer_is_not_asked_about() -> None:
    """One that has timed out gives way to the next one, which is answered."""
    service = FakeService(sessions=sessions_of(ID))
    with typed() as (asker, writer, screen):
        waiting = ApprovalQueue(service, asker, lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.run)
            for call in ("c1", "c2", "c3"):
                waiting.note(envelope(request(call)))
                waiting.shown(envelope(request(call)))
            await wait_all_tasks_blocked()
            for call in ("c1", "c2"):
                waiting.note(envelope(ToolApprovalResolved(call, "dig", "timeout")))
            await wait_all_tasks_blocked()
            os.write(writer, b"y\n")
            await wait_all_tasks_blocked()
            waiting.asking.cancel()
        assert screen.getvalue().count(QUESTION) == 2
    (told,) = service.called("approve_tool")
    assert (told["call_id"], told["decision"]) == ("c3", "allow")


async def test_a_call_that_is_asked_about_again_is_answered_once() -> None:
    """The process that goes on with a turn asks anew: the earlier question gives way, and leaves the answer to it."""
    service = FakeService(sessions=sessions_of(ID))
    with typed() as (asker, writer, screen):
        waiting = ApprovalQueue(service, asker, lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.run)
            for _ in range(2):
                waiting.note(envelope(request("c1")))
                waiting.shown(envelope(request("c1")))
                await wait_all_tasks_blocked()
            waiting.note(envelope(request("c2")))
            waiting.shown(envelope(request("c2")))
            os.write(writer, b"y\n")
            await wait_all_tasks_blocked()
            assert len(service.called("approve_tool")) == 1
            waiting.asking.cancel()
        assert screen.getvalue().count(QUESTION) == 3
    (told,) = service.called("approve_tool")
    assert (told["call_id"], told["decision"]) == ("c1", "allow")


def test_without_a_terminal_nothing_is_allowed(cli: Cli) -> None:
    """The call is refused at once, stderr has a sentence on it, and the turn goes on; an option allows all calls."""
    model = cli.script(WHO_KNOWS, {"text": "done"})
    ended = cli.run("run", "x", "-m", model, *ASKED)
    assert (ended.code, ended.out) == (0, "done\n")
    assert f"datetime_now was not run: {NOBODY}; --approve-all allows it\n" in ended.err
    assert f"refused: {NOBODY}" in cli.run("sessions", "show", "last").out
    ended = cli.run("run", "x", "-v", "-m", model, *ASKED, "--approve-all")
    assert (ended.code, ended.out) == (0, "done\n")
    assert " tool_execution_completed " in ended.err


def test_a_chat_asks(terminal: Terminal) -> None:
    """The question is under the call; `a` allows it and the later ones of the tool."""
    model = terminal.cli.script(WHO_KNOWS, {"text": "done"})
    terminal.start("chat", "-m", model, *ASKED)
    terminal.read_until("> ")
    terminal.type("one\n")
    assert "the model wants to use datetime_now (builtins): {}" in terminal.read_until(QUESTION)
    terminal.type("a\n")
    terminal.read_until("tokens")
    terminal.read_until("> ")
    terminal.type("two\n")
    assert QUESTION not in terminal.read_until("tokens")
    terminal.read_until("> ")
    terminal.type(CTRL_D)
    assert terminal.end()[0] == 0
    assert terminal.cli.run("sessions", "show", "last").out.count("[ok] 20") == 2


def test_ctrl_c_while_asked_interrupts_the_turn(terminal: Terminal) -> None:
    """The call is not run, the chat goes on with the next line, and that line is no answer to the old question."""
    model = terminal.cli.script(WHO_KNOWS, {"text": "done"})
    terminal.start("chat", "-m", model, *ASKED)
    terminal.read_until("> ")
    terminal.type("one\n")
    terminal.read_until(QUESTION)
    terminal.type(CTRL_C)
    terminal.read_until(FIRST_WORDS)
    terminal.read_until("[AGENT_ERROR]")
    terminal.read_until("> ")
    terminal.type("y\n")
    terminal.read_until("tokens")
    terminal.read_until("> ")
    terminal.type("/quit\n")
    assert terminal.end()[0] == 0
    shown = terminal.cli.run("sessions", "show", "last").out
    assert "user:\ny\n" in shown
    assert "[ok]" not in shown


def test_a_yes_behind_a_ctrl_c_allows_nothing(terminal: Terminal) -> None:
    """The Ctrl-C comes first even if both are there at once."""
    terminal.start("run", "x", "-m", terminal.cli.script(WHO_KNOWS, {"text": "done"}), *ASKED)
    terminal.read_until(QUESTION)
    terminal.type(CTRL_C + "y\n")
    code, screen = terminal.end()
    assert (code, "[AGENT_ERROR]" in screen) == (1, True)
    assert "[ok]" not in terminal.cli.run("sessions", "show", "last").out


def test_a_run_on_a_terminal_asks(terminal: Terminal) -> None:
    """A no is told to the model, and the end of the input is one."""
    terminal.start("run", "x", "-m", terminal.cli.script(WHO_KNOWS, {"text": "done"}), *ASKED)
    terminal.read_until(QUESTION)
    terminal.type(CTRL_D)
    code, screen = terminal.end()
    assert (code, "done" in screen) == (0, True)
    assert "[error] not run: it was refused" in terminal.cli.run("sessions", "show", "last").out
