"""A coding agent over ACP, as an editor runs it: it reads and edits files, and asks before it runs a command.

It needs the official client, `pip install agent-client-protocol`, and Warren with the extras `cli,session-store,tools`.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.interfaces import Client
from acp.schema import AllowedOutcome, RequestPermissionResponse

SCRIPT = {  # a real model: "claude-sonnet-4-5" behind --model, with its key in ANTHROPIC_API_KEY
    "steps": [
        {"tool_calls": [{"name": "read_file", "args": {"path": "add.py"}}]},
        {"tool_calls": [{"name": "edit_file", "args": {"path": "add.py", "old": "a - b", "new": "a + b"}}]},
        {"tool_calls": [{"name": "shell", "args": {"command": "python3 -c 'import add; print(add.add(2, 3))'"}}]},
        {"text": "It adds now: 2 and 3 are 5."},
    ]
}


class Editor:
    """What an editor does for its agent: show what it does, and let the user decide."""

    async def session_update(self, update: Any, **_: Any) -> None:
        """Show a piece of the answer, or how a call goes."""
        if update.session_update == "agent_message_chunk":
            print(update.content.text, end="")
        elif update.session_update == "tool_call":
            print(update.title, update.raw_input)
        elif update.session_update == "tool_call_update" and update.status in ("completed", "failed"):
            print(f"  {update.status}")

    async def request_permission(self, tool_call: Any, options: list[Any], **_: Any) -> RequestPermissionResponse:
        """Ask the user, who allows it here."""
        print(f"  allowed: {tool_call.title}")
        (once,) = [option for option in options if option.kind == "allow_once"]
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=once.option_id))


async def mend(folder: Path, model: str) -> None:
    """Have the agent mend what is in a folder."""
    options = ("--model", model, "--root", str(folder), "--shell", "--ask", "shell")
    command = (sys.executable, "-m", "warren", "acp", *options)
    async with spawn_agent_process(cast(Client, Editor()), *command, cwd=folder, env=dict(os.environ)) as (agent, _):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd=str(folder), mcp_servers=[])
        answer = await agent.prompt(session_id=session.session_id, prompt=[text_block("add(2, 3) is wrong. Mend it.")])
        print(f"\n{answer.stop_reason}")


def main() -> None:
    """Make a folder with a mistake in it, and show the file when it is mended."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "add.py"), Path(folder, "script.json")
        source.write_text("def add(a, b):\n    return a - b\n", encoding="utf-8")
        script.write_text(json.dumps(SCRIPT), encoding="utf-8")
        asyncio.run(mend(Path(folder), f"scripted:{script}"))
        print(source.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
