"""Sessions that are made of agents: what they have of them, over restarts of the process and changes of the agent."""

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import open_runtime, transcript
from warren.agents.agent import Agent
from warren.base.errors import AgentError, InvalidParamsError
from warren.base.principals import Principal
from warren.conversation.agents import AgentRef
from warren.conversation.budget import Budget
from warren.conversation.messages import AssistantMessage, SystemMessage, ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool, tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
SOON = Limits(drain=0.01)


def paying(said: str, seconds: float = 0) -> Tool:
    """Return a tool."""

    @tool(name="pay", restart="replay")
    async def pay(order: str) -> str:
        """Pay money back for an order."""
        await trio.sleep(seconds)
        return f"{said} {order}"

    return pay


DESK = Agent("desk", "Settle it.", tools=[paying("paid")], budget=Budget(max_steps=20))
PLAIN = Agent("plain", "Be brief.", options=DESK.options)
CALL = ToolUseBlock("c1", "pay", {"order": "17"})


@tool(name="pay")
async def pay_of_all(order: str) -> str:
    """Pay, as any session may be offered."""
    return f"nobody paid {order}"


def asking() -> FunctionModel:
    """Return a model that pays once in each turn, if it is offered the tool, and tells the result."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if isinstance(last, ToolResultsMessage):
            return reply(last.results[0].content)
        names = [each.name for each in request.tools]
        if "pay" not in names:
            return reply(f"offered: {names}")
        return reply("", ToolUseBlock(f"c{len(request.messages)}", "pay", {"order": "17"}))

    return FunctionModel(answer)


def opened(path: Path | None, *agents: Agent, **options: Any) -> Any:
    """Open a runtime that has some agents."""
    return open_runtime(asking(), store=path, config=Config(agents=agents, limits=SOON), **options)


async def test_a_session_has_all_of_its_agent() -> None:
    """Its instructions, its bounds, its tools and no others: also one that the runtime has under the same name."""
    async with opened(None, DESK, PLAIN, tools=[pay_of_all]) as service:
        made = await service.create_session("go", agent="desk", budget=Budget(max_steps=50))
        assert made.text == "paid 17"
        first, *_ = await transcript(service, made.session_id)
        assert first == SystemMessage("Settle it.", AgentRef("desk", DESK.version))
        view = await service.read(made.session_id)
        assert view.state.agent == AgentRef("desk", DESK.version)
        (row,) = (await service.list()).sessions
        assert row.agent == AgentRef("desk", DESK.version)
        assert (await service.create_session("go", agent="plain")).text == "offered: []"
        without = await service.create_session("go")
        assert without.text == "nobody paid 17"
        assert (await service.read(without.session_id)).state.agent is None


async def test_the_bounds_are_the_agents() -> None:
    """The caller's larger budget does not hold."""
    async with opened(None, DESK.with_(budget=Budget(max_steps=1))) as service:
        with pytest.raises(Exception, match="steps"):
            await service.create_session("go", agent="desk", budget=Budget(max_steps=50))


async def test_the_lists_have_versions(tmp_path: Path) -> None:
    """Those of which sessions were made, the newest first; an agent without a session has none."""
    changed = DESK.with_(instructions="Settle it now.")
    async with opened(tmp_path, DESK, PLAIN) as service:
        assert (await service.agent("desk")).versions == ()
        await service.create_session(None, agent="desk")
        await service.create_session(None, agent="desk")
    async with opened(tmp_path, changed) as service:
        found = await service.agent("desk")
        assert (found.version, found.here, found.spec) == (changed.version, True, changed.spec)
        await service.create_session(None, agent="desk")
        assert [each.version for each in (await service.agent("desk")).versions] == [changed.version, DESK.version]
        old = await service.agent("desk", version=DESK.version)
        assert (old.here, old.spec) == (False, DESK.spec)
        with pytest.raises(InvalidParamsError, match=r"\$\.version"):
            await service.agent("desk", version="1")
        with pytest.raises(InvalidParamsError, match=r"\$\.name: there is no agent 'dsek' here; did you mean 'desk'"):
            await service.agent("dsek")
    async with opened(tmp_path, PLAIN) as service:
        listed = (await service.agents()).agents
        assert [(each.name, each.version, each.here) for each in listed] == [
            ("desk", changed.version, False),
            ("plain", PLAIN.version, True),
        ]
        assert (await service.agents(offset=1)).agents == listed[1:]
        assert (await service.agents(limit=1)).agents == listed[:1]
        with pytest.raises(InvalidParamsError, match=r"\$\.agent: there is no agent 'desk' here"):
            await service.create_session(None, agent="desk")


async def test_tenants_see_their_own_versions_alone(tmp_path: Path) -> None:
    """A version that only others have made sessions of is unknown, in the words for one that nobody has."""
    ann, bob = Principal("acme", "ann"), Principal("other", "bob")
    async with opened(tmp_path, DESK) as service:
        await service.as_(ann).create_session(None, agent="desk")
    async with opened(tmp_path, PLAIN) as service:
        assert [each.name for each in (await service.as_(ann).agents()).agents] == ["desk", "plain"]
        assert [each.name for each in (await service.as_(bob).agents()).agents] == ["plain"]
        for name in ("desk", "nothing"):
            with pytest.raises(InvalidParamsError) as caught:
                await service.as_(bob).agent(name)
            assert caught.value.message == f"$.name: there is no agent {name!r} here"
        await service.as_(bob).create_session(None, agent="plain")
        assert (await service.as_(ann).agent("plain")).versions == ()


