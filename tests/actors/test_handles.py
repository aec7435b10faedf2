"""A session as an object: what it does at first, and what it passes on."""

import pytest
import trio

from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import open_runtime
from warren.agents.agent import Agent
from warren.base.errors import AgentError, InvalidParamsError, ProviderError, SessionNotFoundError
from warren.calls.handle import Session
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config
from warren.transport.embed import open_supervisor

pytestmark = pytest.mark.virtual_time


@tool
async def pay(order: str) -> str:
    """Pay money back for an order."""
    await trio.lowlevel.checkpoint()
    return f"paid {order}"


DESK = Agent("desk", "Settle it.", tools=[pay], gates=Gates(callback="ask"))
SETTINGS = Config(agents=(DESK,))


async def test_the_first_turn_creates_the_session() -> None:
    """Its options are those of the session; later turns are of the same one."""
    async with open_runtime(config=SETTINGS) as service:
        session = service.session(DESK, labels={"team": "red"}, title="Order 17")
        with pytest.raises(RuntimeError, match="no id yet"):
            _ = session.id
        assert (await service.list()).sessions == ()
        first = await session.turn("one", temperature=0.5)
        assert (first.text, first.session_id) == ("one", session.id)
        assert (await session.turn("two", mode="queue", idempotency_key="k")).text == "two"
        state = (await session.read()).state
        assert (state.labels, state.title, state.message_count) == ({"team": "red"}, "Order 17", 5)
        assert (state.agent and state.agent.name, session.agent) == ("desk", "desk")
        page = await session.history(1, limit=1)
        assert [each.position for each in page.messages] == [1]


async def test_a_session_without_a_turn() -> None:
    """Awaiting the object creates it, once; a second object names one that is there."""
    async with open_runtime(config=SETTINGS) as service:
        session = await service.session("desk")
        assert await session is session
        assert await session.create() is session
        (row,) = (await service.list()).sessions
        assert row.session_id == session.id
        again = service.session(id=session.id)
        assert (await again.turn("hi")).text == "hi"
        assert again.agent is None
        fork = await again.fork(2, labels={"a": "b"}, title="Other")
        assert isinstance(fork, Session)
        assert ((await fork.read()).state.message_count, fork.id == again.id) == (2, False)
        with pytest.raises(SessionNotFoundError):
            await service.session(id="nobody").turn("hi")


async def test_calls_are_approved_and_denied_and_turns_interrupted() -> None:
    """By the methods of the session."""
    model = says(
        *(
            reply("", ToolUseBlock(f"c{number}", "pay", {"order": "17"})) if number % 2 == 0 else reply("done")
            for number in range(4)
        ),
        reply("", ToolUseBlock("c4", "pay", {"order": "17"})),
    )
    async with open_runtime(model, config=SETTINGS) as service:
        session = await service.session(DESK)
        for answer in (session.approve, session.deny):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.turn, "go")
                await trio.sleep(1)
                (waiting,) = (await session.read()).state.pending_approvals
                await answer(waiting.call_id)
        messages = [each.message for each in (await session.history()).messages]
        paid, denied = [each.results[0] for each in messages if isinstance(each, ToolResultsMessage)]
        assert (paid.content, paid.is_error, denied.is_error) == ("paid 17", False, True)

        async def cut() -> None:
            with pytest.raises(AgentError) as caught:
                await session.turn("go")
            assert caught.value.cause == "cancelled"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            await trio.sleep(1)
            await session.interrupt()


async def test_a_first_turn_that_failed_is_the_sessions_first() -> None:
    """The object has the id of the session that is there, and the next turn goes on with it."""
    model = says(ProviderError("no", cause="bad_request", retryable=False), reply("yes"))
    async with open_runtime(model, config=SETTINGS) as service:
        session = service.session(DESK)
        with pytest.raises(ProviderError):
            await session.turn("one")
        assert (await session.turn("two")).text == "yes"
        (row,) = (await service.list()).sessions
        assert row.session_id == session.id


async def test_two_tasks_do_not_create_it_at_once() -> None:
    """The second one is told what to do."""

    async def slow(_request: ModelRequest, _emit: object) -> ModelReply:
        await trio.sleep(1)
        return reply("done")

    async with open_runtime(FunctionModel(slow), config=SETTINGS) as service, trio.open_nursery() as nursery:
        session = service.session(DESK)
        nursery.start_soon(session.turn, "one")
        await trio.sleep(0.5)
        with pytest.raises(RuntimeError, match="before you use it in two tasks"):
            await session.turn("two")


async def test_what_is_refused_at_once() -> None:
    """Neither an agent nor an id; labels for a session that is there; and with the first turn an unknown agent."""
    async with open_runtime(config=SETTINGS) as service:
        with pytest.raises(InvalidParamsError, match=r"\$\.agent: is required"):
            service.session()
        with pytest.raises(InvalidParamsError, match=r"\$\.title: is for a new session"):
            service.session(id="a", title="x")
        with pytest.raises(InvalidParamsError, match=r"\$\.agent: there is no agent 'clerk' here"):
            await service.session("clerk").turn("hi")


async def test_turns_are_streamed() -> None:
    """The first one creates the session, which has its id within the block; later ones are of the same session."""
    async with open_runtime(config=SETTINGS) as service:
        session = service.session(DESK)
        async with session.stream("one") as events:
            assert session.id == events.session_id
            assert (await events.result()).text == "one"
        async with session.stream("two") as events:
            assert "".join([each async for each in events.texts()]) == "two"
            assert (await events.result()).session_id == session.id
        assert (await session.read()).state.message_count == 5
        with pytest.raises(InvalidParamsError, match=r"\$\.agent"):
            async with service.session("clerk").stream("one"):
                pytest.fail("it has begun")


async def test_an_agent_that_was_not_given_to_the_runtime() -> None:
    """The runtime takes it in, with a model and tools of its own; another one of its name is refused."""
    model = says(reply("", ToolUseBlock("c", "pay", {"order": "17"})), reply("done"), reply("again"))
    clerk = Agent("clerk", "Pay.", model=model, tools=[pay])
    async with open_supervisor(environ={}) as service:
        session = service.session(clerk)
        assert (await session.turn("one")).text == "done"
        assert (await service.session(clerk.with_()).turn("two")).text == "again"
        with pytest.raises(InvalidParamsError, match=r"agent\.name: 'clerk' is the name of another agent here: clerk@"):
            service.session(clerk.with_(instructions="Do not pay."))
        page = await session.history()
        assert isinstance(page.messages[3].message, ToolResultsMessage)
        assert page.messages[3].message.results[0].content == "paid 17"
