"""Hooks around turns, model calls and tool calls in a runtime: what they may refuse and change, and their failures."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import Recorder, open_runtime, transcript
from warren.agents.agent import Agent
from warren.agents.hooks import Asked, Denied, Go, HookedCall, HookedRequest, HookedTurn, Hooks, ToolOutcome, TurnEnd
from warren.base.errors import AgentError, InvalidParamsError
from warren.base.fields import FieldValueError
from warren.conversation.events import (
    RunFailed,
    RunStarted,
    TextComplete,
    TextDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultReceived,
)
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, TextPiece
from warren.models.tools import Tool, tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time
ToolGo = Go[HookedCall, ToolOutcome]
TurnGo = Go[HookedTurn, TurnEnd]
ModelGo = Go[HookedRequest, ModelReply]
CALL = ToolUseBlock("c1", "pay", {"order": "17"})


def paying() -> tuple[Tool, list[str]]:
    """Return a tool, and the orders that it has paid."""
    paid = list[str]()

    @tool
    async def pay(order: str) -> str:
        """Pay money back for an order."""
        await trio.lowlevel.checkpoint()
        paid.append(order)
        return f"paid {order}"

    return pay, paid


def on_tool(act: Callable[[HookedCall, ToolGo], Any], **fields: Any) -> Hooks:
    """Return a hook that does something around each tool call."""

    class Guard(Hooks):
        async def on_tool(self, call: HookedCall, go: ToolGo) -> ToolOutcome | Denied | Asked:
            return await act(call, go)  # type: ignore[no-any-return]

    guard = Guard()
    for name, value in fields.items():
        setattr(guard, name, value)
    return guard


async def paid_with(*hooks: Hooks, config: Config | None = None) -> tuple[str, bool, list[str], Recorder]:
    """Run a turn with a call; return its result, whether that is an error, what was paid, and the events."""
    pay, paid = paying()
    recorder = Recorder()
    async with open_runtime(says(reply("", CALL), reply("done")), tools=[pay], hooks=hooks, config=config) as service:
        result = await service.create_session("Pay.", on_event=recorder)
        assert result.text == "done"
        results = [
            each for each in await transcript(service, result.session_id) if isinstance(each, ToolResultsMessage)
        ]
    (told,) = results[0].results
    return told.content, told.is_error, paid, recorder


async def test_a_call_that_is_denied_does_not_run() -> None:
    """The model gets the reason as the result; neither a beginning nor an end of the tool is published."""

    async def deny(call: HookedCall, _go: ToolGo) -> Denied:
        await trio.lowlevel.checkpoint()
        return call.deny(f"{call.name} of {call.args['order']} is not allowed")

    told, is_error, paid, recorder = await paid_with(on_tool(deny))
    assert (told, is_error, paid) == ("not run: pay of 17 is not allowed", True, [])
    assert recorder.only(ToolExecutionStarted) == []
    assert recorder.only(ToolResultReceived) == [ToolResultReceived("c1", "pay", is_error=True, result=told)]


async def test_a_denial_counts_though_it_is_not_returned() -> None:
    """A hook that forgets `return`, one that returns something else, and one that raises deny alike."""

    async def forgets(call: HookedCall, _go: ToolGo) -> None:
        await trio.lowlevel.checkpoint()
        call.deny("no")

    async def goes_on(call: HookedCall, go: ToolGo) -> ToolOutcome:
        call.deny("no")
        with pytest.raises(RuntimeError, match="after `deny`"):
            await go(call)
        return call.result("paid nothing")

    async def raises(_call: HookedCall, _go: ToolGo) -> None:
        await trio.lowlevel.checkpoint()
        raise Denied("no")

    for each in (forgets, goes_on, raises):
        assert (await paid_with(on_tool(each)))[:3] == ("not run: no", True, [])


async def test_arguments_and_results_that_hooks_change() -> None:
    """The first hook is the outermost: it sees the result that the second one has made."""

    async def other_order(call: HookedCall, go: ToolGo) -> ToolOutcome:
        outcome = await go(call.with_args({"order": "18"}))
        assert outcome.text == "PAID 18"
        return call.result(f"{outcome.text}!")

    async def loud(call: HookedCall, go: ToolGo) -> ToolOutcome:
        assert call.args == {"order": "18"}
        return call.result((await go()).text.upper())

    told, is_error, paid, recorder = await paid_with(on_tool(other_order), on_tool(loud))
    assert (told, is_error, paid) == ("PAID 18!", False, ["18"])
    assert recorder.only(ToolExecutionStarted) == [ToolExecutionStarted("c1", "pay", args={"order": "18"})]
    (completed,) = recorder.only(ToolExecutionCompleted)
    assert completed.result == "PAID 18!"  # nothing of what the tool said is published


async def test_a_result_without_the_tool() -> None:
    """A hook may answer in place of the tool."""

    async def cached(call: HookedCall, _go: ToolGo) -> ToolOutcome:
        await trio.lowlevel.checkpoint()
        return call.result("paid before")

    assert (await paid_with(on_tool(cached)))[:3] == ("paid before", False, [])


async def test_changed_arguments_that_do_not_fit_the_tool() -> None:
    """They are checked as the model's are."""

    async def other(call: HookedCall, go: ToolGo) -> ToolOutcome:
        return await go(call.with_args({"amount": 3}))

    told, is_error, paid, _ = await paid_with(on_tool(other))
    assert told.startswith("not run: a hook has changed the arguments: bad arguments: ")
    assert (is_error, paid) == (True, [])


