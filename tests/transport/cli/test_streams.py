"""Standard input and output, whole and broken."""

import io
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text

from tests.transport.cli.fakes import FakeTerminal
from warren.base.errors import InvalidParamsError
from warren.transport.cli.terminal.streams import Streams, decode_prompt, visible


@pytest.fixture
def pipe_without_reader() -> Iterator[int]:
    """The writing end of a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_a_reader_that_left_is_no_error(pipe_without_reader: int) -> None:
    """Writing to a broken pipe drops the text, again and again, and leaves nothing to flush."""
    with os.fdopen(pipe_without_reader, "w", encoding="utf-8", closefd=False) as out:
        streams = Streams(out, out)
        for _ in range(3):
            streams.write("text\n")
            streams.note("remark")


def test_a_full_disk_is_an_error_once() -> None:
    """Only a reader that left is passed over; the error leaves nothing to flush either."""
    with Path("/dev/full").open("w", encoding="utf-8") as out:
        with pytest.raises(OSError, match="No space left"):
            Streams(out, io.StringIO()).write("text")
        Streams(out, io.StringIO()).write("text")


def test_nobody_is_told_that_stderr_is_full() -> None:
    """A remark that cannot be written is dropped, now and at the last flush: a command does not fail for it."""
    with Path("/dev/full").open("w", encoding="utf-8") as err:
        Streams(io.StringIO(), err).note("remark")
        err.flush()


def test_a_note_in_a_pipe_is_plain() -> None:
    """Styles and their escapes are for terminals."""
    Streams(io.StringIO(), err := io.StringIO()).note("[bold]x[/bold] é", "red")
    assert err.getvalue() == "[bold]x[/bold] é\n"


def test_a_note_on_a_terminal_is_styled_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets the style, not what the text tries to do to it, and no line break of ours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Streams(io.StringIO(), err := FakeTerminal()).note("a\x1b]0;title\x07" + "x" * 300, "red")
    assert err.getvalue().startswith("\x1b[31ma\ufffd]0;title\ufffdxxx")
    assert err.getvalue().count("\n") == 1


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves a note on a terminal without color."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    Streams(FakeTerminal(), err := FakeTerminal()).note("text", "red")
    assert err.getvalue() == "text\n"


def test_shapes_reach_the_terminal() -> None:
    """The text that rich renders is written to stdout, also where that is a real terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as out:
        Streams(out, out).render(Text("shape"))
        assert b"shape" in os.read(ours, 100)
    os.close(ours)


@pytest.mark.parametrize("text", ["plain", "a\tb\nc", "é ü 漢字 🙂"])
def test_text_stays_as_it_is(text: str) -> None:
    """Letters of any script, tabs and newlines are no control characters."""
    assert visible(text) == text


@pytest.mark.parametrize("control", ["\x00", "\x07", "\x08", "\r", "\x1b", "\x7f", "\x9b"])
def test_controls_become_visible(control: str) -> None:
    """Whatever could move the cursor or begin an escape is replaced."""
    assert visible(f"a{control}b") == "a\ufffdb"


@pytest.mark.parametrize(
    ("raw", "prompt"), [(b"hi\n", "hi"), (b"hi", "hi"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), ("é\n".encode(), "é")]
)
def test_the_newline_at_the_end_is_the_pipes(raw: bytes, prompt: str) -> None:
    """One line end is taken off, not more."""
    assert decode_prompt(raw) == prompt


@pytest.mark.parametrize(
    ("raw", "problem"), [(b"", "empty"), (b" \n", "empty"), (b"ab\xff", "not valid UTF-8 at byte 2")]
)
def test_bad_prompts(raw: bytes, problem: str) -> None:
    """An empty prompt and one that is no text are refused, by the field's name."""
    with pytest.raises(InvalidParamsError, match=problem) as caught:
        decode_prompt(raw)
    assert caught.value.path == "$.prompt"
