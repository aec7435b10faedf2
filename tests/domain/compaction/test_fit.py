"""Requests that fit: the mechanical fallback, and the request for a summary."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.domain.conversations import (
    Exchange,
    Step,
    complaint,
    contexts,
    conversation,
    exchanges_of,
    huge,
    rows_of,
    size,
    system_of,
    texts,
)
from warren.base.windows import Window
from warren.compaction import (
    PROMPT,
    CompactionError,
    DefaultCompactor,
    Fitted,
    estimate,
    is_summary,
    mechanical,
    summary_message,
    summary_request,
)
from warren.compaction.fit import shorten
from warren.compaction.layout import GAP, with_request
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)

SMALL: Final = Window(6_000, 1_500)
rooms: Final = st.integers(300, 20_000)


def fitted(messages: Sequence[Message], room: int) -> Fitted:
    """Fit; a refusal is no example for the caller's property."""
    try:
        return mechanical(messages, room)
    except CompactionError:
        assume(condition=False)
        raise


def questions(count: int, *, result: int = 100) -> list[Message]:
    """Return that many exchanges with a tool result of so many characters each, the last one in flight."""
    done = [
        Exchange(f"question {i}", (Step("", (("r" * result, False),), reasoning=False),), "ok") for i in range(count)
    ]
    return conversation([*done, Exchange("and now", (), None)], system=["be kind"])


@given(contexts(), rooms)
def test_what_is_sent_fits_and_is_valid(messages: list[Message], room: int) -> None:
    """Whatever the history, the request is within the room and providers take it."""
    request = fitted(messages, room).request
    assert estimate(size(request)) <= room
    assert complaint(request) is None


@given(contexts(), rooms)
def test_only_oldest_exchanges_leave(messages: list[Message], room: int) -> None:
    """Discarded and retained are the rows there were; the newest exchange is whole; system messages stay."""
    result = fitted(messages, room).result
    assert system_of(result.messages) == system_of(messages)
    assert [*result.discarded, *result.retained] == rows_of(messages)
    assert exchanges_of(result.retained)[-1] == exchanges_of(rows_of(messages))[-1]
    assert all(kept in exchanges_of(rows_of(messages)) for kept in exchanges_of(result.retained))


@given(contexts(), rooms)
def test_only_tool_results_are_shortened(messages: list[Message], room: int) -> None:
    """The view differs from the stored context in the content of tool results, and in nothing else."""
    fit = fitted(messages, room)
    assert len(fit.request) == len(fit.result.messages)
    for seen, stored in zip(fit.request, fit.result.messages, strict=True):
        if isinstance(stored, ToolResultsMessage) and isinstance(seen, ToolResultsMessage):
            assert [r.tool_use_id for r in seen.results] == [r.tool_use_id for r in stored.results]
            assert size([seen]) <= size([stored])
        else:
            assert seen == stored


