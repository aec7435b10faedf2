"""A chat over lines that the test gives."""

import io
import os
import signal

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_service import FakeService, failing, publishing, until_interrupted
from warren.base.errors import AgentError, BudgetExhaustedError, ProviderError
from warren.transport.cli.settings.options import Options
from warren.transport.cli.terminal.lines import PipedLines
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.turns.chat import Chat
from warren.transport.cli.turns.screen import Screen
from warren.transport.cli.turns.taking import COMPACTING


@attrs.define
class GivenLines:
    """Lines in order; where they end, the end of the input or a user who types nothing."""

    lines: list[bytes]
    endless: bool = False

    async def next(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        if self.lines:
            return self.lines.pop(0)
        if self.endless:
            await trio.sleep_forever()
        return None


def answering() -> FakeService:
    """Return a service with the answer "answer" to every prompt."""
    return FakeService(publishing())


def prompts(service: FakeService, method: str) -> list[tuple[str | None, str]]:
    """Return the session and the prompt of each call of a method."""
    return [(each.get("session_id"), each["prompt"]) for each in service.called(method)]


def a_chat(service: FakeService, session_id: str | None = None) -> tuple[Chat, io.StringIO, io.StringIO]:
    """Return a chat, its stdout and its stderr."""
    streams = Streams(out := io.StringIO(), err := io.StringIO())
    screen = Screen.of(Options(), streams)
    return Chat(service, Options(), screen, session_id), out, err


async def test_each_line_is_a_turn_of_one_session() -> None:
    """The first line makes the session, the others go on with it; empty lines are passed over."""
    service = answering()
    chat, out, _ = a_chat(service)
    await chat.follow(GivenLines([b"one", b"", b"  ", b"two\r", b"/etc/hosts: what is it?"]))
    assert prompts(service, "create_session") == [(None, "one")]
    assert prompts(service, "start_turn") == [("n1", "two"), ("n1", "/etc/hosts: what is it?")]
    assert out.getvalue() == "answer\n" * 3
    assert chat.exit_code == 0


async def test_a_chat_goes_on_with_a_session() -> None:
    """With a session given, even the first line is a further turn."""
    service = answering()
    chat, _, _ = a_chat(service, "s1")
    await chat.follow(GivenLines([b"one"]))
    assert prompts(service, "start_turn") == [("s1", "one")]


@pytest.mark.parametrize("command", [b"/quit", b"/exit", b" /quit "])
async def test_quit_leaves(command: bytes) -> None:
    """A prompt behind /quit is not said."""
    service = answering()
    chat, _, _ = a_chat(service)
    await chat.follow(GivenLines([command, b"never"]))
    assert service.calls == []
    assert chat.exit_code == 0


async def test_help_names_every_command() -> None:
    """/help is on stderr and costs no turn."""
    service = answering()
    chat, out, err = a_chat(service)
    await chat.follow(GivenLines([b"/help"]))
    assert all(command in err.getvalue() for command in ("/help", "/session", "/compact", "/quit"))
    assert out.getvalue() == ""
    assert service.calls == []


async def test_session_shows_the_id() -> None:
    """/session says which session it is, once there is one."""
    chat, _, err = a_chat(answering())
    await chat.follow(GivenLines([b"/session"]))
    assert "no session yet" in err.getvalue()
    await chat.follow(GivenLines([b"one", b"/session"]))
    assert err.getvalue().endswith("n1\n")


@pytest.mark.parametrize(
    ("line", "instructions"),
    [
        (b"/compact", None),
        (b" /compact  ", None),
        (b"/compact mind the cats", "mind the cats"),
        (b"/compact\tcaf\xc3\xa9", "caf\u00e9"),
    ],
)
async def test_compact_is_no_turn(line: bytes, instructions: str | None) -> None:
    """/compact goes to the service with what follows it, and is told of on stderr."""
    service = answering()
    chat, out, err = a_chat(service, "s1")
    await chat.follow(GivenLines([line]))
    assert service.calls == [("compact", {"session_id": "s1", "instructions": instructions})]
    assert out.getvalue() == ""
    assert err.getvalue() == f"{COMPACTING}\ncompacted s1: 8 messages became 3\n"


@pytest.mark.parametrize("line", [b"/compactor", b"please /compact", b"/compact/path x"])
async def test_what_only_looks_like_compact(line: bytes) -> None:
    """Other words are no compaction."""
    service = answering()
    await a_chat(service, "s1")[0].follow(GivenLines([line]))
    assert service.called("compact") == []


async def test_compact_before_the_first_turn() -> None:
    """There is nothing to compact yet, which is said, and is no failure of the chat."""
    service = answering()
    chat, _, err = a_chat(service)
    await chat.follow(GivenLines([b"/compact"]))
    assert (service.calls, chat.exit_code) == ([], 0)
    assert "no session yet" in err.getvalue()


async def test_a_failed_compaction_does_not_end_the_chat() -> None:
    """It is shown as a failed turn is, the next line is said, and the exit code is that of the turns."""
    service = FakeService(publishing(), compaction=AgentError("too short", cause="compaction_failed"))
    chat, out, err = a_chat(service, "s1")
    await chat.follow(GivenLines([b"/compact", b"one"]))
    assert "too short" in err.getvalue()
    assert (out.getvalue(), chat.exit_code) == ("answer\n", 0)


async def test_ctrl_c_during_a_compaction_returns_to_the_lines() -> None:
    """The compaction is interrupted as a turn is, and the next line is taken."""
    service = FakeService(compaction=None)
    chat, _, err = a_chat(service, "s1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chat.follow, GivenLines([b"/compact", b"/session"]))
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)
    assert service.called("interrupt") == [{"session_id": "s1"}]
    assert err.getvalue().endswith("s1\n")


@pytest.mark.parametrize("line", [b"/hlep", b"caf\xe9"])
async def test_a_line_that_cannot_be_said_is_refused(line: bytes) -> None:
    """A mistyped command and bytes that are no text cost no turn and do not end the chat."""
    service = answering()
    chat, _, err = a_chat(service)
    await chat.follow(GivenLines([line, b"one"]))
    assert err.getvalue().startswith("Error: prompt: ")
    assert prompts(service, "create_session") == [(None, "one")]
    assert chat.exit_code == 2


async def test_a_failed_turn_does_not_end_the_chat() -> None:
    """The next line goes on with the session, also where its first turn failed; the first failure is the exit code."""
    service = FakeService(failing(ProviderError("down", session_id="n1")))
    chat, _, err = a_chat(service)
    await chat.follow(GivenLines([b"one"]))
    service.behaviour = failing(BudgetExhaustedError("used up", session_id="n1"))
    await chat.follow(GivenLines([b"two"]))
    assert prompts(service, "start_turn") == [("n1", "two")]
    assert "down" in err.getvalue()
    assert "used up" in err.getvalue()
    assert chat.exit_code == 1


async def test_ctrl_c_during_an_answer_returns_to_the_lines() -> None:
    """The turn is interrupted, the next line is said, and the user's own interrupt is no failure."""
    service = FakeService(until_interrupted())
    chat, _, err = a_chat(service)
    lines = GivenLines([b"one", b"/session"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chat.follow, lines)
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)
    assert service.called("interrupt") == [{"session_id": "n1"}]
    assert "[AGENT_ERROR]" in err.getvalue()
    assert err.getvalue().endswith("n1\n")
    assert chat.exit_code == 0


async def test_a_user_who_sees_a_failure_leaves_with_success() -> None:
    """At a terminal the user has read each error and gone on: neither it nor a mistyped command is the exit code."""
    chat, _, err = a_chat(FakeService(failing(ProviderError("down", session_id="n1"))))
    chat.attended = True
    await chat.follow(GivenLines([b"one", b"/hlep", b"/compact", b"/quit"]))
    assert "down" in err.getvalue()
    assert chat.exit_code == 0


async def test_ctrl_c_between_turns_leaves() -> None:
    """While a line is awaited, Ctrl-C ends the chat, and the exit code says so."""
    chat, _, _ = a_chat(answering())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chat.follow, GivenLines([], endless=True))
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)
    assert chat.exit_code == 130


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"ne\nt", b"wo"], [b"one", b"two"]),
        ([b"\n\nx"], [b"", b"", b"x"]),
        ([], []),
    ],
)
async def test_lines_of_a_pipe(chunks: list[bytes], lines: list[bytes]) -> None:
    """Lines arrive as they were written, however the pipe cuts them, the last one with or without its end."""
    reader, writer = os.pipe()
    source = PipedLines(reader)

    async def write() -> None:
        for chunk in chunks:
            os.write(writer, chunk)
            await wait_all_tasks_blocked(0.01)
        os.close(writer)

    found = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while (line := await source.next()) is not None:
            found.append(line)
    os.close(reader)
    assert found == lines
