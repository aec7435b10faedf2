"""The text of an answer, made of the events of its turn."""

import hypothesis.strategies as st
from hypothesis import given

from warren.conversation.answer_text import AnswerText
from warren.conversation.events import (
    Event,
    ReasoningDelta,
    RunStarted,
    TextComplete,
    TextDelta,
    TurnStarted,
)

ID = "s1"


def text_of(events: list[Event]) -> str:
    """Return the text that events put on the screen."""
    answer = AnswerText()
    return "".join(answer.text_of(event) for event in events)


@given(st.lists(st.text(max_size=5)), st.text(max_size=5))
def test_an_answer_is_shown_once_however_it_is_cut(pieces: list[str], lost: str) -> None:
    """Deltas and the whole text of a step give that text, also where the last deltas are missing."""
    whole = "".join(pieces) + lost
    events: list[Event] = [RunStarted(ID, "p"), TurnStarted(0), *map(TextDelta, pieces), TextComplete(whole)]
    assert text_of(events) == whole


def test_an_answer_that_turned_out_differently_is_shown_whole() -> None:
    """If a retried call says something else, the text that counts follows on lines of its own."""
    assert text_of([TextDelta("Hel"), TextComplete("Good day")]) == "Hel\n\nGood day"


def test_the_texts_of_steps_are_kept_apart() -> None:
    """A step's text begins below that of the step before; a step without text leaves no gap."""
    events: list[Event] = [TurnStarted(0), TextDelta("one"), TextComplete("one"), TurnStarted(1), TurnStarted(2)]
    assert text_of([*events, TextDelta("two")]) == "one\n\ntwo"


def test_a_new_turn_begins_afresh() -> None:
    """The text of an earlier turn is not taken for the beginning of the next one."""
    first: list[Event] = [RunStarted(ID, "p"), TurnStarted(0), TextComplete("a")]
    assert text_of(first * 2) == "aa"


def test_reasoning_is_no_answer() -> None:
    """The model's reasoning stays off stdout."""
    assert text_of([ReasoningDelta("hm"), TextDelta("yes")]) == "yes"
