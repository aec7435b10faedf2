"""When compaction is due, how it is configured, and the canonical texts."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.conversations import contexts, size
from warren.base.errors import InvalidParamsError
from warren.base.windows import Window
from warren.compaction import (
    PROMPT,
    SUMMARY_PREFIX,
    CompactionConfig,
    CompactionContext,
    Compactor,
    DefaultCompactor,
    Measured,
    estimate,
    prompt_with,
)
from warren.conversation import codec
from warren.conversation.messages import Message
from warren.conversation.transcript import Transcript


def context(**changes: Any) -> CompactionContext:
    """Return what a long session at its tenth step looks like, never compacted before."""
    values = {"last_input_tokens": 0, "message_count": 20, "estimated_history_tokens": 0, "last_compaction_turn": None}
    return CompactionContext(**{"current_turn": 10, **values, **changes})


@pytest.mark.parametrize(
    ("text", "length", "digest"),
    [
        (PROMPT, 489, "4d66991de6fa02c3d38fb9b2cb7f97ab616bdc07a95a4e2d04b14b0ebe1b4696"),
        (SUMMARY_PREFIX, 189, "af0c0f786e1161b5132b217845bda131ccfd1256d6bb4eafac7b87f292a6f8d1"),
    ],
    ids=["prompt", "prefix"],
)
def test_the_canonical_texts_are_unchanged(text: str, length: int, digest: str) -> None:
    """Other programs recognise a compacted context by these words, byte for byte."""
    assert (len(text.encode()), hashlib.sha256(text.encode()).hexdigest()) == (length, digest)


@pytest.mark.parametrize("figure", ["last_input_tokens", "estimated_history_tokens"])
def test_either_figure_triggers_at_the_threshold(figure: str) -> None:
    """One token below it is not due, at it is, whichever figure says so."""
    compactor = DefaultCompactor(CompactionConfig(500))
    assert not compactor.should_compact(context(**{figure: 499}))
    assert compactor.should_compact(context(**{figure: 500}))


def test_it_is_never_due_at_the_first_step() -> None:
    """The first model call of a session sees its history whole, however long its prompt."""
    compactor = DefaultCompactor(CompactionConfig(1, min_turns_between_compactions=0))
    assert not compactor.should_compact(context(estimated_history_tokens=10**9, current_turn=0))
    assert compactor.should_compact(context(estimated_history_tokens=10**9, current_turn=1))


@given(st.integers(0, 50), st.integers(0, 10), st.integers(0, 10))
def test_attempts_keep_their_distance(last: int, since: int, distance: int) -> None:
    """After an attempt at a step the next one is due that many steps later, not before."""
    compactor = DefaultCompactor(CompactionConfig(1, min_turns_between_compactions=distance))
    now = last + since
    due = compactor.should_compact(context(last_input_tokens=1, last_compaction_turn=last, current_turn=now))
    assert due == (now > 0 and since >= distance)


@pytest.mark.parametrize(
    ("configured", "window", "threshold"),
    [
        (None, None, 100_000),
        (None, 200_000, 100_000),
        (None, 1_000_000, 100_000),
        (None, 6_000, 4_800),
        (50_000, None, 50_000),
        (50_000, 200_000, 50_000),
        (150_000, 200_000, 150_000),
        (190_000, 200_000, 160_000),
        (300_000, None, 300_000),
    ],
)
def test_the_threshold_leaves_room_in_the_window(configured: int | None, window: int | None, threshold: int) -> None:
    """The default is 100,000; with a known window no threshold is above four fifths of it."""
    taken = None if window is None else Window(window)
    compactor = DefaultCompactor(CompactionConfig(configured), taken)
    assert compactor.threshold == compactor.history_threshold == threshold


@pytest.mark.parametrize(
    ("window", "threshold", "history"),
    [
        (Window(6_000, 600), 4_266, 4_266),
        (Window(6_000, 100_000), 3_466, 3_466),
        (Window(6_000, 600, 1_800), 4_266, 2_666),
        (Window(6_000, 0, 5_400), 4_800, 4_800),
        (Window(200_000, 32_000, 3_000), 100_000, 100_000),
    ],
)
def test_answers_and_tools_take_their_part_of_the_window(window: Window, threshold: int, history: int) -> None:
    """A compaction is due before they and the history fill it; the provider's count has the tools in it already."""
    compactor = DefaultCompactor(window=window)
    assert (compactor.threshold, compactor.history_threshold) == (threshold, history)
    assert not compactor.should_compact(context(last_input_tokens=threshold - 1, estimated_history_tokens=history - 1))
    assert compactor.should_compact(context(estimated_history_tokens=history))
    assert compactor.should_compact(context(last_input_tokens=threshold))