@given(contexts(), st.integers(0, 1_000))
def test_what_fits_is_left_alone(messages: list[Message], spare: int) -> None:
    """No exchange leaves and nothing is shortened without need."""
    fit = mechanical(messages, -(-size(messages) // 4) + spare)
    assert (fit.request, fit.result.messages) == (tuple(messages), tuple(messages))
    assert (fit.result.discarded, fit.cap) == ((), None)


@given(contexts(), rooms)
def test_fitting_again_changes_nothing(messages: list[Message], room: int) -> None:
    """Once the head has moved, the next request needs no further move and is the same."""
    once = fitted(messages, room)
    again = mechanical(once.result.messages, room)
    assert (again.request, again.result.discarded) == (once.request, ())
    assert mechanical(messages, room) == once


@given(contexts(), rooms)
def test_a_refusal_is_true(messages: list[Message], room: int) -> None:
    """A request that is refused does not fit even with the newest exchange alone, its tool results only mentioned."""
    newest = exchanges_of(rows_of(messages))[-1]
    told = [message for message in newest if not isinstance(message, ToolResultsMessage)]
    shown = [message for message in newest if isinstance(message, ToolResultsMessage)]
    mentions = sum(200 for message in shown for _ in message.results)
    lead = size(system_of(messages)) + 2_000
    if size(told) + mentions + lead + room <= 4 * room:
        assert estimate(size(mechanical(messages, room).request)) <= room


def test_one_oversized_result_costs_no_exchange() -> None:
    """A single huge tool result is shortened; everything else stays."""
    messages = questions(5)
    step = Step("look", (("start " + "x" * 1_000_000 + " end", True),), reasoning=False)
    messages += rows_of(conversation([Exchange("read it all", (step,), None)]))
    fit = mechanical(messages, 5_000)
    assert fit.result.discarded == ()
    assert fit.cap == 5_000
    last = fit.request[-1]
    assert isinstance(last, ToolResultsMessage)
    assert last.results[0].content.startswith("start xxx")
    assert last.results[0].content.endswith("xxx end")
    assert "characters left out" in last.results[0].content
    assert last.results[0].is_error


def test_exchanges_leave_in_bulk() -> None:
    """A quarter of the room is left free, so that the next step needs no further move."""
    fit = mechanical(questions(100), 2_000)
    assert fit.result.discarded
    assert 2_000 * 0.6 < estimate(size(fit.request)) <= 2_000 * 0.75


def test_a_note_says_that_messages_are_missing() -> None:
    """The model is told where the gap is, once, behind the summary that is still true."""
    summary = summary_message("we agreed on blue")
    system, *rows = questions(100)
    once = mechanical([system, summary, *rows], 2_000).result
    assert once.summary == f"we agreed on blue\n\n{GAP}"
    twice = mechanical([*once.messages, *rows], 2_000).result
    assert twice.summary == once.summary
    assert mechanical([system, *rows], 2_000).result.summary == GAP


def test_the_quoted_request_leaves_with_its_exchange() -> None:
    """A summary that ends with the request of a cut exchange loses it when the rest of that exchange leaves."""
    system, *rows = questions(100)
    cut = AssistantMessage((TextBlock("done " * 100),))
    summary = summary_message(with_request("half is done", "port it to Rust"))
    result = mechanical([system, summary, cut, *rows], 2_000).result
    assert result.discarded[0] == cut
    assert result.summary == f"half is done\n\n{GAP}"


def test_hundreds_of_results_are_only_mentioned() -> None:
    """If even short pieces of every result of the newest exchange are too much, each is still mentioned."""
    long, short = (
        conversation(
            [Exchange("go", tuple(Step("", (("r" * length, False),), reasoning=False) for _ in range(100)), None)]
        )
        for length in (2_000, 60)
    )
    fit = mechanical(long, estimate(size(short)))
    assert (fit.cap, fit.result.discarded) == (0, ())
    last = fit.request[-1]
    assert isinstance(last, ToolResultsMessage)
    assert last.results[0].content == "[… 2000 characters left out …]"


def test_a_summary_too_large_for_the_room_is_shortened() -> None:
    """A summary that a model wrote without end does not keep the session from going on."""
    system, *rows = questions(5)
    result = mechanical([system, summary_message("s" * 100_000), *rows], 2_000).result
    assert estimate(size(result.messages)) <= 2_000


def test_a_prompt_larger_than_the_window_is_refused() -> None:
    """There is nothing to leave out of a single message of the user's."""
    with pytest.raises(CompactionError) as caught:
        mechanical(conversation([Exchange("x" * 100_000, (), None)]), 2_000)
    assert caught.value.reason == "too_large"


@given(texts | huge, st.integers(-5, 30_000))
def test_a_shortened_text_keeps_to_its_cap(text: str, cap: int) -> None:
    """It is within the cap, or as short as the note; never longer than before, and untouched where it fits."""
    short = shorten(text, cap)
    before, after = len(codec.encode(text)), len(codec.encode(short))
    assert after <= max(cap, 64)
    assert after <= before
    assert (short == text) == (before <= cap or before <= after)


@given(contexts(), st.none() | st.integers(1_000, 20_000), st.integers(1, 4_096))
def test_a_request_for_a_summary_fits(messages: list[Message], window: int | None, cap: int) -> None:
    """The history as text and the prompt, within a known window, without anything that only tools would explain."""
    request = summary_request(messages, PROMPT, None if window is None else Window(window, cap).request)
    assert request[-1] == UserMessage(PROMPT)
    assert not any(isinstance(message, ToolResultsMessage) for message in request)
    answers = [message for message in request if isinstance(message, AssistantMessage)]
    assert all(isinstance(block, TextBlock) and block.text.strip() for answer in answers for block in answer.blocks)
    if window is not None:
        assert estimate(size(request)) + min(cap, window // 4) <= window


@given(contexts())
def test_a_request_for_a_summary_is_complete_where_it_fits(messages: list[Message]) -> None:
    """Every text, call and result is told, in its order, and the system messages are verbatim."""
    request = summary_request(messages, PROMPT, None)
    assert system_of(request) == system_of(messages)
    told = "\n".join(_text(message) for message in request)
    at = 0
    for text in (text.strip() for message in messages for text in _texts(message)):
        at = told.index(text, at) + len(text)


def _text(message: Message) -> str:
    return message.text if isinstance(message, AssistantMessage) else getattr(message, "content", "")


def _texts(message: Message) -> list[str]:
    match message:
        case AssistantMessage():
            return [message.text, *(call.name for call in message.tool_calls)]
        case ToolResultsMessage():
            return [result.content for result in message.results]
        case _:
            return [message.content]


def test_tools_are_told_as_text() -> None:
    """Calls, results and errors read as what they were; reasoning is left out, and a message of nothing else too."""
    messages: list[Message] = [
        SystemMessage("be kind"),
        UserMessage("look"),
        AssistantMessage(
            (
                ReasoningBlock("secret"),
                TextBlock("I look."),
                ToolUseBlock("1", "read", {"path": "a"}),
                ToolUseBlock("2", "list", {}, invalid_args="{oops"),
            ),
            "tool_use",
        ),
        ToolResultsMessage((ToolResult("1", "text"), ToolResult("2", "no such folder", is_error=True))),
        AssistantMessage((ReasoningBlock("secret"),)),
    ]
    assert summary_request(messages, "sum up", None) == [
        SystemMessage("be kind"),
        UserMessage("look"),
        AssistantMessage((TextBlock('I look.\n\n[called read with {"path":"a"}]\n\n[called list with {oops]'),)),
        UserMessage("[read returned] text\n\n[list failed] no such folder"),
        UserMessage("sum up"),
    ]


def test_files_are_named_to_the_summary() -> None:
    """The model sees those of users; if the history is too large for its window, their names alone."""
    photo, chart = Attachment("image/png", "1" * 64, 9, "a.png"), Attachment("application/pdf", "2" * 64, 9, "b.pdf")
    call = AssistantMessage((ToolUseBlock("1", "draw"),), "tool_use")
    results = ToolResultsMessage((ToolResult("1", "done", attachments=(chart,)),))
    look, drawn = "look\n[attached: image a.png]", "[draw returned] done\n[attached: pdf b.pdf]"
    request = summary_request([UserMessage("look", (photo,)), call, results], "sum up", None)
    assert request[0] == UserMessage(look, (photo,))
    assert request[2] == UserMessage(drawn)
    many: list[Message] = [UserMessage("look", (photo,)), call, results, UserMessage("again", (photo,) * 4)]
    request = summary_request(many, "sum up", 2_000)
    assert [message for message in request if isinstance(message, UserMessage) and message.attachments] == []
    assert {look, drawn} < {_text(message) for message in request}


def test_a_history_larger_than_the_window_can_be_summarised() -> None:
    """Oldest messages leave, a note counts them, and what the newest exchange is about stays to be read."""
    steps = tuple(Step(f"step {i}", (("r" * 500, False),), reasoning=False) for i in range(100))
    messages = conversation(
        [Exchange("old business", (), "done"), Exchange("the task", steps, None)], system=["be kind"], summary="so far"
    )
    request = summary_request(messages, PROMPT, SMALL.request)
    assert request[:3] == [SystemMessage("be kind"), summary_message("so far"), UserMessage("the task")]
    kept = len(request) - 5
    assert request[3] == UserMessage(f"[messages left out here: {len(messages) - 3 - kept}]")
    assert estimate(size(request)) > 6_000 * 0.5
    assert isinstance(request[-2], UserMessage)


def test_a_huge_system_prompt_can_be_summarised_under() -> None:
    """In the request for a summary alone, system messages too may be shortened."""
    messages = conversation([Exchange("hello", (), "hi")], system=["Begin " + "s" * 100_000 + " end"])
    request = summary_request(messages, PROMPT, SMALL.request)
    assert estimate(size(request)) + 1_500 <= 6_000
    assert isinstance(request[0], SystemMessage)
    assert (request[0].content[:6], request[0].content[-4:]) == ("Begin ", " end")
    assert request[1] == UserMessage("hello")


def test_huge_results_of_one_step_share_the_space() -> None:
    """Each of several results is told in part, none is lost to the others."""
    step = Step("", tuple((f"start {i} " + "x" * 50_000 + f" end {i}", False) for i in range(3)), reasoning=False)
    request = summary_request(conversation([Exchange("go", (step,), None)]), PROMPT, SMALL.request)
    told = "".join(map(_text, request))
    assert all(text in told for i in range(3) for text in (f"[tool_{i} returned] start {i} xxx", f"xxx end {i}"))


def test_a_window_without_room_for_the_prompt_is_refused() -> None:
    """A window of a few tokens cannot summarise anything."""
    with pytest.raises(CompactionError) as caught:
        summary_request(questions(3), PROMPT, Window(100, 10).request)
    assert caught.value.reason == "too_large"


@given(st.integers(6, 40), st.integers(20, 400))
def test_a_long_life_in_a_small_window(every: int, length: int) -> None:
    """Turn after turn, compacted when due, fitted when needed: no request ever exceeds its part of the window."""
    window = Window(2_000, 100)
    compactor = DefaultCompactor(window=window)
    context: list[Message] = [SystemMessage("be kind")]
    for turn in range(120):
        result = "r" * (length * 40 if turn % every == 0 else length)
        step = Step("look", ((result, False),), reasoning=False)
        context += rows_of(conversation([Exchange(f"question {turn}", (step,), None)]))
        if estimate(size(context)) >= compactor.threshold:
            room = attrs.evolve(window, answer=compactor.max_summary_tokens()).request
            assert estimate(size(summary_request(context, PROMPT, room))) <= room
            with suppress(CompactionError):  # one step with a huge result is all there is to a first turn
                context = list(compactor.rebuild_history(context, "summary " * 20).messages)
        fit = mechanical(context, window.room)
        assert estimate(size(fit.request)) <= window.room
        context = [*fit.result.messages, AssistantMessage((TextBlock(f"answer {turn}"),))]
        assert sum(map(is_summary, context)) <= 1
