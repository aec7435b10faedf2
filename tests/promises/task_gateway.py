"""A gateway whose model calls a tool that an MCP service carries out as a task.

It tells its port on its standard output. Its arguments are the folder of the store, the address of the service and the
tool.
"""

import json
import sys
from pathlib import Path

import trio

from warren.conversation.categories import Gates
from warren.settings.config import Config, StoreConfig
from warren.settings.tool_config import McpServer, ToolsConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway
from warren.transport.providers.scripted import ScriptedCall, ScriptedModel, ScriptedStep


async def main() -> None:
    """Serve until killed."""
    folder, url, tool = sys.argv[1:]
    steps = ScriptedStep(tool_calls=(ScriptedCall(tool, {}),)), ScriptedStep("It builds.")
    tools = ToolsConfig(mcp_servers=(McpServer("yard", url=url),))
    gates = Gates(mcp="ask") if tool == "choose" else Gates()
    store = StoreConfig(Path(folder), lease=2.0)
    config = Config(store=store, provider="builder", model="scripted", tools=tools, gates=gates)
    runtime = open_supervisor(config, providers={"builder": ScriptedModel(steps)}, environ={})
    async with runtime as service, trio.open_nursery() as nursery:
        port = await nursery.start(serve_gateway, service, GatewayConfig(port=0))
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