async def hangs(_call: HookedCall, _go: ToolGo) -> None:
    """Never return."""
    await trio.sleep_forever()


async def breaks(_call: HookedCall, _go: ToolGo) -> None:
    """Raise an error."""
    await trio.lowlevel.checkpoint()
    raise KeyError("order")


async def returns_nothing(_call: HookedCall, _go: ToolGo) -> None:
    """Forget to go on, and to return."""
    await trio.lowlevel.checkpoint()


async def swallows(_call: HookedCall, _go: ToolGo) -> ToolOutcome:
    """Swallow its cancellation."""
    try:
        await trio.sleep_forever()
    except BaseException:  # noqa: BLE001 - it is what such a hook does wrong
        return ToolOutcome("all is well")


async def breaks_in_a_nursery(call: HookedCall, go: ToolGo) -> None:
    """Raise a group of errors."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(breaks, call, go)
        await trio.sleep_forever()


FAILURES = {
    hangs: "TimeoutError: it took more than 30 s",
    breaks: "KeyError: 'order'",
    returns_nothing: "TypeError: on_tool returned a value of type NoneType: return what `go` returned, or a value "
    "that `HookedCall` makes",
    swallows: "TimeoutError: it took more than 30 s",
}


@pytest.mark.parametrize("act", [*FAILURES, breaks_in_a_nursery])
async def test_a_hook_that_fails_denies(act: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Its call does not run, and the log has a warning without the text of the error."""
    hook = on_tool(act)
    type(hook).__qualname__ = f"Guard_{act.__name__}"
    with caplog.at_level(logging.WARNING, "warren.hooks"):
        told, is_error, paid, _ = await paid_with(hook)
    assert told.startswith(f"not run: the hook Guard_{act.__name__} failed: {FAILURES.get(act, 'ExceptionGroup')}")
    assert (is_error, paid) == (True, [])
    (record,) = caplog.records
    assert "'order'" not in record.getMessage()
    assert record.getMessage().startswith(f"the hook Guard_{act.__name__}.on_tool failed: ")


@pytest.mark.parametrize("act", [*FAILURES, breaks_in_a_nursery])
async def test_a_hook_that_fails_open_is_as_if_it_were_not_there(act: Callable[..., Any]) -> None:
    """`on_failure` says so."""
    assert (await paid_with(on_tool(act, on_failure="allow")))[:3] == ("paid 17", False, ["17"])


async def test_a_hook_that_fails_after_the_tool() -> None:
    """The result is withheld, or it is the tool's if the hook fails open: the tool has run in both cases."""

    async def fails_late(_call: HookedCall, go: ToolGo) -> None:
        await go()
        raise ValueError("late")

    told, is_error, paid, _ = await paid_with(on_tool(fails_late))
    assert told == "the result is withheld: the hook on_tool.<locals>.Guard failed: ValueError: late"
    assert (is_error, paid) == (True, ["17"])
    assert (await paid_with(on_tool(fails_late, on_failure="allow")))[:3] == ("paid 17", False, ["17"])