@pytest.mark.parametrize(("window", "cap"), [(None, 4096), (200_000, 4096), (6_000, 1_500), (1, 1)])
def test_a_summary_is_at_most_a_quarter_of_the_window(window: int | None, cap: int) -> None:
    """A small model is not asked for a summary that would fill it."""
    taken = None if window is None else Window(window)
    assert DefaultCompactor(window=taken).max_summary_tokens() == cap


@pytest.mark.parametrize(
    "field",
    ["auto_compact_threshold", "recent_turn_budget", "max_summary_tokens", "min_turns_between_compactions"],
)
@pytest.mark.parametrize("value", [-1, 2**63, "4", True, 1.5])
def test_a_bad_setting_is_named(field: str, value: object) -> None:
    """Bad input from outside gives an error with the path of the field."""
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(CompactionConfig, {field: value})
    assert caught.value.path == f"$.{field}"


@pytest.mark.parametrize("field", ["auto_compact_threshold", "max_summary_tokens"])
def test_zero_is_no_threshold_and_no_cap(field: str) -> None:
    """A setting that could never work is refused; no exchange kept and no distance between attempts are fine."""
    with pytest.raises(InvalidParamsError):
        codec.from_data(CompactionConfig, {field: 0})
    kept = codec.from_data(CompactionConfig, {"recent_turn_budget": 0, "min_turns_between_compactions": 0})
    assert (kept.recent_turn_budget, kept.min_turns_between_compactions) == (0, 0)


def test_the_defaults_are_the_contracts() -> None:
    """Nothing configured: four exchanges, 4,096 tokens of summary, three steps apart."""
    config = CompactionConfig()
    assert (config.recent_turn_budget, config.max_summary_tokens, config.min_turns_between_compactions) == (4, 4096, 3)


@given(contexts())
def test_the_estimate_grows_with_the_history(messages: list[Message]) -> None:
    """A running count of bytes gives the same estimate as counting the whole history again."""
    transcript = Transcript()
    for message in messages:
        transcript.append(message)
    assert estimate(transcript.size) == estimate(size(messages)) == sum(Measured.of(messages).sizes) // 4
    assert Measured.of(transcript).sizes == Measured.of(messages).sizes


def test_a_short_message_is_not_free() -> None:
    """Many tiny messages add up: none counts as nothing."""
    transcript = Transcript()
    for _ in range(1000):
        transcript.append(codec.decode_message('{"role":"user","content":""}'))
    assert estimate(transcript.size) >= 1000


def test_a_measured_context_is_a_sequence_of_its_messages() -> None:
    """A host's compactor may index it, slice it, count it."""
    messages = [codec.decode_message(f'{{"role":"user","content":"{i}"}}') for i in range(3)]
    measured = Measured.of(messages)
    assert (len(measured), measured[1], measured[1:], [*measured]) == (3, messages[1], tuple(messages[1:]), messages)
    assert Measured.of(measured) is measured


def test_instructions_follow_the_prompt() -> None:
    """An instruction of the user is added; blank wishes are none."""
    assert prompt_with(PROMPT, "keep the names") == f"{PROMPT}\n\nAdditional instructions:\nkeep the names"
    assert prompt_with(PROMPT, " ") == prompt_with(PROMPT, None) == PROMPT


def test_the_default_is_a_compactor() -> None:
    """The protocol that hosts implement is the one the default has."""
    compactor: Compactor = DefaultCompactor()
    assert compactor.compaction_prompt() == PROMPT
