"""The order of the events of steps and tools, as the contract has it."""

import pytest

from warren.transport.load.stream import StreamCheck
from warren.transport.load.target import Seen

TOOL_TURN: list[tuple[str, str, str | int]] = [
    ("run_started", "look", ""),
    ("turn_started", "", 0),
    ("text_delta", "let me ", ""),
    ("text_delta", "see", ""),
    ("text_complete", "let me see", ""),
    ("tool_call_requested", "lookup", "c1"),
    ("tool_call_requested", "lookup", "c2"),
    ("tool_execution_started", "lookup", "c1"),
    ("tool_execution_started", "lookup", "c2"),
    ("tool_execution_completed", "fine", "c2"),
    ("tool_result_received", "lookup", "c2"),
    ("tool_execution_completed", "fine", "c1"),
    ("tool_result_received", "lookup", "c1"),
    ("turn_completed", "", ""),
    ("compaction_started", "", ""),
    ("compaction_completed", "", ""),
    ("turn_started", "", 1),
    ("retrying", "", ""),
    ("text_delta", "fine", ""),
    ("text_complete", "fine", ""),
    ("turn_completed", "", ""),
    ("run_completed", "fine", ""),
]


PROMPT, CALLS, RESULT, RESULTS = 1, 7, 11, 13
"""The numbers of the events that are committed: a prompt, its calls, the result of the first of them and of both."""


def rest_of_turn(kept: int) -> list[tuple[str, str, str | int]]:
    """Return the events with which another process goes on after those that were kept: an open call runs again."""
    again: list[tuple[str, str, str | int]] = [("tool_execution_started", "lookup", "c1")]
    return [*(again if kept == RESULT else []), *TOOL_TURN[kept:]]


def check(events: list[tuple[str, str, str | int]]) -> StreamCheck:
    """Take events, numbered."""
    stream = StreamCheck("s")
    for seq, (kind, text, ref) in enumerate(events, 1):
        stream.take(Seen(seq, seq, kind, text, ref, "s"))
    stream.complete()
    return stream


def test_a_turn_with_tools_is_fine() -> None:
    """Two tools at once that end in another order, a compaction between two steps, a call that is tried again."""
    stream = check(TOOL_TURN)
    assert stream.violations == []
    assert [(turn.prompt, turn.text, turn.end) for turn in stream.turns] == [("look", "fine", "completed")]


@pytest.mark.parametrize("missing", [1, 4, 5, 7, 9, 10, 12, 13, 16, 18, 20])
def test_no_event_can_be_missing(missing: int) -> None:
    """Whichever it is, something no longer fits."""
    assert check(TOOL_TURN[:missing] + TOOL_TURN[missing + 1 :]).violations


def test_text_that_another_model_replaces_is_no_violation() -> None:
    """Only the text behind the change of the model has to be that of the step."""
    text = [("text_delta", "half", ""), ("model_switched", "", ""), ("text_delta", "fine", "")]
    assert check([*TOOL_TURN[:-4], *text, *TOOL_TURN[-3:]]).violations == []


@pytest.mark.parametrize("kept", [PROMPT, CALLS, RESULT, RESULTS])
def test_a_turn_that_goes_on_is_told_anew_from_what_was_kept(kept: int) -> None:
    """Whatever was shown besides, the answer and the results are those that come after the interruption."""
    for shown in range(kept, len(TOOL_TURN) - 1):
        stream = check([*TOOL_TURN[:shown], ("turn_resumed", "", kept), *rest_of_turn(kept)])
        assert stream.violations == [], shown
        assert [(turn.prompt, turn.text, turn.end) for turn in stream.turns] == [("look", "fine", "completed")]


@pytest.mark.parametrize("missing", [0, 2, 3, 6, 8, -3])
def test_no_event_can_be_missing_after_an_interruption(missing: int) -> None:
    """The result of a kept call, the end of its step and the next step have to come."""
    rest = rest_of_turn(RESULT)
    del rest[missing]
    assert check([*TOOL_TURN[:-2], ("turn_resumed", "", RESULT), *rest]).violations


def test_a_call_that_was_not_kept_has_no_result() -> None:
    """It was requested after the newest event that counts."""
    stream = check([*TOOL_TURN[:9], ("turn_resumed", "", 6), ("tool_result_received", "lookup", "c2")])
    assert [violation.rule for violation in stream.violations] == ["order", "terminal"]


def test_a_compaction_within_a_step_is_found() -> None:
    """It comes before the step begins."""
    stream = check([*TOOL_TURN[:2], ("compaction_started", "", ""), *TOOL_TURN[2:]])
    assert [violation.rule for violation in stream.violations] == ["order"]


def test_a_failed_turn_may_end_anywhere() -> None:
    """Its text counts, up to the last piece."""
    for length in range(1, len(TOOL_TURN) - 1):
        stream = check([*TOOL_TURN[:length], ("run_failed", "cancelled", "")])
        assert stream.violations == [], length
        assert stream.turns[0].end == "cancelled"
    assert check([*TOOL_TURN[:3], ("run_failed", "cancelled", "")]).turns[0].text == "let me "


def test_a_truncated_stream_is_not_judged_by_what_it_lacks() -> None:
    """It said that events are missing; numbers have to rise all the same."""
    stream = check([*TOOL_TURN[:3], ("stream_truncated", "", ""), ("tool_result_received", "", "c9")])
    assert stream.violations == []
    stream.take(Seen(2, 2, "text_delta", session_id="s"))
    assert [violation.rule for violation in stream.violations] == ["seq"]


def test_merged_deltas_count_as_all_that_they_stand_for() -> None:
    """One that begins within what was told already is told twice."""
    stream = StreamCheck("s")
    stream.take(Seen(1, 1, "run_started", session_id="s"))
    stream.take(Seen(5, 2, "turn_started", "", 0, "s"))
    stream.take(Seen(9, 5, "text_delta", "again", session_id="s"))
    assert [violation.rule for violation in stream.violations] == ["seq"]
