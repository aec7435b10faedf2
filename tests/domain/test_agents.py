"""`Agent` as a value: what it refuses, what its version is made of, and what callers may change."""

from typing import Any

import pytest

from tests.support.models import says
from warren.agents.agent import Agent
from warren.base.fields import FieldValueError
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.conversation.options import CompactionConfig, SessionOptions, SessionTemplate
from warren.conversation.peers import Peer
from warren.models.tools import tool
from warren.settings.config import Config


@tool
async def pay(order: str, cents: int) -> str:
    """Pay money back."""
    return f"paid {cents} for {order}"


@tool(name="pay")
async def other_pay(order: str) -> str:
    """Pay."""
    return order


DESK = Agent("desk", "Settle it.", tools=[pay, "read_file"], model=["echo", "test"], budget=Budget(max_steps=20))


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a desk"}, "name"),
        ({"name": "-desk"}, "name"),
        ({"name": "d" * 65}, "name"),
        ({"name": 7}, "name"),
        ({"instructions": 7}, "instructions"),
        ({"instructions": "\ud800"}, "instructions"),
        ({"description": None}, "description"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": ["echo", " "]}, "model[1]"),
        ({"model": ["echo", says("x")]}, "model[1]"),
        ({"model": ["echo"] * 18}, "fallback"),
        ({"tools": "pay"}, "tools"),
        ({"tools": [pay, print]}, "tools[1]"),
        ({"tools": [pay, other_pay]}, "tools[1]"),
        ({"tools": ["memory_search", "search_project_history"]}, "tools[1]"),
        ({"budget": 3}, "budget"),
        ({"gates": "ask"}, "gates"),
        ({"compaction": {}}, "compaction"),
        ({"options": {}}, "options"),
        ({"options": SessionOptions(model="echo")}, "options.model"),
        ({"options": SessionOptions(fallback=("echo",))}, "options.fallback"),
        ({"options": SessionOptions(tools=("pay",))}, "options.tools"),
        ({"options": SessionOptions(budget=Budget(max_steps=1))}, "options.budget"),
        ({"options": SessionOptions(approvals=Gates(shell="ask"))}, "options.approvals"),
        ({"options": SessionOptions(compaction=CompactionConfig())}, "options.compaction"),
        ({"options": SessionOptions(peer=Peer("ann"))}, "options.peer"),
        ({"options": SessionOptions(output_schema={"type": "thing"})}, "options.output_schema.type"),
        ({"options": SessionOptions(provider="test"), "model": says("x")}, "options.provider"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(bad: dict[str, Any], field: str) -> None:
    """When the agent is made, not when a session is."""
    with pytest.raises(FieldValueError) as caught:
        Agent(**{"name": "desk", **bad})
    assert caught.value.field == field


def test_a_changed_agent_is_checked_too() -> None:
    """`with_` returns another agent, and leaves the first as it is."""
    strict = DESK.with_(gates=Gates(callback="ask"), model="echo")
    assert (strict.gates, strict.model, DESK.gates) == (Gates(callback="ask"), ("echo",), None)
    with pytest.raises(FieldValueError, match="tools"):
        DESK.with_(tools=[pay, pay])
    with pytest.raises(AttributeError):
        DESK.name = "clerk"  # type: ignore[misc]


def test_the_version_is_made_of_what_the_model_sees_and_what_bounds_it() -> None:
    """Equal agents have one version; each part that is data changes it, the body of a function does not."""

    @tool(name="pay", description="Pay money back.")
    async def rewritten(order: str, cents: int) -> str:
        return f"{order}: {cents}"

    assert DESK.with_(tools=[rewritten, "read_file"]).version == DESK.version
    changes: list[dict[str, Any]] = [
        {"name": "clerk"},
        {"instructions": "Settle it now."},
        {"description": "Complaints."},
        {"model": "echo"},
        {"tools": [pay]},
        {"tools": [other_pay, "read_file"]},
        {"budget": Budget(max_steps=21)},
        {"gates": Gates(callback="ask")},
        {"compaction": CompactionConfig()},
        {"options": SessionOptions(temperature=0.5)},
        {"options": SessionOptions(output_schema={"type": "object"})},
    ]
    assert len({DESK.version, *(DESK.with_(**each).version for each in changes)}) == len(changes) + 1
    assert DESK.pin.code == ("the tool pay",)
    assert DESK.with_(tools=["read_file"], model=says("x")).pin.code == ("the model",)


def test_the_version_is_the_same_in_every_process() -> None:
    """And in every release: an agent that has not changed stays the version that stores have."""
    made = Agent("desk", "Settle it.", tools=["b", "a"], budget=Budget(max_steps=2))
    assert made.version == "873fd9353d33680fa9e44a4eb60fbfaa41102a5ceac837a8d1f1627c9eb66890"


def test_a_caller_narrows_the_bounds_and_chooses_options_of_the_model() -> None:
    """The smaller limit and the stricter gate hold; the agent's provider is not that of another model."""
    agent = DESK.with_(gates=Gates(shell="ask"), options=SessionOptions(provider="test", temperature=0.1))
    asked = SessionOptions(
        budget=Budget(max_steps=30, max_tokens=9), approvals=Gates(shell="auto", mcp="deny"), temperature=0.9
    )
    options = agent.under(asked)
    assert options.budget == Budget(max_steps=20, max_tokens=9)
    assert options.approvals == Gates(shell="ask", mcp="deny")
    assert (options.temperature, options.model, options.provider) == (0.9, "echo", "test")
    assert options.tools == ("pay", "read_file")
    other = agent.under(SessionOptions(model="scripted:x"))
    assert (other.model, other.provider, other.budget) == ("scripted:x", None, Budget(max_steps=20))
    assert agent.under(SessionOptions()) == agent.spec.options


def test_a_template_names_no_tools_beside_an_agent() -> None:
    """Nor anything else that is the agent's own: an agent is a bound, too."""
    for name, value in {"tools": ("a",), "system_prompt": "x", "hosted_tools": {}, "output_schema": {}}.items():
        with pytest.raises(FieldValueError, match=f"{name} does not go with `agent`"):
            SessionTemplate(agent="desk", **{name: value})  # type: ignore[arg-type]


def test_two_agents_of_a_runtime_differ_in_their_names() -> None:
    """The same agent twice is one; a list and a tuple are alike."""
    assert Config(agents=[DESK, DESK]).agents == (DESK, DESK)
    for agents, field in (
        ([DESK, DESK.with_(instructions="x")], r"agents\[1\]\.name"),
        ([DESK, "desk"], r"agents\[1\]"),
        ("desk", "agents"),
    ):
        with pytest.raises(FieldValueError, match=field):
            Config(agents=agents)
