"""A gateway whose model calls a tool of an MCP server that asks a question, and works for a while after the answer.

It tells its port on its standard output. Its argument is the folder of the store.
"""

import json
import sys
from pathlib import Path

import trio

from tests.actors.tools.mcp.world import official
from warren.conversation.categories import Gates
from warren.settings.config import Config, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway
from warren.transport.providers.scripted import ScriptedCall, ScriptedModel, ScriptedStep

FORM = {"type": "object", "properties": {"colour": {"type": "string", "default": "red"}}, "required": ["colour"]}
CALL = ScriptedCall("ask", {"schema": FORM, "then": 2.0})
STEPS = (ScriptedStep(tool_calls=(CALL,)), ScriptedStep("It is painted."))


async def main() -> None:
    """Serve until killed."""
    folder = Path(sys.argv[1])
    tools = ToolsConfig(mcp_servers=(official(folder, restart="replay"),))
    store = StoreConfig(folder / "kept", lease=2.0)
    config = Config(store=store, provider="painter", model="scripted", tools=tools, gates=Gates(mcp="ask"))
    runtime = open_supervisor(config, providers={"painter": ScriptedModel(STEPS)}, environ={})
    async with runtime as service, trio.open_nursery() as nursery:
        port = await nursery.start(serve_gateway, service, GatewayConfig(port=0))
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
