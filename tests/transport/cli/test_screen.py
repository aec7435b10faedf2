"""The look of a turn on a terminal."""

import io
from decimal import Decimal

import pytest

from tests.support.envelopes import KEPT, resumed_turn
from tests.transport.cli.fakes import ID, FakeTerminal, envelope, screen_of
from warren.base.errors import AgentError, BudgetExhaustedError, StoreError
from warren.conversation import codec
from warren.conversation.event_text import text_of_event
from warren.conversation.events import (
    BudgetWarning,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    Event,
    ModelSwitched,
    Retrying,
    TextComplete,
    TextDelta,
    ToolCallRequested,
    ToolExecutionCompleted,
    TurnStarted,
)
from warren.conversation.usage import Usage
from warren.conversation.views import TurnResult
from warren.transport.cli.settings.options import Mode, Options
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.turns.screen import Screen, footer, trace


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show it on a terminal of a known size that can move its cursor."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")


RESULT = TurnResult(ID, "the answer", steps=2, usage=Usage(12, 34))


def screen_on(out: io.StringIO, *, stream: bool | None = None, mode: Mode | None = None) -> tuple[Screen, io.StringIO]:
    """Return a screen and its stderr."""
    err = io.StringIO()
    return Screen.of(Options(stream=stream, mode=mode or Mode()), Streams(out, err)), err


def test_a_pipe_gets_the_final_answer_alone() -> None:
    """Piped, stdout has the answer and one newline; the line about the session is on stderr."""
    screen, err = screen_on(out := io.StringIO())
    screen.show([envelope(TextDelta("thinking aloud")), envelope(TurnStarted(1)), envelope(TextDelta("the "))])
    assert out.getvalue() == ""
    screen.finish(RESULT)
    assert out.getvalue() == "the answer\n"
    assert err.getvalue() == f"session {ID} · 2 steps · tokens 12 in/34 out\n"


@pytest.mark.parametrize("text", ["ends\n", "ends"])
def test_an_answer_ends_with_one_newline(text: str) -> None:
    """A newline is added where the model wrote none."""
    screen, _ = screen_on(out := io.StringIO())
    screen.finish(TurnResult(ID, text))
    assert out.getvalue() == "ends\n"


def test_a_terminal_gets_the_answer_as_it_comes() -> None:
    """On a terminal text is there before the turn has ended, and not again at its end."""
    screen, _ = screen_on(out := FakeTerminal())
    screen.show([envelope(TextDelta("the "))])
    assert out.screen == "the"
    screen.show([envelope(TextDelta("answer")), envelope(TextComplete("the answer"))])
    screen.finish(RESULT)
    assert out.screen == "the answer\n"


TEXT = """# Rabbits

They **dig**, and eat:

1. grass
2. *clover*

```python
def dig(): pass
```

The end.
"""
RENDERED = ["Rabbits", "They dig, and eat:", "1 grass", "2 clover", "def dig(): pass", "The end."]


@pytest.mark.parametrize("size", [1, 7, len(TEXT)])
def test_markdown_is_rendered_on_a_terminal(size: int) -> None:
    """However the answer is cut: on the screen is in the end what it would be in one piece, without its marks."""
    screen, _ = screen_on(out := FakeTerminal())
    for at in range(0, len(TEXT), size):
        screen.show([envelope(TextDelta(TEXT[at : at + size]))])
    screen.show([envelope(TextComplete(TEXT))])
    screen.finish(TurnResult(ID, TEXT))
    assert [line.strip() for line in out.screen.splitlines() if line.strip()] == RENDERED
    assert "\n\nThe end.\n" in "\n".join(line.rstrip() for line in out.screen.split("\n"))


def test_a_block_is_on_the_screen_while_it_grows() -> None:
    """Of one that is longer than the screen the last lines are, and all of it once it is complete."""
    screen, _ = screen_on(out := FakeTerminal())
    screen.show([envelope(TextDelta("first *paragraph*\n\nand the sec"))])
    assert out.screen == "first paragraph\n\nand the sec"
    items = "".join(f"* item {number}\n" for number in range(200))
    screen.show([envelope(TextDelta(f"ond\n\n{items}"))])
    shown = out.screen.splitlines()
    assert len(shown) < 80
    assert shown[-1].endswith("item 199")
    screen.show([envelope(TextDelta("\nbehind it"))])
    assert sum("item" in line for line in out.screen.splitlines()) == 200
    assert out.screen.endswith("\n\nbehind it")


def test_code_without_an_end_is_shown() -> None:
    """A very long block of code is on the screen as it is written, and rendered when the answer ends."""
    screen, _ = screen_on(out := FakeTerminal())
    lines = "".join(f"line{number} = {number}\n" for number in range(400))
    for at in range(0, len(lines), 500):
        screen.show([envelope(TextDelta(("```python\n" if not at else "") + lines[at : at + 500]))])
    assert "line399 = 399" in out.screen
    assert "line0 = 0" not in out.screen
    screen.finish(TurnResult(ID, ""))
    assert [line.strip() for line in out.screen.splitlines() if "=" in line] == lines.splitlines()