async def test_a_session_goes_on_with_the_code_of_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The agent's other version gives its functions, and nothing else; the log says so, once."""
    async with opened(tmp_path, DESK) as service:
        session_id = (await service.create_session("go", agent="desk")).session_id
    async with opened(tmp_path, DESK) as service:
        with caplog.at_level(logging.INFO, "warren.agents"):
            assert (await service.start_turn(session_id, "go")).text == "paid 17"
        assert caplog.messages == []
    changed = DESK.with_(instructions="Other.", tools=[paying("sent")], budget=Budget(max_steps=1))
    async with opened(tmp_path, changed) as service:
        with caplog.at_level(logging.INFO, "warren.agents"):
            for _ in range(2):
                assert (await service.start_turn(session_id, "go")).text == "sent 17"
        (line,) = caplog.messages
        assert f"{DESK.pin.ref}" in line
        assert f"{changed.pin.ref}" in line
        first, *_ = await transcript(service, session_id)
        assert first == SystemMessage("Settle it.", AgentRef("desk", DESK.version))
        assert (await service.read(session_id)).state.agent == AgentRef("desk", DESK.version)
    async with opened(tmp_path, DESK.with_(tools=[])) as service:
        assert (await service.start_turn(session_id, "go")).text == "offered: []"


async def test_no_turn_without_the_code_of_the_agent(tmp_path: Path) -> None:
    """The prompt is refused, and nothing of it is stored; an agent that is data needs no process that has it."""
    async with opened(tmp_path, DESK, PLAIN) as service:
        session_id = (await service.create_session("go", agent="desk")).session_id
        plain = (await service.create_session("go", agent="plain")).session_id
    async with opened(tmp_path) as service:
        before = await transcript(service, session_id)
        with pytest.raises(
            AgentError, match=r"'desk' has code that this process does not have \(the tool pay\)"
        ) as caught:
            await service.start_turn(session_id, "go")
        assert caught.value.cause == "agent_missing"
        assert await transcript(service, session_id) == before
        assert (await service.start_turn(plain, "go")).text == "offered: []"
        assert (await service.read(session_id)).state.agent == AgentRef("desk", DESK.version)


async def test_an_open_turn_waits_for_a_process_with_the_agent(tmp_path: Path) -> None:
    """A process without it leaves the turn open, and the next one that has it goes on with it."""
    async with opened(tmp_path, DESK.with_(tools=[paying("paid", 1_000)])) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None, agent="desk")).session_id

        async def turn() -> None:
            with pytest.raises(AgentError, match=r"shut|park|goes on"):
                await service.start_turn(session_id, "go")

        nursery.start_soon(turn)
        await trio.sleep(1)
        await service.stop()
    async with opened(tmp_path) as service:
        await trio.sleep(60)
        turn_view = (await service.read(session_id)).state.turn
        assert turn_view is not None
        assert turn_view.state == "parked"
    async with opened(tmp_path, DESK) as service:
        with trio.fail_after(60):
            await service.wait_turn(session_id)
        *_, last = await transcript(service, session_id)
        assert isinstance(last, AssistantMessage)
        assert last.text == "paid 17"


async def test_a_queued_prompt_waits_for_a_process_with_the_agent(tmp_path: Path) -> None:
    """Its sender hears that the agent is missing, and may send it again: it is taken once, where the agent is."""
    async with opened(tmp_path, DESK) as service:
        session_id = (await service.create_session(None, agent="desk")).session_id
    async with opened(tmp_path) as service:
        with pytest.raises(AgentError, match="has code that this process does not have") as caught:
            await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")
        assert (caught.value.cause, caught.value.retryable) == ("agent_missing", True)
        await trio.sleep(60)
        assert [each.text for each in await service.inputs(session_id)] == ["go"]
    async with opened(tmp_path, DESK) as service:
        with trio.fail_after(60):
            again = await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")
        assert again.text == "paid 17"
        assert len(await transcript(service, session_id)) == 5


async def test_forks_and_children_are_of_the_agent(tmp_path: Path) -> None:
    """They have its tools, and so the process has to have it."""
    async with opened(tmp_path, DESK) as service:
        session_id = (await service.create_session("go", agent="desk")).session_id
        fork = (await service.fork(session_id)).state
        child = await service.delegate(session_id, "go")
        assert (await service.wait_turn(child)).text == "paid 17"
        assert fork.agent == (await service.read(child)).state.agent == AgentRef("desk", DESK.version)
        assert (await service.start_turn(fork.session_id, "go")).text == "paid 17"


async def test_one_key_makes_one_session_whatever_becomes_of_the_agent(tmp_path: Path) -> None:
    """The name is compared, and not what the agent is."""
    async with opened(tmp_path, DESK, PLAIN) as service:
        first = await service.create_session("go", agent="desk", idempotency_key="k")
    async with opened(tmp_path, DESK.with_(tools=[], instructions="x"), PLAIN) as service:
        assert (await service.create_session("go", agent="desk", idempotency_key="k")).session_id == first.session_id
        with pytest.raises(InvalidParamsError, match="other values of agent"):
            await service.create_session("go", agent="plain", idempotency_key="k")
