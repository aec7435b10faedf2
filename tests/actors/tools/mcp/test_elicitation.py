"""Questions of MCP servers, which whoever approves a session's tool calls answers."""

from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.actors.tools.mcp.world import official
from tests.support.asking import ask
from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import Recorder
from tests.support.waiting import until
from warren.base.errors import AgentError
from warren.calls.facade import SessionService
from warren.conversation.categories import Gate, Gates
from warren.conversation.events import (
    ToolApprovalRequested,
    ToolApprovalResolved,
    ToolExecutionCompleted,
    ToolExecutionTimedOut,
)
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config
from warren.settings.tool_config import ToolsConfig
from warren.transport.embed import open_supervisor

FORM = {"type": "object", "properties": {"colour": {"type": "string", "default": "red"}}, "required": ["colour"]}
EMPTY = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


@asynccontextmanager
async def connected(config: Config, model: FunctionModel) -> AsyncIterator[SessionService]:
    """Open a runtime whose server has connected: on a busy machine it may take longer than the runtime waits for it."""
    async with open_supervisor(config, providers={"own": model}) as service:
        await until(lambda: all(each.state == "ready" for each in service.health().mcp or ()))
        yield service


async def decide(service: SessionService, session_id: str, allow: bool, asked: list[ToolApprovalRequested]) -> None:  # noqa: FBT001 - the word itself
    """Let a call run, and answer the question that it asks."""
    async with service.subscribe(session_id, after_seq=0) as events:
        async for envelope in events:
            if isinstance(envelope.event, ToolApprovalRequested):
                asked.append(envelope.event)
                await service.approve_tool(
                    session_id, envelope.event.id, "allow" if allow or len(asked) == 1 else "deny"
                )


@attrs.frozen
class Case:
    """A question, the word on it, and what the server hears of that.

    Attributes:
        allow: whether the question is allowed; the call itself is.
        answer: as the server prints it.
        gate: what becomes of calls of MCP tools.
        schema: of the form.
        asked: how often somebody is asked, the call included.
    """

    allow: bool
    answer: str
    gate: Gate = "ask"
    schema: dict[str, Any] = attrs.field(factory=lambda: FORM)
    asked: int = 2


@pytest.mark.parametrize(
    "case",
    [
        Case(allow=True, answer="accept {'colour': 'red'}"),
        Case(allow=False, answer="decline None"),
        Case(allow=True, answer="cancel None", schema=EMPTY, asked=1),
        Case(allow=True, answer="cancel None", gate="auto", asked=0),
    ],
)
async def test_a_server_asks(tmp_path: Path, case: Case) -> None:
    """An approval accepts a form with its defaults, a refusal declines; what nobody can answer is cancelled."""
    model = says(reply("", ToolUseBlock("call-1", "ask", {"schema": case.schema})), ["done"])
    tools = ToolsConfig(mcp_servers=(official(tmp_path),))
    config = Config(provider="own", model="own", tools=tools, gates=Gates(mcp=case.gate))
    asked: list[ToolApprovalRequested] = []
    async with connected(config, model) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(decide, service, session_id, case.allow, asked)
        results: list[str] = []
        await service.start_turn(
            session_id,
            "hello",
            on_event=lambda envelope: (
                results.append(envelope.event.result) if isinstance(envelope.event, ToolExecutionCompleted) else None
            ),
        )
        nursery.cancel_scope.cancel()
    assert results == [case.answer]
    assert len(asked) == case.asked
    if case.asked > 1:
        assert asked[1].id == "call-1.1"
        assert asked[1].args["message"] == "Which one?"


ASK = Gates(mcp="ask")


def asks() -> FunctionModel:
    """Return a model whose every turn calls the tool that asks, then ends."""

    async def answer(request: ModelRequest, _emit: Any) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if isinstance(request.messages[-1], ToolResultsMessage):
            return reply("done")
        return reply("", ToolUseBlock(f"call-{len(request.messages)}", "ask", {"schema": FORM}))

    return FunctionModel(answer)


async def allow_calls(service: SessionService, session_id: str, answered: Container[str] = ()) -> None:
    """Let each call run; allow the questions of the sessions that are to be answered, and say nothing about others."""
    async with service.subscribe(session_id, after_seq=0) as events:
        async for envelope in events:
            match envelope.event:
                case ToolApprovalRequested(id=call, question_of=of) if of is None or session_id in answered:
                    await service.approve_tool(session_id, call, "allow")


async def test_a_question_ends_with_its_call(tmp_path: Path) -> None:
    """The call's time limit ends it: nobody is asked any longer, the turn's clock goes on, and so does the turn."""
    tools = ToolsConfig(mcp_servers=(official(tmp_path, call_timeout=0.5),))
    config = Config(provider="own", model="own", tools=tools, gates=ASK)
    recorder = Recorder()
    async with connected(config, asks()) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(allow_calls, service, session_id)
        await service.start_turn(session_id, "go", on_event=recorder)
        assert (await service.read(session_id)).state.pending_approvals == ()
        nursery.cancel_scope.cancel()
    call, question = recorder.only(ToolApprovalRequested)
    assert (call.question_of, question.question_of, question.id) == (None, call.id, f"{call.id}.1")
    seen = [event for event in recorder.events if getattr(event, "id", None) in {call.id, question.id}]
    ended = next(at for at, event in enumerate(seen) if isinstance(event, ToolExecutionTimedOut))
    assert seen[ended - 1] == ToolApprovalResolved(question.id, "ask", "cancelled")
    assert not [event for event in seen[ended:] if isinstance(event, ToolApprovalResolved)]


async def test_an_interrupt_ends_a_question(tmp_path: Path) -> None:
    """The events of the turn have its end."""
    config = Config(provider="own", model="own", tools=ToolsConfig(mcp_servers=(official(tmp_path),)), gates=ASK)
    recorder = Recorder()
    async with connected(config, asks()) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(allow_calls, service, session_id)
        turn = ask(nursery, partial(service.start_turn, on_event=recorder), session_id, "go")
        await until(lambda: len(recorder.only(ToolApprovalRequested)) == 2)
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        nursery.cancel_scope.cancel()
    assert [event.decision for event in recorder.only(ToolApprovalResolved)] == ["allow", "cancelled"]


async def test_a_question_may_be_of_a_call_that_was_given_up(tmp_path: Path) -> None:
    """The server may work on such a call still: no other session is asked, and its own one is."""
    tools = ToolsConfig(mcp_servers=(official(tmp_path, call_timeout=2.0),))
    config = Config(provider="own", model="own", tools=tools, gates=ASK)
    async with connected(config, asks()) as service, trio.open_nursery() as nursery:
        first, second = [(await service.create_session(None)).session_id for _ in range(2)]
        answered = set[str]()
        for session_id in (first, second):
            nursery.start_soon(allow_calls, service, session_id, answered)
        await service.start_turn(first, "go")
        answered |= {first, second}
        for session_id, answer in ((second, "cancel None"), (first, "accept {'colour': 'red'}")):
            recorder = Recorder()
            await service.start_turn(session_id, "go", on_event=recorder)
            assert [event.result for event in recorder.only(ToolExecutionCompleted)] == [answer]
        nursery.cancel_scope.cancel()
