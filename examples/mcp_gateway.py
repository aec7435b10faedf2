"""Warren between an MCP host and an MCP server: the host asks `warren mcp`, whose model uses the tools of a shop.

It needs Warren with the extras `cli,mcp,session-store`.
"""

import json
import sys
import tempfile
from pathlib import Path

import trio
from mcp import Client, StdioServerParameters

SHOP = '''
from mcp.server import MCPServer

shop = MCPServer("shop")


@shop.tool()
def stock(article: str) -> int:
    """Count what is in stock."""
    return {"lamp": 12}.get(article, 0)


shop.run()
'''
SCRIPT = {  # a real model: "gpt-5" behind --model, with its key in OPENAI_API_KEY
    "steps": [
        {"tool_calls": [{"name": "stock", "args": {"article": "lamp"}}]},
        {"text": "There are 12 lamps."},
        {"text": "Yes, enough for ten."},
    ]
}


def gateway(folder: Path) -> StdioServerParameters:
    """Return the command that a host starts. In earnest these options stand in its configuration."""
    servers = {"mcpServers": {"shop": {"command": sys.executable, "args": [str(folder / "shop.py")]}}}
    for name, text in (("shop.py", SHOP), ("servers.json", json.dumps(servers)), ("script.json", json.dumps(SCRIPT))):
        (folder / name).write_text(text, encoding="utf-8")
    options = ["--store", str(folder / "store"), "--mcp-config", str(folder / "servers.json")]
    model = f"scripted:{folder / 'script.json'}"
    return StdioServerParameters(command=sys.executable, args=["-m", "warren", "mcp", "--model", model, *options])


async def show(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the client's
    """Show which tools are called meanwhile."""
    if message is not None and message.startswith("tool stock"):
        print(f"  {message}")


async def main() -> None:
    """Ask; and ask on in another process, as a host does that was restarted."""
    with tempfile.TemporaryDirectory() as folder:
        server = gateway(Path(folder))
        async with Client(server) as host:
            run = {"prompt": "How many lamps are there?", "labels": {"host": "editor"}, "budget": {"max_steps": 10}}
            said = (await host.call_tool("warren_run", run, progress_callback=show)).structured_content
            print(said["text"])
        async with Client(server) as host:
            go_on = {"session_id": said["session_id"], "prompt": "Are they enough for ten?"}
            print((await host.call_tool("warren_resume", go_on)).structured_content["text"])


if __name__ == "__main__":
    trio.run(main)
