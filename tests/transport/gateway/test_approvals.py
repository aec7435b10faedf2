"""Calls that wait for approval, for clients of a gateway whose turn waits with them: real sockets, the real runtime."""

from pathlib import Path

import trio

from tests.support.models import FunctionModel, reply
from tests.support.runtime import new_session, open_runtime
from tests.transport.clients import connect, gateway
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config
from warren.storage.runner import thread_runner


@tool
async def dig() -> str:
    """Dig a hole."""
    await trio.lowlevel.checkpoint()
    return "a hole"


async def digs(request: ModelRequest, _emit: object) -> ModelReply:
    """Say something and dig, then be done."""
    await trio.lowlevel.checkpoint()
    first = len(request.messages) == 1
    return reply("I dig.", ToolUseBlock("call-1", "dig", {})) if first else reply("done")


async def test_the_caller_of_a_turn_hears_that_it_waits(tmp_path: Path) -> None:
    """A turn that is put back as all of its calls wait holds no event back; its caller waits on, and hears the end."""
    config = Config(gates=Gates(callback="ask"))
    async with (
        open_runtime(FunctionModel(digs), store=tmp_path, tools=[dig], config=config, runner=thread_runner) as service,
        gateway(service) as port,
        connect(port) as client,
    ):
        session_id = await new_session(service)
        turn = await client.send("turn/start", session_id=session_id, prompt="go")
        with trio.fail_after(10):
            assert (await client.until("tool_approval_requested"))["event"]["id"] == "call-1"
            page = await client.call("approvals/list")
            assert [each["call_id"] for each in page["approvals"]] == ["call-1"]
            await client.call("tool/approve", session_id=session_id, call_id="call-1", decision="allow")
            assert (await client.reply(turn))["result"]["text"] == "done"
