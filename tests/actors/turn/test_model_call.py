"""One model call: when it is tried again, and what subscribers see of it."""

import re
from typing import Any

import attrs
import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from warren.actors.observe.counters import Counters
from warren.actors.turn.model_call import ModelCall, ask_aside
from warren.actors.turn.route import Candidate, Outages, Route
from warren.base.errors import ProviderError
from warren.compaction.layout import estimate
from warren.conversation.events import Event, ReasoningDelta, RequestRepaired, Retrying, TextDelta
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.catalog import UNKNOWN
from warren.models.model import (
    Emitted,
    ModelChoice,
    ModelReply,
    ModelRequest,
    Provider,
    ReasoningPiece,
    Repaired,
    TextPiece,
)
from warren.settings.config import RetryPolicy

pytestmark = pytest.mark.virtual_time
CALM = RetryPolicy(max_attempts=4, initial_delay=1.0, factor=3.0, jitter=0.0, max_delay=5.0, max_retry_after=10.0)
REQUEST = ModelRequest("test", [UserMessage("hello")])


@attrs.define
class Attempts:
    """A model whose attempts are lists of pieces; an error ends an attempt, else it is the answer."""

    plan: list[list[Emitted | ProviderError]]
    times: list[float] = attrs.field(factory=list)

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        self.times.append(trio.current_time())
        said = ""
        for step in self.plan.pop(0):
            await trio.lowlevel.checkpoint()
            if isinstance(step, ProviderError):
                raise step
            emit(step)
            said += step.text if isinstance(step, TextPiece) else ""
        return reply(said)


@attrs.define
class Run:
    """A finished call: its events, its times of day, its answer or error, and the tokens of failed attempts."""

    events: list[Event]
    attempts: list[float]
    reply: ModelReply | None
    error: ProviderError | None
    call: ModelCall
    booked: list[Usage]

    @property
    def text(self) -> str:
        """The events that subscribers saw."""
        return "".join(event.delta for event in self.events if isinstance(event, TextDelta))

    @property
    def retries(self) -> list[Retrying]:
        """The retries that were announced."""
        return [event for event in self.events if isinstance(event, Retrying)]


def route_of(*models: Provider, outages: Outages | None = None) -> Route:
    """Return a route of models with the names a, b and so on."""
    choices = [ModelChoice(model, name) for name, model in zip("abc", models, strict=False)]
    return Route([Candidate(each.model, each, UNKNOWN) for each in choices], outages or Outages(10.0))


async def run(*plan: list[Emitted | ProviderError], policy: RetryPolicy = CALM) -> Run:
    """Make one call."""
    events: list[Event] = []
    booked: list[Usage] = []
    model = Attempts(list(plan))
    call = ModelCall(events.append, booked.append, policy)
    began = trio.current_time()
    answer, error = None, None
    try:
        answer = await call.run(route_of(model), REQUEST)
    except ProviderError as exc:
        error = exc
    return Run(events, [time - began for time in model.times], answer, error, call, booked)


def failure(*, retryable: bool = True, retry_after: float | None = None) -> ProviderError:
    """Return an error of a provider."""
    return ProviderError("overloaded", retryable=retryable, retry_after=retry_after)


async def test_retries_wait_longer_each_time_up_to_the_bound() -> None:
    """Delays grow by the factor, are announced in milliseconds, and end at `max_delay`."""
    done = await run([failure()], [failure()], [failure()], [TextPiece("yes")])
    assert done.attempts == pytest.approx([0, 1, 4, 9])
    assert [(event.attempt, event.delay_ms) for event in done.retries] == [(2, 1000), (3, 3000), (4, 5000)]
    assert {event.max_attempts for event in done.retries} == {4}
    assert done.text == "yes"


async def test_attempts_run_out() -> None:
    """After the last attempt its error is raised, without another announcement."""
    done = await run([failure()], [failure()], [failure()], [failure()])
    assert done.error is not None
    assert len(done.attempts) == 4
    assert len(done.retries) == 3