def test_words_are_not_cut_at_the_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the answer nor in what is said beside it; a pipe gets the lines as they are."""
    monkeypatch.setenv("COLUMNS", "25")
    text = "seventeen rabbits live below the meadow"
    for terminal in (True, False):
        out, err = (FakeTerminal(), FakeTerminal()) if terminal else (io.StringIO(), io.StringIO())
        screen = Screen.of(Options(stream=True), Streams(out, err))
        screen.show([envelope(TextDelta(text)), envelope(TextComplete(text))])
        screen.fail(StoreError(text))
        for file in (out, err):
            shown = screen_of(file.getvalue())
            assert (max(map(len, shown.splitlines())) <= 25) == terminal
            assert text in " ".join(line.strip() for line in shown.splitlines())


def test_a_terminal_is_not_steered_by_the_model() -> None:
    """Control characters reach a pipe as they are and a terminal made harmless."""
    for out, shown in ((FakeTerminal(), "a\ufffd[2Jb c"), (io.StringIO(), "a\x1b[2Jb\n\tc")):
        screen, _ = screen_on(out, stream=True)
        screen.show([envelope(TextDelta("a\x1b[2Jb\n\tc"))])
        assert screen_of(out.getvalue()) == shown if out.isatty() else out.getvalue() == shown


def test_a_remark_on_a_terminal_begins_its_own_line() -> None:
    """A remark ends an open line of the answer on a terminal, but adds nothing to an answer in a pipe."""
    for out, shown in ((FakeTerminal(), "half\n"), (io.StringIO(), "half")):
        screen, err = screen_on(out, stream=True)
        screen.show([envelope(TextDelta("half")), envelope(Retrying(2, 3, "overloaded", 500))])
        assert screen_of(out.getvalue()) == shown
        assert err.getvalue() == "overloaded; trying again in 0.5 s (2 of 3)\n"


def test_an_answer_that_another_model_begins_anew() -> None:
    """The screen says that the text so far does not count, and the new answer begins on a line of its own."""
    for out in (FakeTerminal(), io.StringIO()):
        screen, err = screen_on(out, stream=True)
        switched = ModelSwitched("a", "b", "overloaded", discarded=True)
        screen.show(
            [envelope(each) for each in (TextDelta("half"), switched, TextDelta("whole"), TextComplete("whole"))]
        )
        shown = screen_of(out.getvalue()) if out.isatty() else out.getvalue()
        assert shown.split() == ["half", "whole"]
        assert err.getvalue() == "a: overloaded; b answers, from the beginning\n"


def test_an_answer_that_is_given_anew_after_an_interruption() -> None:
    """What is on the screen stays there: a line says that it does not count, and the answer begins on a new one."""
    for out in (FakeTerminal(), io.StringIO()):
        screen, err = screen_on(out, stream=True)
        screen.show(resumed_turn())
        shown = screen_of(out.getvalue()) if out.isatty() else out.getvalue()
        assert shown.split() == ["let", "me", "see", "half", "whole"]
        assert "\n" in shown[shown.index("half") : shown.index("whole")]
        said = "the turn goes on after an interruption (1); text of an unfinished step no longer counts"
        assert [line for line in err.getvalue().splitlines() if not line.startswith("tool ")] == [said]


def test_an_interruption_as_json() -> None:
    """A program gets the event itself."""
    screen, err = screen_on(io.StringIO(), mode=Mode(json=True, verbose=True))
    screen.show(resumed_turn())
    told = [codec.parse(line)["event"] for line in err.getvalue().splitlines()]
    assert {"type": "turn_resumed", "resumed": 1, "kept_seq": len(KEPT)} in told


def test_json_is_one_object_on_stdout() -> None:
    """With --output json stdout has the result alone and stderr nothing."""
    screen, err = screen_on(out := io.StringIO(), stream=True, mode=Mode(json=True))
    screen.show([envelope(TextDelta("the ")), envelope(Retrying(2, 3, "overloaded", 500)), "a remark"])
    screen.finish(RESULT)
    assert codec.from_data(TurnResult, codec.parse(out.getvalue())) == RESULT
    assert out.getvalue().count("\n") == 1
    assert err.getvalue() == ""


def test_verbose_json_has_an_object_a_line_on_stderr() -> None:
    """Events and the error come as JSON, one a line."""
    screen, err = screen_on(io.StringIO(), mode=Mode(json=True, verbose=True))
    screen.show([envelope(TextDelta("x"), seq=7)])
    screen.fail(AgentError("it was interrupted", session_id=ID, cause="cancelled"))
    event, error = map(codec.parse, err.getvalue().splitlines())
    assert event["event"] == {"type": "text_delta", "delta": "x"}
    assert event["seq"] == 7
    assert error == AgentError("it was interrupted", session_id=ID, cause="cancelled").body()


def test_verbose_does_not_stream_into_its_own_events() -> None:
    """On a terminal that shows events the answer comes whole, unless streaming was asked for."""
    verbose = Mode(verbose=True)
    assert not screen_on(FakeTerminal(), mode=verbose)[0].streaming
    assert screen_on(FakeTerminal(), stream=True, mode=verbose)[0].streaming


def test_a_trace_names_the_event_and_cuts_long_values() -> None:
    """A line of --verbose has time, number, type and fields, and a bounded length."""
    line = trace(envelope(ToolCallRequested("c1", "look", {"text": "x" * 5000}), seq=42))
    assert line.startswith('03:04:05.678901 42 tool_call_requested id="c1" name="look" args={"text":"xxx')
    assert line.endswith("…")
    assert len(line) < 500


def test_the_answer_of_a_failed_turn_is_not_lost() -> None:
    """Text that an error carries goes to stdout, once: what was streamed already is not repeated."""
    error = StoreError("disk full", session_id=ID, details={"text": "precious"})
    screen, err = screen_on(out := io.StringIO())
    screen.fail(error)
    assert out.getvalue() == "precious\n"
    assert err.getvalue() == f"Error: disk full (session {ID}) [SESSION_STORE_ERROR]\n"
    screen, _ = screen_on(out := FakeTerminal())
    screen.show([envelope(TextDelta("precious"))])
    screen.fail(error)
    assert out.screen == "precious\n"


def test_a_turn_that_goes_on_elsewhere_can_be_waited_for() -> None:
    """The line under the error is the command; JSON has the error alone."""
    error = AgentError("it is shutting down", session_id=ID, cause="shutting_down", details={"goes_on": True})
    for json, lines in ((False, 2), (True, 1)):
        screen, err = screen_on(io.StringIO(), mode=Mode(json=json))
        screen.fail(error)
        assert err.getvalue().count("\n") == lines
        assert (f"`warren wait {ID}` waits for the end of the turn" in err.getvalue()) == (not json)


def test_a_screen_shows_one_turn_after_another() -> None:
    """After a failed streamed turn, the next answer of a chat is shown even if it comes without deltas."""
    screen, _ = screen_on(out := FakeTerminal())
    screen.show([envelope(TextDelta("half"))])
    screen.fail(BudgetExhaustedError("used up", details={"text": ""}))
    screen.finish(TurnResult(ID, "whole"))
    screen.finish(TurnResult(ID, "again"))
    assert out.screen == "half\nwhole\nagain\n"


@pytest.mark.parametrize(
    ("event", "remark"),
    [
        (ToolCallRequested("c", "add", {"a": 1}), 'tool add {"a":1}'),
        (ToolExecutionCompleted("c", "add", "no", is_error=True, duration_ms=3), 'tool add failed: "no"'),
        (ToolExecutionCompleted("c", "add", "3", is_error=False, duration_ms=3), None),
        (BudgetWarning("tool_calls", 8, 10, 80.0), "80 % of the tool calls budget is used"),
        (CompactionStarted(1000, 900, 40), "compacting the context, 40 messages"),
        (CompactionCompleted(55, 40, 9), "compacted: 40 messages became 9"),
        (CompactionFailed("the model is down", "provider_error"), "not compacted: the model is down"),
        (TextDelta("x"), None),
    ],
)
def test_remarks(event: Event, remark: str | None) -> None:
    """A user is told of tools, retries, budgets and compactions, and of nothing else."""
    assert text_of_event(event) == remark


def test_an_estimate_is_marked_in_the_footer() -> None:
    """Guessed token counts are not shown as exact."""
    assert footer(TurnResult(ID, "x", 1, usage=Usage(1, 2, estimated=True))).endswith(
        "1 step · tokens about 1 in/2 out"
    )


def test_the_footer_tells_cached_tokens_and_the_cost() -> None:
    """Tokens of the prompt cache are told apart, and the cost is shown to the cent at least; an unknown one is not."""
    usage = Usage(1_200, 34, cache_creation_tokens=200, cache_read_tokens=900, cost=Decimal("0.001250"))
    assert footer(TurnResult(ID, "x", 1, usage=usage)).endswith(
        "tokens 1200 in (900 cached, 200 written)/34 out · $0.00125"
    )
    for cost, shown in (("2", "$2.00"), ("0", "$0.00"), ("12.3456789", "$12.345679")):
        assert footer(TurnResult(ID, "x", 1, usage=Usage(1, 2, cost=Decimal(cost)))).endswith(f"1 in/2 out · {shown}")
    assert "$" not in footer(TurnResult(ID, "x", 1, usage=Usage(1, 2)))