async def test_the_clock_of_a_hook_stands_while_the_tool_runs() -> None:
    """A tool may take longer than a hook; the hook's own time before and after counts together."""

    @tool
    async def slow() -> str:
        """Take a minute."""
        await trio.sleep(60)
        return "slept"

    def waits(before: float, after: float) -> Hooks:
        async def act(_call: HookedCall, go: ToolGo) -> ToolOutcome:
            await trio.sleep(before)
            outcome = await go()
            await trio.sleep(after)
            return outcome

        return on_tool(act, timeout=10)

    for before, after, expected in ((4, 5, "slept"), (6, 5, "withheld")):
        model = says(reply("", ToolUseBlock("c1", "slow", {})), reply("done"))
        async with open_runtime(model, tools=[slow], hooks=[waits(before, after)]) as service:
            result = await service.create_session("Go.")
            told = (await transcript(service, result.session_id))[-2]
            assert isinstance(told, ToolResultsMessage)
            assert expected in told.results[0].content


async def test_go_is_called_once() -> None:
    """A second call is an error of the hook, and the tool runs once."""

    async def twice(_call: HookedCall, go: ToolGo) -> ToolOutcome:
        await go()
        return await go()

    told, _, paid, _ = await paid_with(on_tool(twice))
    assert "`go` can be called once" in told
    assert paid == ["17"]


async def test_a_call_that_its_hook_cuts_off() -> None:
    """A hook may limit the time of the tool."""

    @tool
    async def slow() -> None:
        """Never end."""
        await trio.sleep_forever()

    async def limits(call: HookedCall, go: ToolGo) -> ToolOutcome:
        with trio.move_on_after(1):
            return await go()
        return call.result("too slow", is_error=True)

    model = says(reply("", ToolUseBlock("c1", "slow", {})), reply("done"))
    recorder = Recorder()
    async with open_runtime(model, tools=[slow], hooks=[on_tool(limits)]) as service:
        await service.create_session("Go.", on_event=recorder)
    (completed,) = recorder.only(ToolExecutionCompleted)
    assert (completed.result, completed.is_error, completed.duration_ms) == ("too slow", True, 1000)


async def test_an_interrupt_cancels_a_hook() -> None:
    """The turn ends at once, and the call has a result."""
    pay, paid = paying()
    began = trio.Event()

    async def waits(_call: HookedCall, _go: ToolGo) -> None:
        began.set()
        await trio.sleep_forever()

    model = says(["hello"], reply("", CALL), reply("done"))
    async with open_runtime(model, tools=[pay], hooks=[on_tool(waits)]) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session("Hi.")).session_id

        async def turn() -> None:
            with pytest.raises(AgentError, match="interrupted"):
                await service.start_turn(session_id, "Pay.")

        nursery.start_soon(turn)
        await began.wait()
        await service.interrupt(session_id)
        told = (await transcript(service, session_id))[-1]
        assert isinstance(told, ToolResultsMessage)
        assert told.results[0].content == "cancelled before it ended"
    assert paid == []


class Prompts(Hooks):
    """Denies prompts with a word, changes others, and answers one itself."""

    def __init__(self) -> None:
        self.seen = list[HookedTurn]()

    async def on_turn(self, turn: HookedTurn, go: TurnGo) -> TurnEnd | Denied:
        self.seen.append(turn)
        if "forbidden" in turn.prompt:
            return turn.deny("the prompt has a forbidden word")
        if turn.prompt == "ping":
            return turn.answer("pong")
        end = await go(turn.with_prompt(turn.prompt.replace("secret", "***")))
        if end.text == "rude":
            return turn.answer("polite")
        if end.text == "bad":
            return turn.deny("a bad answer")
        return end


async def test_prompts_and_answers_that_hooks_change() -> None:
    """The conversation has the changed prompt and the changed answer, and so have the events and the title."""
    hook, recorder = Prompts(), Recorder()
    async with open_runtime(says(["hello"], ["rude"]), hooks=[hook]) as service:
        first = await service.create_session("my secret", on_event=recorder)
        second = await service.start_turn(first.session_id, "again", on_event=recorder)
        third = await service.start_turn(first.session_id, "ping", on_event=recorder)
        messages = await transcript(service, first.session_id)
        (view,) = (await service.list()).sessions
    assert [first.text, second.text, third.text] == ["hello", "polite", "pong"]
    said = [
        each.content if isinstance(each, UserMessage) else each.text
        for each in messages
        if isinstance(each, UserMessage | AssistantMessage)
    ]
    assert said == ["my ***", "hello", "again", "polite", "ping", "pong"]
    assert [each.prompt for each in recorder.only(RunStarted)] == ["my ***", "again", "ping"]
    assert view.title == "my ***"
    assert (third.usage.total_tokens, third.steps) == (0, 0)
    assert [each.content for each in recorder.only(TextComplete)][-2:] == ["polite", "pong"]


