"""Agents that work for other agents: a call of the tool that one is has a child session of it as its result."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import open_runtime, transcript
from warren import open_supervisor
from warren.actors.calls.service import Service
from warren.agents.agent import Agent, with_workers
from warren.base.errors import InvalidParamsError
from warren.conversation.agents import AgentRef
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.conversation.messages import AssistantMessage, SystemMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.views import SessionSummary, SessionView
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits
from warren.storage.queries import SessionRow

pytestmark = pytest.mark.virtual_time
SOON = Limits(drain=0.01)


@attrs.frozen
class Order:
    """What a clerk finds."""

    number: int
    problem: str


@attrs.define(eq=False)
class Office:
    """The model of all agents: `ask NAME A; B` calls the tool once for each piece, `look` calls a tool of the clerk's.

    Attributes:
        asked: the instructions and the prompt of each call.
        hangs: whether the model never answers a prompt that begins with `slow`.
    """

    asked: list[tuple[str, str]] = attrs.field(factory=list)
    hangs: bool = False

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Answer by the prompt."""
        await trio.lowlevel.checkpoint()
        first = request.messages[0]
        prompt = next(each for each in request.messages if isinstance(each, UserMessage)).content
        self.asked.append((first.content if isinstance(first, SystemMessage) else "", prompt))
        last, (word, _, rest) = request.messages[-1], prompt.partition(" ")
        if word == "slow" and self.hangs:
            await trio.sleep_forever()
        if isinstance(last, ToolResultsMessage):
            return reply(" + ".join(each.content for each in last.results))
        if word == "ask":
            name, _, pieces = rest.partition(" ")
            calls = [ToolUseBlock(f"c{at}", name, {"prompt": each}) for at, each in enumerate(pieces.split("; "))]
            return reply("", *calls)
        if word == "look":
            return reply("", ToolUseBlock("l1", "look", {}))
        if request.answer_schema is not None:
            return reply(json.dumps({"number": 17, "problem": prompt}))
        return reply(f"done: {prompt}")


@tool(restart="replay")
async def look() -> str:
    """Look."""
    return "seen"


CLERK = Agent("clerk", "You look orders up.", description="Knows all orders.", tools=[look], output_type=Order)
WORKER = Agent("worker", "Work.", tools=[look], budget=Budget(max_steps=50))
PLAIN = Agent("plain", "You have no code.")
DESK = Agent("desk", "Settle it.", tools=[CLERK.as_tool(), WORKER.as_tool(name="work", description="Work hard.")])


def opened(path: Path | None, *agents: Agent[Any], office: Office | None = None, **config: Any) -> Any:
    """Open a runtime that has some agents."""
    settings = Config(agents=agents, limits=SOON, **config)
    return open_runtime(FunctionModel((office or Office()).answer), store=path, config=settings)


async def children(service: Service, session_id: str) -> list[SessionSummary]:
    """Return the children of a session, the oldest first."""
    return list(reversed((await service.list(delegated_by=session_id)).sessions))


async def last_of(service: Service, session_id: str) -> str:
    """Return the text of a session's last message."""
    last = (await transcript(service, session_id))[-1]
    assert isinstance(last, AssistantMessage)
    return last.text


async def test_the_answer_of_a_typed_agent_is_json() -> None:
    """Its child has its own instructions, and is one of its sessions in every list."""
    office = Office()
    async with opened(None, DESK, office=office) as service:
        made = await service.create_session("ask clerk it is broken", agent="desk")
        assert json.loads(made.text) == {"number": 17, "problem": "it is broken"}
        assert ("You look orders up.", "it is broken") in office.asked
        (child,) = await children(service, made.session_id)
        assert child.agent == AgentRef("clerk", CLERK.version)
        system, *_ = await transcript(service, child.session_id)
        assert system == SystemMessage("You look orders up.", AgentRef("clerk", CLERK.version))
        assert [each.name for each in (await service.agents()).agents] == ["clerk", "desk", "worker"]


async def test_a_child_has_the_tools_of_its_agent_and_no_others() -> None:
    """Those are not among its parent's, and the parent's are not among its own."""
    async with opened(None, DESK) as service:
        assert (await service.create_session("ask work look", agent="desk")).text == "seen"
        assert "there is no tool" in (await service.create_session("ask work ask clerk x", agent="desk")).text


async def test_an_agent_may_be_given_to_another_as_it_is() -> None:
    """`agents` are tools of their names; their own agents work for them in turn."""
    boss = Agent("boss", agents=[DESK])
    assert boss.spec.options.tools == ("desk",)
    async with opened(None, boss) as service:
        assert (await service.create_session("ask desk ask work look", agent="boss")).text == "seen"