async def test_a_final_error_is_not_retried() -> None:
    """An error that the provider calls final, such as a bad key, is raised at once."""
    done = await run([failure(retryable=False)])
    assert done.error is not None
    assert done.events == []


async def test_retry_after_wins_over_the_computed_delay() -> None:
    """The wait that the provider asks for counts, up to the bound of the policy."""
    done = await run([failure(retry_after=7)], [failure(retry_after=10)], [TextPiece("ok")])
    assert done.attempts == pytest.approx([0, 7, 17])


async def test_a_wait_beyond_the_bound_fails_at_once() -> None:
    """A provider that asks for a longer wait than the policy allows is not called again; the error has its wish."""
    done = await run([failure(retry_after=7)], [failure(retry_after=3600)], [TextPiece("ok")])
    assert done.attempts == pytest.approx([0, 7])
    assert done.error is not None
    assert done.error.retryable
    assert done.error.body()["details"] == {"retry_after": 3600}


async def test_a_character_that_is_split_over_two_pieces() -> None:
    """Its halves are shown as one character, whoever the provider is; half a character alone becomes U+FFFD."""
    pieces = [TextPiece(text) for text in ("a\ud83d", "\ude00", "b", "\ude00c", "\ud83d")]
    done = await run([*pieces, ReasoningPiece("\ud83d"), ReasoningPiece("\ude00")])
    assert [event.delta for event in done.events if isinstance(event, TextDelta)] == [
        "a",
        "\U0001f600",
        "b",
        "\ufffdc",
        "\ufffd",
    ]
    assert [event.delta for event in done.events if isinstance(event, ReasoningDelta)] == ["\U0001f600"]


async def test_a_retry_does_not_repeat_what_was_shown() -> None:
    """The second attempt's beginning is passed over, wherever its pieces are cut."""
    first: list[Emitted | ProviderError] = [TextPiece("Hello"), TextPiece(" wor"), failure()]
    done = await run(first, [TextPiece("He"), TextPiece("llo world,"), TextPiece(" all")])
    assert [event.delta for event in done.events if isinstance(event, TextDelta)] == ["Hello", " wor", "ld,", " all"]


async def test_a_shorter_retry_then_a_longer_one() -> None:
    """An attempt that fails earlier than the one before it does not move back what counts as shown."""
    done = await run([TextPiece("one two"), failure()], [TextPiece("one"), failure()], [TextPiece("one two three")])
    assert done.text == "one two three"


async def test_a_diverging_retry_is_not_streamed() -> None:
    """An attempt that says something else is silent; its reply brings the whole text."""
    done = await run([TextPiece("The sky is"), failure()], [TextPiece("The sea"), TextPiece(" is wet")])
    assert done.text == "The sky is"
    assert done.reply is not None
    assert done.reply.message.text == "The sea is wet"


async def test_text_and_reasoning_are_suppressed_apart() -> None:
    """The reasoning that was shown says nothing about the text."""
    done = await run(
        [ReasoningPiece("hm "), TextPiece("A"), failure()],
        [ReasoningPiece("hm well"), TextPiece("AB")],
    )
    assert done.text == "AB"
    assert [event.delta for event in done.events if isinstance(event, ReasoningDelta)] == ["hm ", "well"]


async def test_what_was_shown_is_kept_of_a_failed_call() -> None:
    """The partial answer is what subscribers saw, without reasoning."""
    done = await run([ReasoningPiece("hm"), TextPiece("half"), failure(retryable=False)])
    assert done.call.partial() == AssistantMessage((TextBlock("half"),), "cancelled")


async def test_failed_attempts_are_booked() -> None:
    """Each attempt that has shown text or reasoning is booked once, by an estimate; the others are not."""
    broken = ProviderError("broken", retryable=True)
    done = await run([broken], [ReasoningPiece("think " * 20), TextPiece("x" * 40), broken], [TextPiece("x" * 80)])
    (one,) = done.booked
    assert one.estimated
    assert one.input_tokens > 0
    assert one.output_tokens == estimate(160)
    done = await run(
        [TextPiece("half"), broken], [TextPiece("half"), broken], policy=attrs.evolve(CALM, max_attempts=2)
    )
    assert len(done.booked) == 2