async def test_a_prompt_that_is_denied() -> None:
    """It does not enter the conversation, and nothing of it is published; the session goes on."""
    recorder = Recorder()
    async with open_runtime(says(["hello"], ["hello"]), hooks=[Prompts()]) as service:
        first = await service.create_session("Hi.", on_event=recorder)
        with pytest.raises(AgentError, match="denied: the prompt has a forbidden word") as caught:
            await service.start_turn(first.session_id, "forbidden fruit", on_event=recorder)
        assert caught.value.cause == "denied"
        assert (await service.start_turn(first.session_id, "Hi.", on_event=recorder)).text == "hello"
        prompts = [
            each.content for each in await transcript(service, first.session_id) if isinstance(each, UserMessage)
        ]
        assert prompts == ["Hi.", "Hi."]
    assert "fruit" not in repr(recorder.envelopes)


async def test_an_answer_that_is_denied() -> None:
    """The turn fails with the cause, as a turn does."""
    recorder = Recorder()
    async with open_runtime(says(["bad"]), hooks=[Prompts()]) as service:
        with pytest.raises(AgentError, match="denied: a bad answer") as caught:
            await service.create_session("Hi.", on_event=recorder)
        (view,) = (await service.list()).sessions
        assert (view.session_id, view.last_outcome) == (caught.value.session_id, "denied")
    (failed,) = recorder.only(RunFailed)
    assert failed.cause == "denied"


class Requests(Hooks):
    """Changes requests and answers."""

    async def on_model(self, request: HookedRequest, go: ModelGo) -> ModelReply | Denied:
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        if last.content == "deny":
            return request.deny("no model for this")
        if last.content == "answer":
            return request.answer("from the hook")
        changed = [*request.messages[:-1], UserMessage(last.content.replace("secret", "***"))]
        said = await go(request.changed(messages=changed))
        if last.content == "deny after":
            return request.deny("not this answer")
        return request.answer(said.message.text.replace("token", "***")) if "token" in said.message.text else said


class Holding(Requests):
    """Holds the pieces back."""

    holds = True


def repeating() -> FunctionModel:
    """Return a model that says what it was told, piece by piece."""

    async def answer(request: Any, emit: Any) -> ModelReply:
        await trio.lowlevel.checkpoint()
        text = f"you said: {request.messages[-1].content}"
        for word in text.split(" "):
            emit(TextPiece(f"{word} "))
        return reply(text)

    return FunctionModel(answer)


async def test_requests_and_replies_that_hooks_change() -> None:
    """The model gets the changed request; the conversation keeps its own messages, and has the changed answer."""
    async with open_runtime(repeating(), hooks=[Requests()]) as service:
        first = await service.create_session("a secret token")
        assert first.text == "you said: a *** ***"
        assert first.usage.total_tokens == 5  # those of the model count, whatever the hook makes of its answer
        prompt, answer = (await transcript(service, first.session_id))[-2:]
        assert isinstance(prompt, UserMessage)
        assert isinstance(answer, AssistantMessage)
        assert (prompt.content, answer.text) == ("a secret token", "you said: a *** ***")
        second = await service.start_turn(first.session_id, "answer")
        assert (second.text, second.usage.total_tokens, second.steps) == ("from the hook", 0, 1)
        for prompt_, reason in (("deny", "no model for this"), ("deny after", "not this answer")):
            with pytest.raises(AgentError, match=f"denied: {reason}"):
                await service.start_turn(first.session_id, prompt_)
        assert isinstance((await transcript(service, first.session_id))[-1], UserMessage)  # nothing of the answer stays
        (view,) = (await service.list()).sessions
        assert view.total_tokens == 10  # the denied answer cost too


