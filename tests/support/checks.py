"""The promises of every transcript and of every stream."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from warren.conversation import codec
from warren.conversation.events import TERMINAL, Envelope, Event, RunStarted, StreamTruncated, TurnResumed
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextBlock,
    ToolResultsMessage,
    UserMessage,
)


def assert_valid_transcript(messages: Sequence[Message]) -> None:
    """Fail where a model provider would refuse the messages as a history."""
    pending: tuple[str, ...] = ()
    for position, message in enumerate(messages):
        where = f"message {position}: {message!r}"
        match message:
            case ToolResultsMessage(results):
                assert tuple(result.tool_use_id for result in results) == pending, f"results of other calls: {where}"
                pending = ()
                continue
            case SystemMessage():
                assert position == 0, f"a system message amid the history: {where}"
            case UserMessage(content):
                assert content.strip(), f"empty: {where}"
            case AssistantMessage(blocks):
                assert position > 0, f"an answer to nothing: {where}"
                assert all(block.text for block in blocks if isinstance(block, TextBlock)), f"empty text: {where}"
        assert not pending, f"calls {pending} have no result before {where}"
        pending = tuple(call.id for call in message.tool_calls) if isinstance(message, AssistantMessage) else ()
        assert len(set(pending)) == len(pending), f"a call id twice: {where}"
    assert not pending, f"calls {pending} have no result"


def assert_valid_stream(envelopes: Sequence[Envelope]) -> None:
    """Fail where numbers do not rise, or where a turn has not exactly one beginning and one terminal event."""
    spans = [(envelope.first_seq or envelope.seq, envelope.seq) for envelope in envelopes]
    for (_, last), (first, _) in pairwise(spans):
        assert first > last, f"{first} follows {last}"
    assert_whole_turns([envelope.event for envelope in envelopes])


def assert_whole_turns(events: Iterable[Event]) -> None:
    """Fail where a turn has not exactly one beginning and one terminal event."""
    running = False
    for event in events:
        if isinstance(event, RunStarted):
            assert not running, "a turn began within a turn"
            running = True
        else:
            assert running or isinstance(event, StreamTruncated), f"outside of a turn: {event}"
            running = running and not isinstance(event, TERMINAL)
    assert not running, "a turn has no terminal event"


def counted(envelopes: Iterable[Envelope]) -> list[Envelope]:
    """Return the events that count: a reader takes back those that a turn which went on has not kept."""
    found: list[Envelope] = []
    for each in envelopes:
        if isinstance(each.event, TurnResumed):
            found = [before for before in found if before.seq <= each.event.kept_seq]
        found.append(each)
    return found


def name(event: Event) -> str:
    """Return what an event is called on the wire."""
    return str(codec.to_data(event)["type"])


def names(envelopes: Iterable[Envelope]) -> list[str]:
    """Return what the events are called on the wire."""
    return [name(envelope.event) for envelope in envelopes]


def numbers(envelopes: Iterable[Envelope]) -> list[int]:
    """Return every number that the events stand for."""
    return [seq for each in envelopes for seq in range(each.first_seq or each.seq, each.seq + 1)]
