"""A server with the official package: `official.py FOLDER` on the standard streams, with a port over HTTP as well.

It notes in FOLDER what becomes of its calls of `wait`.
"""

import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server

FOLDER = Path(sys.argv[1])
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "description": "what to say"}}}
NAMES = ["echo", "wait", "show", "data", "fail", "grow", "headers", "long", "ask"]
PAGE = 3
Context = ServerRequestContext[Any, Any]


async def list_tools(_ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """Return a page."""
    start = int(params.cursor) if params is not None and params.cursor else 0
    found = [types.Tool(name=name, description=f"to {name}", input_schema=SCHEMA) for name in NAMES]
    after = start + PAGE
    return types.ListToolsResult(tools=found[start:after], next_cursor=str(after) if after < len(found) else None)


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Do what the tool is for."""
    arguments = params.arguments or {}
    result = said("done")
    match params.name:
        case "wait":
            await wait(str(arguments["key"]))
        case "show":
            result = types.CallToolResult(content=SHOWN)
        case "data":
            result = types.CallToolResult(content=[], structured_content={"ä": [1, None]})
        case "fail":
            result = types.CallToolResult(content=[types.TextContent(text="there is no such file")], is_error=True)
        case "grow":
            NAMES.append("grown")
            await ctx.session.send_tool_list_changed()
        case "headers":
            result = said(str(ctx.request.headers.get("x-key")) if ctx.request is not None else "none")
        case "ask":
            form = types.ElicitRequestFormParams(message="Which one?", requested_schema=arguments["schema"])
            answer = await ctx.session.send_request(types.ElicitRequest(params=form), types.ElicitResult)
            await anyio.sleep(float(arguments.get("then", 0)))
            result = said(f"{answer.action} {answer.content}")
        case "long":
            parts: list[types.ContentBlock] = [types.TextContent(text="a, [")] * int(arguments.get("parts", 0))
            result = types.CallToolResult(content=parts) if parts else said("x" * 150_000)
        case "echo":
            result = said(repr({**(params.meta or {})} if "meta" in arguments else arguments))
    return result


async def wait(key: str) -> None:
    """Wait to be cancelled, and note both."""
    try:
        (FOLDER / f"{key}.began").touch()
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        (FOLDER / f"{key}.cancelled").touch()
        raise


def said(text: str) -> types.CallToolResult:
    """Return a text."""
    return types.CallToolResult(content=[types.TextContent(text=text)])


SHOWN: list[types.ContentBlock] = [
    types.TextContent(text="two lines:"),
    types.ImageContent(data="AAAA", mime_type="image/png"),
    types.AudioContent(data="AAAA", mime_type="audio/wav"),
    types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a", text="its text")),
    types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///b", blob="AAAA")),
    types.ResourceLink(name="c", uri="file:///c"),
]
SERVER: Server[Any] = Server("official", on_list_tools=list_tools, on_call_tool=call_tool)


async def over_streams() -> None:
    """Serve whoever started this."""
    async with stdio_server() as (read, write):
        options = SERVER.create_initialization_options(NotificationOptions(tools_changed=True))
        await SERVER.run(read, write, options)


if __name__ == "__main__":
    if len(sys.argv) > 2:  # a port
        import uvicorn

        uvicorn.run(SERVER.streamable_http_app(), port=int(sys.argv[2]), log_level="error")
    else:
        anyio.run(over_streams)
