"""Questions of MCP servers, which whoever approves a session's tool calls answers."""

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.actors.tools.mcp.world import official
from tests.support.models import reply, says
from warren.categories import Gate, Gates
from warren.config import Config
from warren.events import ToolApprovalRequested, ToolExecutionCompleted
from warren.messages import ToolUseBlock
from warren.service import SessionService
from warren.tool_config import ToolsConfig
from warren.transport.embed import open_supervisor

FORM = {"type": "object", "properties": {"colour": {"type": "string", "default": "red"}}, "required": ["colour"]}
EMPTY = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


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
    async with open_supervisor(config, providers={"own": model}) as service, trio.open_nursery() as nursery:
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
