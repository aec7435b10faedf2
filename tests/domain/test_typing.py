"""What mypy and pyright know of agents, answers and tools: `make check-types` and `make check-api` read this module."""

from typing import assert_type

import attrs
import pytest

from warren import Agent, Session, SessionService, TurnResult, tool


@attrs.frozen
class Refund:
    cents: int


@tool
def pay(order: str, cents: int) -> int:
    """Pay."""
    return cents if order else 0


@tool(name="note")
def keep(text: str) -> list[str]:
    """Keep a note."""
    return [text]


async def of_service(service: SessionService) -> None:
    """Never runs: the types are all there is to it."""
    desk = service.session(Agent("desk", output_type=Refund))
    assert_type(desk, Session[Refund])
    assert_type(await desk.turn("hi"), TurnResult[Refund])
    assert_type((await desk.turn("hi", output_type=list[int])).output, list[int])
    async with desk.stream("hi") as events:
        assert_type((await events.result()).output, Refund)
    assert_type((await service.session(Agent("plain")).turn("hi")).output, str)
    async with service.session("desk").stream("hi", output_type=Refund) as events:
        assert_type((await events.result()).output.cents, int)


def test_a_tool_is_called_as_its_function() -> None:
    """With its own arguments and its own result."""
    assert_type(pay("17", 5), int)
    assert pay("17", cents=5) == 5
    assert_type(keep("a"), list[str])
    assert keep("a") == ["a"]


def test_an_agent_keeps_its_type() -> None:
    """Also with other values of its fields."""
    desk = Agent("desk", output_type=Refund)
    assert_type(desk.with_(description="Settles."), Agent[Refund])
    assert_type(desk.with_(output_type=int), Agent[int])
    assert desk.with_(output_type=int).output_type is int


def test_a_tool_without_words_is_a_warning() -> None:
    """It names the tool; a description is as good as a docstring."""

    def silent() -> None: ...

    with pytest.raises(UserWarning, match="tool silent has no docstring: the model is not told what it does"):
        tool(silent)
    with pytest.raises(UserWarning, match="tool mute"):
        tool(name="mute")(silent)
    assert tool(description="Say nothing.")(silent).spec.description == "Say nothing."