async def test_calls_of_one_answer_share_the_budget() -> None:
    """Two different agents: each gets a third of what is left, at most what it asks for."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if isinstance(request.messages[-1], UserMessage) and len(request.tools) == 2:
            calls = ToolUseBlock("c1", "big", {"prompt": "a"}), ToolUseBlock("c2", "small", {"prompt": "b"})
            return reply("", *calls)
        return reply("done")

    big, small = Agent("big"), Agent("small", budget=Budget(max_steps=2))
    boss = Agent("boss", agents=[big, small], budget=Budget(max_steps=21))
    async with open_runtime(FunctionModel(answer), config=Config(agents=(boss,), limits=SOON)) as service:
        made = await service.create_session("go", agent="boss")
        found = {}
        for each in await children(service, made.session_id):
            record = await service.local.read(SessionRow(each.session_id, "default"))
            assert record is not None
            assert record.agent is not None
            assert record.options.budget is not None
            found[record.agent.name] = record.options.budget.max_steps
        assert found == {"big": 9, "small": 2}


async def test_the_gates_of_the_parent_hold_for_its_children() -> None:
    """A tool of the child's agent waits for approval, as it would in the parent."""
    strict = DESK.with_(gates=Gates(callback="deny"))
    async with opened(None, strict) as service:
        assert "denied" in (await service.create_session("ask work look", agent="desk")).text


async def test_the_parents_process_dies(tmp_path: Path) -> None:
    """The next one goes on with both, and the child is made once."""
    stuck, office = Office(hangs=True), Office()
    async with opened(tmp_path, DESK, office=stuck) as service:
        parent = (await service.create_session(None, agent="desk")).session_id
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, parent, "ask clerk slow one; plain two")
            await trio.sleep(5)
            assert len(stuck.asked) == 4
            nursery.cancel_scope.cancel()
    async with opened(tmp_path, DESK, office=office) as service:
        await trio.sleep(30)
        assert (await last_of(service, parent)).count("problem") == 2
        assert len(await children(service, parent)) == 2
        assert sum(prompt.startswith("plain") for _, prompt in [*stuck.asked, *office.asked]) == 2  # one with a schema


async def test_a_child_waits_for_the_code_of_its_agent(tmp_path: Path) -> None:
    """A process that has the parent's agent with another worker does not run it; one that has it goes on."""
    stuck, office = Office(hangs=True), Office()
    async with opened(tmp_path, DESK, office=stuck) as service:
        parent = (await service.create_session(None, agent="desk")).session_id
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, parent, "ask work slow one")
            await trio.sleep(5)
            assert len(stuck.asked) == 2
            nursery.cancel_scope.cancel()
    async with opened(tmp_path, Agent("desk", "Settle it."), office=office) as service:
        await trio.sleep(30)
        assert office.asked == []
        assert (await service.read(parent)).state.turn is not None
    async with opened(tmp_path, DESK, office=office) as service:
        await trio.sleep(30)
        assert await last_of(service, parent) == "done: slow one"


async def test_a_model_of_its_own_and_instructions_by_a_function() -> None:
    """The child has what no other agent here has."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        first = request.messages[0]
        assert isinstance(first, SystemMessage)
        return reply(f"mine: {first.content}")

    async def today(_session: SessionView) -> str:
        await trio.lowlevel.checkpoint()
        return "As of today."

    own = Agent("own", today, model=FunctionModel(answer))
    boss = Agent("boss", model=FunctionModel(Office().answer), agents=[own])
    async with open_supervisor(agents=[boss]) as service:
        assert (await service.create_session("ask own hello", agent="boss")).text == "mine: As of today."
    async with open_supervisor() as service:
        assert (await service.session(boss).turn("ask own hello")).text == "mine: As of today."


def test_the_version_counts_the_agents_that_work_for_it() -> None:
    """A worker that changes is another version of its boss."""
    boss = Agent("boss", agents=[CLERK])
    assert boss.version == Agent("boss", tools=[CLERK.as_tool()]).version
    assert boss.version != Agent("boss", agents=[CLERK.with_(instructions="Look again.")]).version
    assert boss.spec.agents == (AgentRef("clerk", CLERK.version),)


def test_who_knows_an_agent_that_is_only_a_tool() -> None:
    """The tenants that know one of those that have it."""
    boss, chief = Agent("boss", agents=[CLERK]), Agent("chief", agents=[CLERK])
    every, tenants = with_workers((boss, chief), {"boss": ("acme",), "chief": ("other",)})
    assert [each.name for each in every] == ["boss", "chief", "clerk"]
    assert tenants["clerk"] == ("acme", "other")
    assert "clerk" not in with_workers((boss, chief), {"boss": ("acme",)})[1]
    assert with_workers((boss, CLERK), {"boss": ("acme",)})[1] == {"boss": ("acme",)}


async def test_bad_names_and_strangers_are_refused() -> None:
    """By the field."""
    with pytest.raises(ValueError, match="name must be"):
        CLERK.as_tool(name="no name")
    with pytest.raises(ValueError, match=r"agents\[0\].* has the name of another tool: 'clerk'"):
        DESK.with_(agents=[CLERK])
    with pytest.raises(ValueError, match=r"agents\[0\].* must be a warren.Agent"):
        Agent("boss", agents=["clerk"])
    async with opened(None, DESK) as service:
        with pytest.raises(InvalidParamsError, match="'clerk' is the name of another agent here"):
            service.session(Agent("boss", agents=[CLERK.with_(instructions="Other.")]))
        with pytest.raises(InvalidParamsError, match="no agent 'boss'"):
            await service.create_session("x", agent="boss")
