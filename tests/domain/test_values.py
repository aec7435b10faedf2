"""The small values of the domain: usage, messages, settings, transcripts, views."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain import strategies
from warren.actors.turn.outcome import Outcome
from warren.base import values
from warren.base.fields import FieldValueError
from warren.base.values import Checked, check_of, frozen
from warren.calls.turns import SessionCall, TurnCall
from warren.conversation import codec
from warren.conversation.attachments import File, reference_of
from warren.conversation.budget import Spent
from warren.conversation.events import Envelope
from warren.conversation.messages import (
    MAX_NAME,
    AssistantMessage,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolUseBlock,
    UserMessage,
    with_unique_calls,
)
from warren.conversation.open_turn import OpenTurn, TurnStart
from warren.conversation.records import SessionRecord, Span
from warren.conversation.transcript import ATTACHED, Continued, Transcript, weight_of
from warren.conversation.usage import Usage
from warren.conversation.views import (
    PendingApproval,
    TurnResult,
    TurnState,
    TurnView,
    WaitingCall,
    lifecycle_of,
    summary_of,
    turn_of,
    view_of,
)
from warren.conversation.waits import Wait
from warren.settings.config import Config, Intensity, Limits, RetryPolicy, StoreConfig

CREATED: Final = datetime(2024, 5, 17, tzinfo=UTC)
UPDATED: Final = datetime(2024, 5, 18, tzinfo=UTC)
RECORD: Final = SessionRecord(
    "s",
    CREATED,
    UPDATED,
    "echo",
    labels={"team": "a"},
    usage=Usage(10, 5, 3, 2),
    message_count=4,
    last_assistant_text="hello",
)

usages: Final = st.builds(Usage, *[st.integers(0, 10**12)] * 4, st.booleans())


@given(usages, usages)
def test_usage_adds_up(left: Usage, right: Usage) -> None:
    """Every count of a sum is the sum of the counts; one guess makes the sum a guess; cached tokens count once."""
    total = left + right
    for name in ("input_tokens", "output_tokens", "cache_creation_tokens", "cache_read_tokens", "total_tokens"):
        assert getattr(total, name) == getattr(left, name) + getattr(right, name)
    assert total.estimated == (left.estimated or right.estimated)
    assert total.total_tokens == total.input_tokens + total.output_tokens
    assert left + Usage() == left


def test_an_answer_reads_as_text_and_calls() -> None:
    """The text of an answer leaves out what was thought; its calls keep the order the model made them in."""
    calls = (ToolUseBlock("2", "b"), ToolUseBlock("1", "a"))
    blocks = (TextBlock("one "), calls[0], ReasoningBlock("hm"), TextBlock("two"), calls[1])
    message = AssistantMessage(blocks, "tool_use")
    assert (message.text, message.tool_calls) == ("one two", calls)
    assert (AssistantMessage(()).text, AssistantMessage(()).tool_calls) == ("", ())


def test_values_do_not_change() -> None:
    """A value that a host and another task hold is frozen; for all other values the type checkers see to it."""
    within = {SessionRecord, Spent, Envelope}
    for cls in {*strategies.domain_classes(), UserMessage, AssistantMessage, TextBlock} - within:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(object.__new__(cls), attrs.fields(cls)[0].name, None)


OUTCOME: Final = Outcome("hi", "end_turn", Usage(3), Spent(), 3, None)


@pytest.mark.parametrize("made", [Usage(1) + Usage(2), OUTCOME.ending("s", 1, None)])
def test_values_that_are_set_before_they_are_frozen(made: Usage | TurnResult) -> None:
    """They are of the class that readers know, equal to one that it makes, with the same hash, and cannot change."""
    known = (
        Usage(3)
        if isinstance(made, Usage)
        else TurnResult("s", "hi", usage=Usage(3), stop_reason="end_turn", first_seq=1)
    )
    assert (type(made), made, hash(made), repr(made)) == (type(known), known, hash(known), repr(known))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(made, attrs.fields(type(made))[0].name, None)


@attrs.frozen
class ByAttrs:
    """A value with the methods that attrs writes."""

    text: str
    secret: str = attrs.field(default="s", repr=False)
    seen: int = attrs.field(default=0, eq=False)


@frozen
class Shared:
    """The same value with the shared methods."""

    text: str
    secret: str = attrs.field(default="s", repr=False)
    seen: int = attrs.field(default=0, eq=False)


@frozen
class Empty:
    """A value without a field."""


@frozen
class Heir(Shared):
    """A value with a representation of its own."""

    def __repr__(self) -> str:
        return "an heir"


@values.value
class Loose(Shared):
    """A value that is not frozen, though the one that it extends is."""

    added: int = 0


def test_a_value_may_extend_a_frozen_one() -> None:
    """Its fields are set directly, and it compares and reads as other values do; its base stays frozen."""
    one = Loose("a", added=1)
    assert Loose.__setattr__ is object.__setattr__
    assert (one == Loose("a", added=1), one == Loose("a"), repr(one)) == (
        True,
        False,
        "Loose(text='a', seen=0, added=1)",
    )
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(Shared("a"), "text", None)  # noqa: B010 - mypy knows that it is frozen


@pytest.mark.parametrize("cls", [ByAttrs, Shared])
def test_a_value_compares_as_with_attrs(cls: type[ByAttrs] | type[Shared]) -> None:
    """Values of one class with equal fields are equal, with an equal hash, in and outside of a set."""
    one, text = cls("a"), cast("object", "a")
    assert one == cls("a")
    assert one == cls("a", seen=1)
    assert one != cls("b")
    assert one != cls("a", "other")
    assert one != text
    assert {one, cls("a", seen=2), cls("b")} == {cls("b"), cls("a")}
    assert {cls("a"): 1}[one] == 1
    assert repr(one) == f"{cls.__name__}(text='a', seen=0)"


def test_values_of_two_classes_differ() -> None:
    """A value is not equal to one of a class below it, a value without fields is equal to its like."""
    assert Heir("a") != Shared("a")
    assert (Heir("a"), Empty()) == (Heir("a"), Empty())
    assert (repr(Heir("a")), repr(Empty())) == ("an heir", "Empty()")


def test_a_class_keeps_its_own_comparison() -> None:
    """`eq=False` compares by identity, and a value within the runtime has no hash, as it could change."""

    @frozen(eq=False)
    class Named:
        name: str

    @values.value
    class Within:
        name: str

    same = Named("a")
    assert {same, Named("a")} != {same}
    assert same == same  # noqa: PLR0124 - identity is what is compared
    assert Within("a") == Within("a")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Within("a"))


names: Final = st.sets(st.sampled_from([field.name for field in attrs.fields(SessionRecord)]))


@given(strategies.of(SessionRecord), strategies.of(SessionRecord), names)
def test_a_record_is_changed_as_any_value(record: SessionRecord, other: SessionRecord, found: set[str]) -> None:
    """A changed record is another record, with the new values where they were given and the old ones elsewhere."""
    before, changes = attrs.asdict(record, recurse=False), {name: getattr(other, name) for name in found}
    assert record.changed(**changes) == attrs.evolve(record, **changes)
    assert attrs.asdict(record, recurse=False) == before


messages: Final = st.lists(strategies.of(Message), max_size=6)


@given(messages, st.integers(-7, 7), st.integers(-7, 7))
def test_a_transcript_is_a_sequence(told: list[Message], start: int, stop: int) -> None:
    """A transcript reads as the list it was made from: length, order, slices from both ends, iteration, membership."""
    transcript = Transcript(map(codec.encode, told))
    assert (len(transcript), list(transcript), transcript[start:stop]) == (len(told), told, told[start:stop])
    assert list(reversed(transcript)) == told[::-1]
    assert all(message in transcript for message in told)
    assert [transcript[index] for index in range(-len(told), len(told))] == told * 2


@given(messages)
def test_a_transcript_grows(told: list[Message]) -> None:
    """An appended message is a row that goes to the store, and is counted."""
    transcript = Transcript()
    for message in told:
        transcript.append(message)
    assert [codec.decode_message(body) for body in transcript.since(0)] == told
    assert (transcript.end, transcript.size) == (len(told), sum(map(weight_of, transcript.rows)))
    with pytest.raises(IndexError):
        transcript[len(told)]


@pytest.mark.parametrize(
    ("file", "weight"),
    [
        (File(b"word " * 10_000, name="notes.md"), 50_000),
        (File(b'{"a": "' + b"b" * 9_000 + b'"}', media_type="application/json"), 9_009),
        (File(b"%PDF-" + b"0" * 90_000, name="plan.pdf"), ATTACHED),
        (File(url="https://example.com/a.png", media_type="image/png"), ATTACHED),
    ],
)
def test_what_a_file_adds_to_a_context(file: File, weight: int) -> None:
    """A text counts by its bytes, since the model gets all of it as words; other files as if they were a short text."""
    body = codec.encode(UserMessage("see", attachments=2 * (reference_of(file, 10**6),)))
    assert weight_of(body) == len(body) + 2 * weight


@given(messages, messages, st.data())
def test_a_prefix_stands_for_what_is_before_the_head(
    told: list[Message], prefix: list[Message], data: st.DataObject
) -> None:
    """Positions stay those of the whole conversation; the model sees the prefix and the rows from the head on."""
    transcript = Transcript(map(codec.encode, told))
    head = data.draw(st.integers(0, len(told)))
    gone = transcript.move_head(head, map(codec.encode, prefix))
    assert list(map(codec.decode_message, gone)) == told[:head]
    assert list(transcript) == [*prefix, *told[head:]]
    assert [transcript[at] for at in range(-len(transcript), len(transcript))] == [*prefix, *told[head:]] * 2
    kept = data.draw(st.integers(head, len(told)))
    transcript.truncate(kept)
    assert (transcript.end, list(transcript)) == (kept, [*prefix, *told[head:kept]])
    assert transcript.size == sum(map(weight_of, [*transcript.prefix, *transcript.rows]))


@given(messages, st.data())
def test_rows_that_are_left_out(told: list[Message], data: st.DataObject) -> None:
    """They are not in the context, and a transcript that is cut before them forgets them."""
    transcript = Transcript(map(codec.encode, told))
    first, kept = (data.draw(st.integers(0, len(told))) for _ in range(2))
    end = data.draw(st.integers(first, len(told)))
    transcript.leave_out([Span(first, end)])
    seen = [message for at, message in enumerate(told) if not first <= at < end]
    assert (list(transcript), transcript.size) == (seen, sum(map(weight_of, transcript.bodies)))
    behind = [message for at, message in enumerate(told) if at >= kept and not first <= at < end]
    assert [codec.decode_message(body) for body in transcript.bodies_from(kept)] == behind
    transcript.truncate(kept)
    seen = [message for at, message in enumerate(told[:kept]) if not first <= at < end]
    assert (list(transcript), len(transcript)) == (seen, len(seen))
    assert transcript.size == sum(map(weight_of, transcript.bodies))


@given(messages, messages, st.integers(-7, 7), st.integers(-7, 7))
def test_a_context_with_messages_behind_it(told: list[Message], asked: list[Message], start: int, stop: int) -> None:
    """It reads as the list of both."""
    both = Continued(Transcript(map(codec.encode, told)), asked)
    assert (len(both), list(both), both[start:stop]) == (len(told + asked), told + asked, (told + asked)[start:stop])
    assert list(reversed(both)) == (told + asked)[::-1]
    with pytest.raises(IndexError):
        both[len(told + asked)]


@pytest.mark.parametrize(
    ("archived", "live", "expected"),
    [(False, True, "live"), (False, False, "stored"), (True, True, "archived"), (True, False, "archived")],
)
def test_where_a_session_is(archived: bool, live: bool, expected: str) -> None:  # noqa: FBT001 - a table
    """Archived wins; otherwise an actor makes a session live."""
    record = attrs.evolve(RECORD, archived=archived)
    assert lifecycle_of(record, live=live) == expected
    assert view_of(record, live=live, active=False).state.lifecycle == expected
    assert summary_of(record, live=live, active=False).lifecycle == expected


def test_a_view_shows_the_record() -> None:
    """`read` shows the record, and whether a turn runs."""
    view = view_of(RECORD, live=True, active=True)
    shown = ("session_id", "created_at", "updated_at", "message_count", "last_assistant_text", "labels", "model")
    assert [getattr(view.state, name) for name in shown] == [getattr(RECORD, name) for name in shown]
    assert (view.state.is_active, view.state.compactions) == (True, 0)
    assert (view.billing.total_tokens, view.billing.usage) == (15, RECORD.usage)


def test_a_summary_shows_the_record() -> None:
    """A row of `list` says the same as `read`, shorter."""
    waits = PendingApproval("call-1", "shell", {"command": "ls"}, "shell", RECORD.created_at, RECORD.updated_at)
    summary = summary_of(RECORD, live=False, active=False, pending=1)
    view = view_of(RECORD, live=False, active=False, pending=(waits,))
    for name in attrs.fields_dict(type(summary)).keys() - {"total_tokens", "pending_approvals", "node"}:
        assert getattr(summary, name) == getattr(view.state, name), name
    assert summary.total_tokens == view.billing.total_tokens
    assert summary.pending_approvals == len(view.state.pending_approvals)


@pytest.mark.parametrize(
    ("wakes", "runs", "state"),
    [(None, True, "running"), (None, False, "parked"), (UPDATED, True, "waiting"), (UPDATED, False, "waiting")],
)
def test_the_state_of_a_stored_turn(wakes: datetime | None, runs: bool, state: TurnState) -> None:  # noqa: FBT001
    """A turn whose calls all wait says so, whether or not a process has it, with what each of them waits for."""
    turn = OpenTurn(CREATED, 1, 3, 0, TurnStart(0, 0, Usage(), Spent(0, 0, 0, 0)), resumed=2, wakes=wakes)
    wait = Wait("call-1.1", "question", "waiting", "shell", {}, "shell", CREATED, UPDATED, "call-1")
    shown = turn_of(attrs.evolve(RECORD, turn=turn), [wait], runs=runs)
    waits = (WaitingCall("call-1", "shell", "question", CREATED),) if state == "waiting" else ()
    assert shown == TurnView(state, CREATED, 2, waits)
    assert turn_of(RECORD, [], runs=runs) is None


@pytest.mark.parametrize(
    ("live", "archived", "shown"), [(True, False, "node-1"), (False, False, None), (True, True, None)]
)
def test_a_summary_names_the_node_that_has_the_session(*, live: bool, archived: bool, shown: str | None) -> None:
    """Only `list` does: a session that is not live, or archived, is on no node."""
    record = attrs.evolve(RECORD, archived=archived)
    assert summary_of(record, live=live, active=False, node="node-1").node == shown


SETTINGS: Final[list[tuple[type, str, list[Any], list[Any]]]] = [
    (RetryPolicy, "max_attempts", [1], [0, -1, "3", []]),
    (RetryPolicy, "initial_delay", [0, 0.5], [-0.1, "1", math.nan]),
    (RetryPolicy, "factor", [0.5], [0]),
    (RetryPolicy, "max_delay", [0], [-1]),
    (RetryPolicy, "max_retry_after", [0], [-1]),
    (RetryPolicy, "cool_down", [0], [-1]),
    (Limits, "max_sessions", [1], [0, True]),
    (Limits, "mailbox", [1], [0]),
    (Limits, "tool_timeout", [0.1], [0, "60"]),
    (Limits, "tool_threads", [1], [0]),
    (Limits, "hook_processes", [1], [0]),
    (Limits, "event_log", [1], [0]),
    (Limits, "max_live", [1], [0]),
    (Limits, "max_memory", [1, None], [0]),
    (Limits, "idle_after", [0], [-1]),
    (Limits, "interrupt_grace", [0], [-1]),
    (Limits, "drain", [0], [-1]),
    (Limits, "resumptions", [0], [-1]),
    (Limits, "background_calls", [0], [-1]),
    (Limits, "child_depth", [0], [-1]),
    (Limits, "children", [0], [-1]),
    (Limits, "schedules", [0], [-1]),
    (Limits, "triggers", [0], [-1]),
    (Limits, "webhooks", [0], [-1]),
    (Intensity, "restarts", [0], [-1]),
    (Intensity, "seconds", [0.5], [0]),
    (StoreConfig, "busy_timeout", [0], [-1]),
    (StoreConfig, "readers", [1], [0]),
    (Limits, "inbox", [1], [0]),
    (Limits, "approval_timeout", [0.1], [0]),
    (Limits, "model_silence", [0.1], [0]),
    (Limits, "model_stall", [0.1], [0]),
    (Limits, "model_wait", [0.1], [0]),
    (Limits, "max_answer", [1], [0]),
    (Limits, "max_answer_calls", [1, 4_096], [0, 4_097]),
    (Limits, "repeated_calls_note", [1], [0]),
    (Limits, "repeated_calls", [1], [0]),
    (Limits, "peer_hops", [1], [0]),
    (Limits, "peer_rate", [1], [0]),
    (Limits, "max_unread", [1], [0]),
    (Limits, "max_attachment", [1], [0]),
    (Limits, "mcp_sessions", [1], [0]),
    (Limits, "subscriptions", [1], [0]),
    (Limits, "watches", [1], [0]),
    (Limits, "uploads", [1], [0]),
    (Limits, "upload_bytes", [1], [0]),
    (Limits, "tenant_share", [0.1, 1], [0, 1.1]),
    (Limits, "principal_share", [0.1, 1], [0, 1.1]),
    (StoreConfig, "lease", [0.5], [0]),
]


@pytest.mark.parametrize(("cls", "field", "good", "bad"), SETTINGS, ids=lambda value: getattr(value, "__name__", None))
def test_settings_are_checked(cls: type, field: str, good: list[Any], bad: list[Any]) -> None:
    """A setting out of range is refused where it is made, by name; the bound itself is as it says."""
    others = {"path": "x"} if cls is StoreConfig else {}
    for each in good:
        assert getattr(cls(**others, **{field: each}), field) == each
    for each in bad:
        bounds = rf"^{field} must be (above 0(, and at most \d+)?|0 or above)$"
        with pytest.raises(FieldValueError, match=bounds) as caught:
            cls(**others, **{field: each})
        assert (caught.value.field, f"{field} {caught.value.problem}") == (field, str(caught.value))


@pytest.mark.parametrize("value", [-0.1, 1.1, 7])
def test_a_spread_of_more_than_the_delay_is_refused(value: float) -> None:
    """A delay would be below 0."""
    assert (RetryPolicy(jitter=0).jitter, RetryPolicy(jitter=1).jitter) == (0, 1)
    with pytest.raises(FieldValueError, match=r"^jitter must be from 0 to 1$"):
        RetryPolicy(jitter=value)


@pytest.mark.parametrize("value", ["MAYBE", "full", "OFF", None, 2])
def test_a_durability_that_is_none_is_refused(value: Any) -> None:
    """SQLite would take any text, and most of them for less than was meant."""
    with pytest.raises(FieldValueError, match=r"^synchronous must be one of FULL, NORMAL$"):
        StoreConfig("x", synchronous=value)


def test_every_bound_is_checked() -> None:
    """No number among the settings is left without a check."""
    checked = {(cls, field) for cls, field, _, _ in SETTINGS} | {(RetryPolicy, "jitter")}
    for cls in (RetryPolicy, Limits, Intensity, StoreConfig):
        numeric = {field.name for field in attrs.fields(cls) if field.type in (int, float)}
        assert {(cls, name) for name in numeric} <= checked


def test_a_store_in_a_folder_given_as_text() -> None:
    """A path may be given as text."""
    assert StoreConfig("x").path == Path("x")


def test_the_defaults_of_a_runtime() -> None:
    """Nothing is set: everything in memory, the offline model, a bound on steps."""
    config = Config()
    assert (config.store, config.model, config.provider, config.limits.turn.max_steps) == (None, "echo", None, 100)


def test_each_tool_call_gets_an_id_of_its_own() -> None:
    """A model that repeats an id, or gives none, does not make two calls share one result."""
    calls = tuple(ToolUseBlock(call_id, "f") for call_id in ("a", "a", "a-2", "", "b"))
    seen = dict[str, int]()
    message = with_unique_calls(AssistantMessage((TextBlock("text"), *calls)), seen)
    assert [call.id for call in message.tool_calls] == ["a", "a-2", "a-2-2", "call-2", "b"]
    assert with_unique_calls(message, {}) is message
    assert [call.id for call in with_unique_calls(AssistantMessage(calls[:1]), seen).tool_calls] == ["a-3"]


def test_ids_and_names_of_calls_are_cut() -> None:
    """A call keeps so much of its id and its name as a model could have meant; ids that agree so far stay apart."""
    calls = tuple(ToolUseBlock("i" * 10**6 + end, "n" * 10**6) for end in "ab")
    first, second = with_unique_calls(AssistantMessage(calls), {}).tool_calls
    assert (len(first.id), len(first.name), second.id) == (MAX_NAME, MAX_NAME, f"{first.id}-2")


def test_many_calls_of_one_id() -> None:
    """Each is told apart from all before it without trying all their ids: that would take minutes."""
    seen = dict[str, int]()
    call = AssistantMessage((ToolUseBlock("a", "f"),))
    assert len({with_unique_calls(call, seen).tool_calls[0].id for _ in range(100_000)}) == 100_000


@pytest.mark.parametrize("cls", [Config, SessionCall, TurnCall])
def test_defaults_of_checked_classes_are_good(cls: type[attrs.AttrsInstance]) -> None:
    """A default that nobody checks any more passes the validator of its field."""
    assert issubclass(cls, Checked)
    checks = [(check, field) for field in attrs.fields(cls) if (check := check_of(field)) is not None]
    assert len(checks) > 8
    for check, field in checks:
        if field.default is not attrs.NOTHING and not isinstance(field.default, attrs.Factory):  # type: ignore[arg-type] # a class for mypy's plugin, too
            check(None, field, field.default)


def test_checked_classes_check_what_is_given_in_the_order_of_the_fields() -> None:
    """Each field of a request that is not at its default is checked, those of a base class first."""
    with pytest.raises(FieldValueError, match="max_tokens must be above 0"):
        TurnCall("s", "", max_tokens=0)
    with pytest.raises(FieldValueError, match="session_id must be a string"):
        TurnCall(None, "", on_event=1)  # type: ignore[arg-type] # a caller without types
    with pytest.raises(FieldValueError, match="on_event must be callable"):
        TurnCall("s", "go on", on_event=1)  # type: ignore[arg-type] # as above