async def test_pieces_that_are_held_back() -> None:
    """Nothing of an answer is shown before the hook has seen it whole, and what it has taken out never is."""
    recorder = Recorder()
    async with open_runtime(repeating(), hooks=[Holding()]) as service:
        first = await service.create_session("a token", on_event=recorder)
        await service.start_turn(first.session_id, "hello", on_event=recorder)
        with pytest.raises(AgentError, match="not this answer"):
            await service.start_turn(first.session_id, "deny after", on_event=recorder)
    shown = [each.delta for each in recorder.only(TextDelta)]
    assert shown == ["you said: a ***", "you ", "said: ", "hello "]


async def test_hooks_of_an_agent_are_within_those_of_the_runtime() -> None:
    """Each knows the session, its agent and the turn; sessions without the agent have the runtime's alone."""
    seen = list[tuple[str, str | None, int]]()

    class Notes(Hooks):
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_turn(self, turn: HookedTurn, go: TurnGo) -> TurnEnd | Denied:
            seen.append((self.name, turn.agent, turn.turn))
            return await go()

    agent = Agent("desk", hooks=[Notes("agent")])
    config = Config(agents=(agent,))
    async with open_runtime(says(["one"], ["two"], ["three"]), hooks=[Notes("runtime")], config=config) as service:
        first = await service.create_session("Hi.", agent="desk")
        await service.start_turn(first.session_id, "Hi.")
        await service.create_session("Hi.")
    assert seen == [
        *(("runtime", "desk", 1), ("agent", "desk", 1)),
        *(("runtime", "desk", 2), ("agent", "desk", 2)),
        ("runtime", None, 1),
    ]


async def test_hooks_of_a_session() -> None:
    """They are within those of the agent; its forks have them too, and no other session has."""
    seen = list[str]()

    class Notes(Hooks):
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_turn(self, turn: HookedTurn, go: TurnGo) -> TurnEnd | Denied:
            seen.append(self.name)
            return await go(turn)

    agent = Agent("desk", hooks=[Notes("agent")])
    config = Config(agents=(agent,))
    async with open_runtime(says(*[["x"]] * 5), hooks=[Notes("runtime")], config=config) as service:
        made = await service.create_session("Hi.", agent="desk", hooks=[Notes("first"), Notes("second")])
        assert seen == ["runtime", "agent", "first", "second"]
        fork = await service.fork(made.session_id)
        for session_id in (made.session_id, fork.state.session_id):
            seen.clear()
            await service.start_turn(session_id, "Hi.")
            assert seen == ["runtime", "agent", "first", "second"]
        seen.clear()
        await service.session(agent, hooks=[Notes("own")]).turn("Hi.")
        await service.create_session("Hi.", agent="desk")
        assert seen == ["runtime", "agent", "own", "runtime", "agent"]


async def test_hooks_of_a_session_that_are_none() -> None:
    """The field is named, and no session is made; one that is there gets no others."""
    async with open_runtime(says(["one"])) as service:
        bad: Any
        for bad, path in (
            ([Prompts], "$.hooks[0]"),
            ("x", "$.hooks"),
            ([on_tool(hangs, timeout=0)], "$.hooks[0].timeout"),
        ):
            with pytest.raises(InvalidParamsError) as refused:
                await service.create_session("Hi.", hooks=bad)
            assert refused.value.path == path
        assert (await service.list()).sessions == ()
        made = await service.create_session("Hi.")
        with pytest.raises(InvalidParamsError) as refused:
            service.session(id=made.session_id, hooks=[Prompts()])
        assert refused.value.path == "$.hooks"


@pytest.mark.parametrize(
    ("hooks", "problem"),
    [
        ([Prompts], r"hooks\[0\] must be a warren.Hooks \(an object of the class, not the class\)"),
        ([Prompts(), "x"], r"hooks\[1\] must be a warren.Hooks"),
        ([on_tool(hangs, on_failure="open")], r"hooks\[0\].on_failure must be 'deny' or 'allow'"),
        ([on_tool(hangs, timeout=0)], r"hooks\[0\].timeout must be above 0, and at most 86400 seconds"),
        ("x", "hooks must be a list"),
    ],
)
def test_what_is_no_hook(hooks: Any, problem: str) -> None:
    """The field is named."""
    with pytest.raises(FieldValueError, match=problem):
        Agent("desk", hooks=hooks)