async def test_counts_of_a_failed_attempt_are_booked() -> None:
    """The counts that came before the failure are charged, with an estimate of the text that came behind them."""
    broken = ProviderError("broken", retryable=True, usage=Usage(1_000, 1, 20, 300))
    done = await run([broken], [TextPiece("x" * 40), broken], [TextPiece("x" * 80)])
    assert done.booked == [Usage(1_000, 1, 20, 300), Usage(1_000, estimate(40), 20, 300, estimated=True)]


async def test_nothing_said_leaves_no_partial_answer() -> None:
    """A call that only reasoned leaves no message: providers refuse reasoning that is cut."""
    done = await run([ReasoningPiece("hm"), failure(retryable=False)])
    assert done.call.partial() is None


async def test_a_bug_in_a_provider_is_a_provider_error() -> None:
    """An exception that is not Warren's fails the call, unretried, with its text."""

    async def broken(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("division by zero")

    events: list[Event] = []
    booked: list[Usage] = []
    with pytest.raises(ProviderError, match="ZeroDivisionError: division by zero") as caught:
        await ModelCall(events.append, booked.append, CALM).run(route_of(FunctionModel(broken)), REQUEST)
    assert caught.value.cause == "provider_bug"
    assert events == []
    assert booked == []


@pytest.mark.parametrize(
    "odd", ["text", None, {"text": "a"}, TextBlock("a whole block"), TextDelta("an event")], ids=repr
)
async def test_what_is_no_piece_is_refused(odd: Any) -> None:
    """The error names the model, the type and what to emit; the call is not repeated, and what was shown stays."""
    done = await run([TextPiece("yes"), odd], [TextPiece("never")])
    said = rf"the provider of model 'a' emitted a value of type {type(odd).__name__} \(.*\): emit TextPiece\(text\)"
    assert done.error is not None
    assert re.match(said, done.error.message)
    assert (done.error.cause, done.error.retryable) == ("provider_bug", False)
    assert done.events == [TextDelta("yes")]


@pytest.mark.parametrize("odd", ["hello", None, AssistantMessage((TextBlock("hello"),))], ids=repr)
async def test_what_is_no_reply_is_refused(odd: Any) -> None:
    """The error says that a ModelReply is to be returned, not which attribute the value has not."""

    async def wrong(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return odd  # type: ignore[no-any-return]  # the bug of the host

    call = ModelCall(list[Event]().append, list[Usage]().append, CALM)
    with pytest.raises(ProviderError, match=r"model '\w+' returned a value of type .*: return a ModelReply") as caught:
        await call.run(route_of(FunctionModel(wrong)), REQUEST)
    assert caught.value.cause == "provider_bug"


async def test_a_repaired_request_is_announced_and_is_no_piece() -> None:
    """The event says what was done; the time to the first piece and the text do not change."""
    done = await run([Repaired("dropped", "an image", "\ud800 too large"), failure()], [TextPiece("yes")])
    assert done.events[0] == RequestRepaired("dropped", "an image", "? too large")
    assert (done.text, done.booked) == ("yes", [])


async def test_the_tokens_of_a_refused_request_are_charged() -> None:
    """Those that the server has counted before it refused are booked beside the answer's own."""
    done = await run([Repaired("dropped", "an image", "too large", Usage(1000, 1)), TextPiece("yes")])
    assert (done.text, done.booked) == ("yes", [Usage(1000, 1)])


async def test_a_call_beside_the_turn_announces_repairs() -> None:
    """A summary or an answer as data shows no text, but what was changed in its request."""
    events: list[Event] = []
    model = Attempts([[Repaired("switched_off", "`stream_options`", "unknown"), TextPiece("yes")]])
    await ask_aside(route_of(model), REQUEST, CALM, events.append, lambda _usage: None, counters=Counters(), most=1_000)
    assert events == [RequestRepaired("switched_off", "`stream_options`", "unknown")]
